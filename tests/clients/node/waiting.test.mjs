/** Acquiring: first come, first served, over connections that nobody else uses. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit } from "swlimit";
import { connect, eventually, holds, key, limiter, sent, sleep } from "./support.mjs";

const FAST = { limit: 2, window: 200, resolution: 10 };

/** Whether a promise has come to something yet. */
function watched(promise) {
  const watch = { promise, isOver: false };
  promise.then(() => {
    watch.isOver = true;
  });
  return watch;
}

for (const [name, open] of Object.entries({
  redis: (test) => connect(test),
  "a function": async (test) => {
    const client = await connect(test);
    return (args) => client.sendCommand(args);
  },
  "a module without ACQUIRE": async (test) => {
    const client = await connect(test);
    return (args) =>
      args[0] === "SWLIMIT.ACQUIRE"
        ? Promise.reject(new Error("ERR unknown command 'SWLIMIT.ACQUIRE', with args beginning with: "))
        : client.sendCommand(args);
  },
})) {
  test(`in turn, with ${name}`, async (test) => {
    const two = limiter(test, { client: await open(test), ...FAST });
    const k = key();
    const began = performance.now();
    const order = [];
    const waiting = Array.from({ length: 6 }, (_, number) =>
      two.acquire(k, "5s").then((decision) => {
        order.push(number);
        return decision.granted;
      }),
    );
    assert.deepEqual(await Promise.all(waiting), Array(6).fill(1));
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
    assert.ok(performance.now() - began >= 390, "two windows have passed");
  });

  test(`not in time, with ${name}`, async (test) => {
    const two = limiter(test, { client: await open(test), limit: 1, window: "1m", resolution: "1s" });
    const k = key();
    assert.equal((await two.acquire(k, 0)).granted, 1);
    const began = performance.now();
    const late = await two.acquire(k, 50);
    assert.deepEqual([late.granted, late.retryAfter > 50_000], [0, true]);
    const never = await two.acquire(k, "1m", { cost: 2 });
    assert.deepEqual([never.granted, never.never], [0, true]);
    assert.ok(performance.now() - began < 20_000, "there was nothing to hope for");
  });
}

test("more keys wait than there are connections", async (test) => {
  const client = await connect(test, { name: key() });
  const two = limiter(test, { client, ...FAST });
  const keys = Array.from({ length: 20 }, key);
  for (const k of keys) await two.record(k, { cost: 2 });
  const waiting = Promise.all(keys.map((k) => two.acquire(k, "20s")));
  await sleep(50);
  const named = (await client.sendCommand(["CLIENT", "LIST"]))
    .split("\n")
    .filter((line) => line.includes(`name=${client.options.name} `));
  assert.ok(named.length <= 1 + 10 + 1, `${named.length} connections`);
  assert.deepEqual(
    (await waiting).map(({ granted }) => granted),
    Array(20).fill(1),
  );
});

test("connections that died while nobody waited are replaced", async (test) => {
  const client = await connect(test, { name: key() });
  const two = limiter(test, { client, ...FAST, onFailure: "deny" });
  const k = key();
  for (let round = 0; round < 2; round++) {
    await two.record(k, { cost: 2 });
    assert.equal((await two.acquire(k, "5s")).granted, 1);
    const own = (await client.sendCommand(["CLIENT", "LIST"]))
      .split("\n")
      .filter((line) => line.includes(`name=${client.options.name} `) && / cmd=swlimit.acquire /.test(line));
    assert.equal(own.length, 1);
    await client.sendCommand(["CLIENT", "KILL", "ID", /id=(\d+)/.exec(own[0])[1]]);
    await sleep(20);
  }
});

test("a later one whose time is up does not wait for an earlier one", async (test) => {
  const client = await connect(test);
  const two = limiter(test, { client, ...FAST, window: 2000, resolution: 100 });
  const k = key();
  await two.record(k, { cost: 2 });
  const first = watched(two.acquire(k, "20s"));
  assert.equal((await two.acquire(k, 100)).granted, 0);
  assert.equal(first.isOver, false);
  assert.equal((await first.promise).granted, 1);
});

test("waiting without a server", async (test) => {
  const two = limiter(test, { ...FAST, mode: "local" });
  const began = performance.now();
  const granted = await Promise.all([1, 2, 3].map(() => two.acquire("k", "5s")));
  assert.deepEqual(
    granted.map((decision) => decision.granted),
    [1, 1, 1],
  );
  assert.ok(performance.now() - began >= 190);
});

test("who waits in the server's queue of a hold goes before an admission that waits", async (test) => {
  const [client, admin] = [await connect(test), await connect(test)];
  const one = holds(test, { client });
  const k = key();
  const first = await one.hold(k);
  const queued = one.hold(k, { wait: "1m" });
  await eventually(async () => /swlimit_waiting:1\b/.test(await admin.sendCommand(["INFO", "swlimit"])), "its wait");
  const asked = sent(client);
  const admission = watched(admit([{ limiter: one, key: k }], { wait: "1m" }));
  await eventually(() => asked.filter(([name]) => name === "SWLIMIT.ADMIT").length > 1, "its polls");
  await first.release();
  const hold = await queued;
  assert.deepEqual([hold.granted, admission.isOver], [1, false]);
  await hold.release();
  assert.equal((await admission.promise).granted, true);
});
