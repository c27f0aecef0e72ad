/** See node.py: CPU per decision that needs no server, in ns, as JSON; of one key, then of a thousand. */

import { MemoryStore } from "express-rate-limit";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { Limiter } from "swlimit";

const ROUNDS = Number(process.argv.at(-1));
const DECISIONS = 100_000;
const LIMIT = { limit: 1e9, window: "1m", resolution: "5s" };
const KEYS = Array.from({ length: 1000 }, (_, number) => `user:${number}`);
const HOUR = 3_600_000;

const local = new Limiter(LIMIT);
const denying = new Limiter({ ...LIMIT, client: async () => [0, 1e9, 0, HOUR, HOUR], maxUntrackedAge: "1h" });
for (const key of KEYS) await denying.allow(key);
const flexible = new RateLimiterMemory({ points: 1e9, duration: 60 });
const counter = new MemoryStore();
counter.init({ windowMs: 60_000 });

const decide = {
  "swlimit, in one process": (key) => local.allow(key),
  "swlimit, a known denial": (key) => denying.allow(key),
  "`rate-limiter-flexible`, in memory": (key) => flexible.consume(key),
  "`express-rate-limit`'s counter": (key) => counter.increment(key),
};

/** ns of CPU a decision, of all threads. */
async function cpu(decision, keys) {
  const before = process.cpuUsage();
  for (let at = 0; at < DECISIONS; at++) await decision(KEYS[at % keys]);
  const { user, system } = process.cpuUsage(before);
  return ((user + system) * 1000) / DECISIONS;
}

const found = {};
for (let round = -1; round < ROUNDS; round++) {
  for (const [name, decision] of Object.entries(decide)) {
    for (const keys of [1, KEYS.length]) {
      const ns = await cpu(decision, keys);
      found[name] ??= { 1: [], [KEYS.length]: [] };
      if (round >= 0) found[name][keys].push(ns); // the first one compiles
    }
  }
}
console.log(JSON.stringify(found));
process.exit();
