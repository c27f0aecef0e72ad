/** What is known to be denied is denied without the server, until the server says that it may not be so any more. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { createClient as createClient5 } from "redis-5";
import { Limiter } from "swlimit";
import { serverCommand } from "../../../src/clients/node/dist/esm/protocol/commands.js";
import { connect, eventually, key, limiter, port, sender, sleep } from "./support.mjs";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");

/** A limiter, a client that changes things behind its back, and a key that is used up and known to be. */
async function denied(test, { key: k = key(), ...options } = {}) {
  const client = await connect(test);
  const other = await connect(test);
  const three = limiter(test, { client, ...options });
  await three.record(k, { cost: 3 });
  await known(three, k);
  return { three, k, other, run: sender(other) };
}

/** Ask until denials come without the server. */
function known(three, k, options) {
  return eventually(async () => (await three.allow(k, options)).source === "cache", "a local denial");
}

/** The next request is asked of the server. */
function asked(three, k, options) {
  return eventually(async () => (await three.allow(k, options)).source === "server", "a request to the server");
}

const QUOTA = [3, "10s", "1s"];

test("a reply that took long tells nobody to come too early", async (test) => {
  const client = await connect(test);
  const slow = async (words) => {
    await sleep(50);
    return client.sendCommand(words);
  };
  const three = limiter(test, { client: slow, maxUntrackedAge: "5s" });
  const k = key();
  await three.record(k, { cost: 3 });
  assert.equal((await three.allow(k)).source, "server");
  const [, , , left] = await sender(client)("SWLIMIT.PEEK", k, ...QUOTA);
  const told = await three.allow(k);
  assert.equal(told.source, "cache");
  assert.ok(told.retryAfter >= left - 20, `${told.retryAfter} of ${left}`);
});

test("a look, which is two commands, is not worth three denials", async (test) => {
  const [client, other] = [await connect(test), await connect(test)];
  const three = limiter(test, { client, maxUntrackedAge: 0 });
  const [k, run] = [key(), sender(other)];
  const looks = async () =>
    /cmdstat_(swlimit.peek|evalsha_ro|pttl|client\|tracking)/.test(await run("INFO", "commandstats"));
  await run("CONFIG", "RESETSTAT");
  await three.record(k, { cost: 3 });
  for (let i = 0; i < 3; i++) {
    assert.equal((await three.allow(k)).source, "server");
    await sleep(20);
  }
  assert.ok(!(await looks()));
  await known(three, k);
  assert.ok(await looks());
});

// What pushes an invalidation, and what is decided then.
for (const [what, change] of Object.entries({
  REFUND: (k) => [["SWLIMIT.REFUND", k, 1]],
  DEL: (k) => [["DEL", k]],
  UNLINK: (k) => [["UNLINK", k]],
  PEXPIRE: (k) => [["PEXPIRE", k, 5000]],
  PERSIST: (k) => [["PERSIST", k]],
  "RENAME, away": (k) => [["RENAME", k, `${k}:away`]],
  "RENAME, to it": (k) => [
    ["SET", `${k}:from`, "x"],
    ["RENAME", `${k}:from`, k],
    ["DEL", k],
  ],
  SET: (k) => [
    ["SET", k, "x"],
    ["DEL", k],
  ],
  "a grant": (k) => [["SWLIMIT.ALLOW", k, 9, "10s", "1s"]],
  RECORD: (k) => [["SWLIMIT.RECORD", k, ...QUOTA]],
  "a grant of MALLOW": (k) => [["SWLIMIT.MALLOW", 2, k, `${k}:b`, 9, "10s", "1s", 1, 9, "10s", "1s", 1]],
  expiry: (k) => [["PEXPIRE", k, 1]],
  FLUSHDB: () => [["FLUSHDB"]],
  FLUSHALL: () => [["FLUSHALL"]],
  BLOCK: (k) => [["SWLIMIT.BLOCK", k, "1m"]],
})) {
  test(`${what} is announced`, async (test) => {
    const { three, k, run } = await denied(test);
    for (const words of change(k)) await run(...words);
    if (what === "expiry") await sleep(5);
    if (what === "expiry") await run("EXISTS", k);
    await asked(three, k);
  });
}

test("RESTORE is announced", async (test) => {
  const { three, k, other } = await denied(test);
  const value = await other.withTypeMapping({ 36: Buffer }).sendCommand(["DUMP", k]);
  await other.sendCommand(["RESTORE", k, "1000", value, "REPLACE"]);
  await asked(three, k);
});

test("eviction is announced", async (test) => {
  const { three, run } = await denied(test);
  await run("CONFIG", "SET", "maxmemory-policy", "allkeys-random");
  try {
    await run("CONFIG", "SET", "maxmemory", 1);
    await eventually(async () => three.denials.size === 0, "forgetting");
  } finally {
    await run("CONFIG", "SET", "maxmemory", 0);
    await run("CONFIG", "SET", "maxmemory-policy", "noeviction");
  }
});

test("UNBLOCK is announced", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client });
  const k = key();
  await three.block(k, "1h");
  await known(three, k);
  await sender(await connect(test))("SWLIMIT.UNBLOCK", k);
  assert.ok(await eventually(async () => (await three.allow(k)).granted), "granted again");
});

test("what changes nothing is not announced", async (test) => {
  const { three, k, run } = await denied(test);
  const { server } = three.statistics;
  await run("SWLIMIT.ALLOW", k, ...QUOTA);
  await run("SWLIMIT.PEEK", k, ...QUOTA);
  await run("SWLIMIT.MALLOW", 2, k, `${k}:b`, ...QUOTA, 1, ...QUOTA, 1);
  await run("SWLIMIT.REFUND", `${k}:b`, 1);
  await sleep(20);
  for (let i = 0; i < 10; i++) assert.equal((await three.allow(k)).source, "cache");
  assert.equal(three.statistics.server, server);
});

test("a local denial says what is left of the time", async (test) => {
  const { three, k } = await denied(test);
  const first = await three.allow(k);
  await sleep(50);
  const second = await three.allow(k);
  assert.deepEqual([first.source, second.source], ["cache", "cache"]);
  assert.ok(first.retryAfter - second.retryAfter >= 30 && first.retryAfter - second.retryAfter < 5000);
  const truth = await three.peek(k);
  assert.ok(Math.abs(truth.retryAfter - second.retryAfter) < 5000 && truth.source === "server");
});

test("a denial ends, and not after the server would grant", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, window: 400, resolution: 100 });
  for (let round = 0; round < 3; round++) {
    const k = key();
    await three.record(k, { cost: 3 });
    await known(three, k);
    const { until } = three.denials.denials.get(k)[0];
    const { retryAfter } = await three.peek(k);
    const ends = performance.now() + retryAfter;
    assert.ok(until < ends && until > ends - 300, `${until} ${ends}`);
    await sleep(retryAfter + 1);
    assert.equal((await three.allow(k)).granted, 1);
  }
});

test("parts, quotas and blocks are distinguished", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client });
  const k = key();
  await three.allow(k, { cost: 2 });
  await known(three, k, { cost: 2 });
  const strict = limiter(test, { client, strict: true });
  assert.equal((await strict.allow(k, { cost: 2 })).source, "server");
  assert.equal((await three.with({ limit: 9 }).peek(k, { cost: 2 })).granted, 2);
  assert.deepEqual((({ granted, source }) => [granted, source])(await three.with({ limit: 9 }).allow(k, { cost: 2 })), [
    2,
    "server",
  ]);
  await known(three, k, { cost: 1 });
  const first = await three.allow(k, { cost: 5, partial: true });
  const second = await three.allow(k);
  assert.ok(first.source === "cache" && first.retryAfter >= second.retryAfter && second.retryAfter > 0);
});

test("a request with a block is denied behind its like only", async (test) => {
  const { three, k, run } = await denied(test);
  assert.equal((await three.allow(k, { block: "1m" })).source, "server");
  assert.ok((await run("SWLIMIT.PEEK", k, ...QUOTA))[3] > 50_000, "the block has begun");
  await known(three, k, { block: "1m" });
  assert.equal((await three.allow(k)).source, "cache");
  assert.equal((await three.allow(k, { block: "1m" })).source, "cache");
  assert.equal((await three.allow(key(), { cost: 4, block: "1m" })).source, "server", "it has to begin");
});

test("a denial by several limits is remembered of the ones that denied", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client });
  const k = key();
  const { allowAll } = await import("swlimit");
  const ask = () =>
    allowAll([
      { limiter: three, key: k },
      { limiter: three, key: `${k}:b` },
    ]);
  await three.record(k, { cost: 3 });
  await eventually(async () => (await ask()).each[0].source === "cache");
  assert.deepEqual([three.denials.denials.has(k), three.denials.denials.has(`${k}:b`)], [true, false]);
});

test("no denial is stale while a key is given back under load", async (test) => {
  // Someone else gives back and takes; after each refund has been answered, and its push has come, the next is granted.
  const hour = [3, "1h", "1h"]; // so that nothing comes back by time meanwhile
  const { three, k, run } = await denied(test, { window: "1h", resolution: "1h" });
  const { invalidations } = three.core.server(k);
  let [local, stale] = [0, 0];
  for (let round = 0; round < 200; round++) {
    const asking = Array.from({ length: 8 }, () => three.allow(k));
    await run("SWLIMIT.REFUND", k, 1);
    local += (await Promise.all(asking)).filter((decision) => decision.source !== "server").length;
    await invalidations.dialect?.ask(serverCommand(k, "PING"), "auto"); // whose reply comes behind the push
    const decisions = await Promise.all([three.allow(k), three.allow(k)]);
    const truth = await run("SWLIMIT.PEEK", k, ...hour);
    if (decisions.every(({ source }) => source !== "server") && truth[0] > 0) stale++;
  }
  assert.equal(stale, 0);
  assert.ok(local > 0, "some were denied without the server");
});

test("expiry that the question itself brings about is announced", async (test) => {
  // Two are known to be denied. One is denied just before the key expires: what deletes it is the question after.
  const client = await connect(test);
  const three = limiter(test, { client, window: "1h" });
  const other = await connect(test);
  const k = key();
  await other.sendCommand(["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
  try {
    await three.record(k, { cost: 3 });
    await other.sendCommand(["PEXPIRE", k, "1000"]);
    await known(three, k, { cost: 2 });
    client.sendCommand = async (...args) => {
      const reply = await Object.getPrototypeOf(client).sendCommand.apply(client, args);
      await sleep(1100);
      return reply;
    };
    const { granted, source } = await three.allow(k);
    assert.deepEqual([granted, source], [0, "server"]);
    delete client.sendCommand;
    assert.ok(await eventually(async () => (await three.allow(k, { cost: 2 })).granted));
  } finally {
    await other.sendCommand(["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
  }
});

test("limiters of one client share one tracking connection, which ends with the last of them", async (test) => {
  const client = await connect(test, { name: key() });
  const limiters = [1, 2, 3].map((limit) => new Limiter({ client, limit, window: "10s", timeout: 2000 }));
  for (const one of limiters) {
    const k = key();
    await one.record(k, { cost: one.quota.limit });
    await known(one, k);
  }
  const tracking = async () =>
    (await client.sendCommand(["CLIENT", "LIST"]))
      .split("\n")
      .filter((line) => line.includes(`name=${client.options.name} `) && / flags=t /.test(line)).length;
  assert.equal(await tracking(), 1);
  limiters[0].close();
  assert.equal(await tracking(), 1);
  for (const one of limiters.slice(1)) one.close();
  await eventually(async () => (await tracking()) === 0);
});

test("a bounded number of keys is remembered, the oldest forgotten first", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, maxKeys: 2 });
  const keys = [key(), key(), key()];
  for (const k of keys) {
    await three.record(k, { cost: 3 });
    await known(three, k);
  }
  assert.deepEqual([...three.denials.denials.keys()], keys.slice(1));
});

test("what has ended is not kept", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, window: 100, resolution: 10 });
  const k = key();
  await three.record(k, { cost: 3 });
  await known(three, k);
  await sleep(120);
  assert.equal((await three.allow(k)).granted, 1);
  assert.equal(three.denials.size, 0);
});

test("release 5 of the package redis hears the same", async (test) => {
  const client = await createClient5({ socket: { port: port() } }).connect();
  test.after(() => client.destroy());
  const three = limiter(test, { client });
  const k = key();
  await three.record(k, { cost: 3 });
  await known(three, k);
  await sender(await connect(test))("SWLIMIT.REFUND", k, 1);
  assert.equal((await asked(three, k).then(() => three.peek(k))).remaining, 0, "the one given back has been granted");
});

test("a block shorter than the window begins again when it has ended", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, window: "1h" });
  const other = await connect(test);
  const k = key();
  await three.record(k, { cost: 3 });
  const blockedUntil = async () => {
    const info = await sender(other)("SWLIMIT.INFO", k);
    return Number(info.blocked ?? info[info.indexOf("blocked") + 1]);
  };
  await three.allow(k, { block: 100 });
  const first = await blockedUntil();
  await known(three, k, { block: 100 });
  await eventually(async () => {
    await three.allow(k, { block: 100 });
    return (await blockedUntil()) > first;
  }, "a second block");
});

test("what one limiter resets no other remembers", async (test) => {
  const clients = { tracked: await connect(test) };
  clients.untracked = (args) => clients.tracked.sendCommand(args);
  for (const client of Object.values(clients)) {
    const [one, other] = [limiter(test, { client }), limiter(test, { client })];
    const k = key();
    await other.record(k, { cost: 3 });
    await known(other, k);
    await one.reset(k);
    assert.deepEqual([(await other.allow(k)).granted, (await other.allow(k)).source], [1, "server"]);
  }
});

test("keys are what the server has them as, or are refused", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client });
  for (const wrong of [42, undefined, null, {}, Buffer.from("k")]) {
    for (const method of ["allow", "peek", "record", "refund", "unblock", "reset"]) {
      await assert.rejects(three[method](wrong), { name: "TypeError", message: /^key must be a string/ });
    }
    await assert.rejects(three.acquire(wrong, 0), TypeError);
  }
  const { k, run } = await denied(test, { key: `${key()}\ud800` }); // half a surrogate pair
  await known(three, k);
  await run("DEL", k);
  await asked(three, k);
});

test("long names are remembered by their hash, and announced", async (test) => {
  const { three, k, run } = await denied(test, { key: `${key()}${"x".repeat(100_000)}` });
  assert.ok([...three.denials.denials.keys()].every((name) => name.length < 200));
  await run("SWLIMIT.REFUND", k, 1);
  await asked(three, k);
});

test("a million denials take bounded memory, and end", async (test) => {
  const three = limiter(test, { limit: 1, client: () => {}, maxKeys: 100_000 });
  const demand = three.demand({});
  const { denials } = three;
  collect();
  const before = process.memoryUsage().heapUsed;
  for (let i = 0; i < 1_000_000; i++) {
    const name = `user:${i}`;
    denials.remember(name, demand, denials.snapshot(name), [0, 1, 0, 2000, 2000], 0, 10_000);
  }
  // At most a sixteenth is forgotten at once; and what ends while this process stands still is not remembered.
  assert.ok(denials.size > 90_000 && denials.size <= 100_000, `${denials.size}`);
  collect();
  const each = (process.memoryUsage().heapUsed - before) / 100_000;
  assert.ok(each < 1000, `${each} bytes a key`);
  await eventually(() => denials.size === 0, "their end");
});
