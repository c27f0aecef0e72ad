/** See javascript.py, which gives this program the port of a server and prints what it prints. */

import { Redis } from "ioredis";
import { createClient } from "redis";
import { Limiter } from "swlimit";

const port = Number(process.argv.at(-1));
const WORDS = ["SWLIMIT.ALLOW", "k", "1000000000", "60000ms", "5000ms"];
const [REQUESTS, ROUNDS] = [1500, 9];

/** µs of CPU a request. */
async function cpu(ask, concurrent) {
  const before = process.cpuUsage();
  const some = async () => {
    for (let left = REQUESTS / concurrent; left > 0; left--) await ask();
  };
  await Promise.all(Array.from({ length: concurrent }, some));
  const { user, system } = process.cpuUsage(before);
  return (user + system) / REQUESTS;
}

const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function beside(name, concurrent, ours, theirs) {
  const pairs = [];
  for (let round = 0; round < ROUNDS; round++) pairs.push([await cpu(ours, concurrent), await cpu(theirs, concurrent)]);
  pairs.splice(0, 2); // until all is compiled
  const [our, their] = [0, 1].map((side) => middle(pairs.map((pair) => pair[side])).toFixed(1));
  const ratio = middle(pairs.map(([a, b]) => a / b)).toFixed(2);
  console.log(`| ${name}, ${concurrent} at a time | ${our} µs | ${their} µs | ${ratio} |`);
}

const redis = await createClient({ socket: { port, host: "127.0.0.1" } }).connect();
const ioredis = new Redis(port, "127.0.0.1");
for (const [name, client, raw] of [
  ["redis", redis, () => redis.sendCommand(WORDS)],
  ["ioredis", ioredis, () => ioredis.call(...WORDS)],
]) {
  const quota = { limit: 1e9, window: "1m", resolution: "5s", timeout: "10s" };
  const direct = new Limiter({ client, mode: "direct", ...quota });
  const cached = new Limiter({ client, ...quota });
  for (const concurrent of [1, 60]) {
    await beside(`direct, with ${name}`, concurrent, () => direct.allow("k"), raw);
    await beside(`cached and granted, with ${name}`, concurrent, () => cached.allow("k"), raw);
  }
  direct.close();
  cached.close();
}
process.exit();
