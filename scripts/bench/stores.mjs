// Drives one of the stores that Express applications limit with, on a real server, through its own library.
//
// Arguments: the store, the server's port, the limit, and the window in ms. Of each line of standard
// input, "KEYS TIMES" or a key, it prints a line: after each of so many keys had its requests, how many were
// granted; of the next request of this key, 1 if it was granted, else 0.
import { createInterface } from "node:readline";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { createClient } from "redis";
import { SwlimitStore } from "swlimit/express-rate-limit";

const [store, port, limit, window] = process.argv.slice(2);
const UNDER_WAY = 32;
const client = await createClient({ socket: { port: Number(port), host: "127.0.0.1" } }).connect();

async function incrementing(store) {
  await store.init({ windowMs: Number(window), limit: Number(limit) });
  return async (key) => (await store.increment(key)).totalHits <= limit;
}

function swlimitStore(mode) {
  return incrementing(new SwlimitStore({ client, mode, timeout: 10_000 }));
}

const allows = await {
  swlimit: () => swlimitStore("cached"),
  "swlimit-direct": () => swlimitStore("direct"),
  "rate-limit-redis": () => incrementing(new RedisStore({ sendCommand: (...args) => client.sendCommand(args) })),
  "rate-limiter-flexible": () => {
    const options = { storeClient: client, useRedisPackage: true, points: Number(limit), duration: window / 1000 };
    const limiter = new RateLimiterRedis(options);
    const denied = (found) => {
      if (found instanceof Error) throw found;
      return false;
    };
    return (key) => limiter.consume(key).then(() => true, denied);
  },
}[store]();

/** Ask for each of so many keys, round after round, as often as is asked for. */
async function run(keys, times) {
  let [next, granted] = [0, 0];
  const work = async () => {
    while (next < keys * times) {
      if (await allows(`key:${String(next++ % keys).padStart(12, "0")}`)) granted++;
    }
  };
  await Promise.all(Array.from({ length: UNDER_WAY }, work));
  return granted;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [, keys, times] = /^(\d+) (\d+)$/.exec(line) ?? [];
  console.log(keys ? await run(Number(keys), Number(times)) : Number(await allows(line)));
}
process.exit();
