/** Holds: taken, renewed, lost, and given back once. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import os from "node:os";
import { test } from "node:test";
import { promisify } from "node:util";
import { Redis } from "ioredis";
import { DeniedError, HoldLimiter, UnavailableError } from "swlimit";
import { asModule, connect, eventually, holds, key, port, sender, told } from "./support.mjs";

/** A client as a function, through which commands go that `pass` lets through; others are never answered. */
async function through(test, pass) {
  const client = await connect(test);
  return (args) => (pass(args) ? client.sendCommand(args) : new Promise(() => {}));
}

for (const [name, open] of Object.entries({
  redis: (test) => connect(test),
  "redis with RESP2": (test) => connect(test, { RESP: 2 }),
  ioredis: async (test) => {
    const client = new Redis((await connect(test)).options.socket.port);
    test.after(() => client.disconnect());
    return client;
  },
  "a function": (test) => through(test, () => true),
})) {
  test(`taken and given back, with ${name}`, async (test) => {
    const two = holds(test, { client: await open(test), limit: 2 });
    const k = key();
    const first = await two.hold(k);
    assert.deepEqual(told(first), { granted: 1, limit: 2, remaining: 1, source: "server" });
    assert.match(first.id, /^[0-9a-f]{32}$/);
    const denied = await two.hold(k, { cost: 2 });
    assert.deepEqual(told(denied), { granted: 0, limit: 2, remaining: 1, source: "server" });
    assert.deepEqual([denied.isLive, denied.token, denied.signal.aborted], [false, undefined, true]);
    assert.ok(denied.retryAfter > 0 && denied.retryAfter <= 60_000);
    assert.equal((await two.hold(k, { cost: 3 })).never, true);
    {
      await using second = await two.hold(k);
      assert.ok(second.isLive && second.token > first.token);
      const [{ id, units, token }] = await two.holders(k);
      assert.deepEqual({ id, units, token }, { id: first.id, units: 1, token: first.token });
      assert.equal((await two.holders(k)).length, 2);
    }
    assert.equal((await two.holders(k)).length, 1);
    await first.release();
    await first.release();
    assert.deepEqual([first.isLive, await two.holders(k)], [false, []]);
  });

  test(`a wait ends with a release, with ${name}`, async (test) => {
    const one = holds(test, { client: await open(test) });
    const k = key();
    const order = [];
    const first = await one.hold(k);
    const later = [1, 2, 3].map((number) =>
      one.hold(k, { wait: "5m" }, async (hold) => {
        order.push(number);
        return hold.isLive;
      }),
    );
    await first.release();
    assert.deepEqual([await Promise.all(later), order], [Array(3).fill(true), [1, 2, 3]]);
  });
}

test("who has released waits behind those who waited before, of all limiters of the client", async (test) => {
  const client = await connect(test);
  const [one, other] = [holds(test, { client }), holds(test, { client })];
  const k = key();
  const order = [];
  const first = await one.hold(k);
  const later = [other, one].map((limiter, at) => limiter.hold(k, { wait: "5m" }, async () => order.push(at)));
  await first.release();
  later.push(one.hold(k, { wait: "5m" }, async () => order.push(2)));
  await Promise.all(later);
  assert.deepEqual(order, [0, 1, 2]);
});

test("a wait may end at any moment, and leaves the others' turns and no hold", async (test) => {
  const client = await connect(test);
  const one = holds(test, { client });
  const k = key();
  const first = await one.hold(k);
  const ends = [0, 1, 5, 20, 40, 80].map((ms) => ({ wait: "5m", signal: AbortSignal.timeout(ms) }));
  const waits = ends.map((options) => one.hold(k, options).catch((error) => error.name));
  const short = one.hold(k, { wait: 100 });
  const last = one.hold(k, { wait: "5m" });
  assert.deepEqual(await Promise.all(waits), Array(ends.length).fill("TimeoutError"));
  const { granted, retryAfter, source } = await short;
  assert.deepEqual([granted, retryAfter > 0, source], [0, true, "server"]);
  await first.release();
  await using hold = await last;
  assert.deepEqual([hold.granted, (await one.holders(k)).length], [1, 1]);
  await hold.release();
  await eventually(async () => (await one.holders(k)).length === 0, "the end of all");
});

test("a wait goes on while the server is away, unless a hold is granted without it", async (test) => {
  const client = await connect(test);
  let isAway = false;
  const through = (args) => (isAway ? Promise.reject(new Error("gone")) : client.sendCommand(args));
  const patient = holds(test, { client: through, onFailure: "deny" });
  const lenient = holds(test, { client: (args) => through(args), onFailure: "allow" });
  const k = key();
  const first = await patient.hold(k);
  const waiting = [patient, lenient].map((limiter) => limiter.hold(k, { wait: "5m" }));
  await eventually(async () => patient.statistics.server === 1 && lenient.servers()[0]?.backend, "the waits");
  isAway = true;
  assert.equal((await waiting[1]).source, "failure");
  await eventually(() => patient.servers()[0].state === "unavailable", "the breaker");
  isAway = false;
  await first.release();
  assert.deepEqual(told(await waiting[0]), { granted: 1, limit: 1, remaining: 0, source: "server" });
});

for (const onFailure of ["local", "allow", "deny", "error"]) {
  test(`a deadline ends a wait with the last denial, with ${onFailure}`, async (test) => {
    const client = await connect(test);
    let isSilent = false;
    const silent = (args) => (isSilent ? new Promise(() => {}) : client.sendCommand(args));
    const mine = holds(test, { client });
    const k = key();
    for (const takes of [client, silent]) {
      const theirs = holds(test, { client: takes, onFailure });
      await using held = await mine.hold(k);
      assert.equal(held.granted, 1);
      const began = performance.now();
      const waiting = theirs.hold(k, { wait: "1m", deadline: 300 });
      if (takes === silent) await eventually(() => theirs.queue.size > 0);
      isSilent = true;
      const { granted, source } = await waiting.finally(() => (isSilent = false));
      const took = performance.now() - began;
      assert.deepEqual([granted, source, theirs.statistics.failure], [0, "server", 0]);
      assert.ok(took > 100 && took < 1000, `it took ${took} ms`);
    }
  });
}

test("work is done under a hold, which ends with it", async (test) => {
  const one = holds(test, { client: await connect(test) });
  const k = key();
  assert.equal(await one.hold(k, {}, async (hold) => (await one.holders(k))[0].id === hold.id), true);
  await assert.rejects(
    one.hold(k, {}, () => Promise.reject(new Error("mine"))),
    /^Error: mine$/,
  );
  assert.deepEqual(await one.holders(k), []);
  const first = await one.hold(k);
  const error = await one.hold(k, {}, () => assert.fail()).catch((error) => error);
  assert.ok(error instanceof DeniedError && error.decision.granted === 0);
  await first.release();
});

test("what is wrong is refused", async (test) => {
  const client = await connect(test);
  for (const wrong of [{ ttl: 2999 }, { limit: -1 }, { window: "1m" }, { mode: "direct" }]) {
    assert.throws(() => new HoldLimiter({ client, limit: 1, ...wrong }), /ttl|limit|option/);
  }
  const one = holds(test, { client });
  for (const wrong of [{ ttl: "2s" }, { wait: "2h" }, { cost: 0 }])
    await assert.rejects(one.hold("k", wrong), RangeError);
  const k = key();
  await client.sendCommand(["SET", k, "text"]);
  await assert.rejects(one.hold(k), /WRONGTYPE/);
});

test("all holds of a key are renewed together, a thousand by one command", async (test) => {
  const renewals = [];
  const client = await through(test, (args) => asModule(args)[0] !== "SWLIMIT.RENEW" || renewals.push(asModule(args)));
  const many = holds(test, { client, limit: 5000, ttl: "9s" });
  const k = key();
  const held = await Promise.all(Array.from({ length: 1001 }, () => many.hold(k)));
  const renewed = () => new Set(renewals.flatMap((words) => words.slice(3)));
  await eventually(() => held.every(({ id }) => renewed().has(id)), "renewals", 60_000);
  assert.ok(renewals.length < 8 && renewals.every((words) => words.length <= 3 + 1000), `${renewals.length} renewals`);
  assert.deepEqual(renewals[0].slice(1, 3), [k, "9000ms"]);
  assert.ok(held.every(({ isLive }) => isLive));
});

test("time passes while the machine sleeps", async (test) => {
  const one = holds(test, { client: await connect(test), ttl: "1m" });
  const hold = await one.hold(key());
  assert.ok(hold.isLive);
  const [before, { now }] = [os.uptime(), Date];
  for (const hours of [1, -1]) {
    test.mock.method(Date, "now", () => now() + hours * 3_600_000);
    assert.ok(hold.isLive, "whatever the clock is set to");
    test.mock.restoreAll();
  }
  test.mock.method(os, "uptime", () => before + 61);
  assert.equal(hold.isLive, false);
  test.mock.restoreAll();
});

test("while the server does not answer, a share of the limit is held here", async (test) => {
  const client = () => new Promise(() => {});
  const local = holds(test, { client, limit: 15, timeout: 50, onFailure: "local" });
  const k = key();
  const first = await local.hold(k, { cost: 2 });
  assert.deepEqual(told(first), { granted: 2, limit: 2, remaining: 0, source: "failure" });
  assert.deepEqual([first.token, first.isLive], [undefined, true]);
  assert.equal((await local.hold(k)).granted, 0);
  await first.release();
  assert.equal(first.isLive, false);
  assert.equal((await local.hold(k)).granted, 1);
  assert.equal((await holds(test, { client, timeout: 50, onFailure: "allow" }).hold(k)).granted, 1);
  await assert.rejects(holds(test, { client, timeout: 50, onFailure: "error" }).hold(k), UnavailableError);
});

test("without a server this process counts", async (test) => {
  const two = holds(test, { limit: 2 });
  const first = await two.hold("k", { cost: 2 });
  assert.deepEqual(told(first), { granted: 2, limit: 2, remaining: 0, source: "local" });
  assert.equal((await two.hold("k")).granted, 0);
  const order = [];
  const later = [1, 2].map((number) => two.hold("k", { wait: "5m", cost: 2 }, async () => order.push(number)));
  await first.release();
  await Promise.all(later);
  assert.deepEqual(order, [1, 2]);
  assert.equal((await two.hold("k", { wait: "1h", cost: 3 })).never, true);
  assert.deepEqual(two.statistics, {
    server: 0,
    cache: 0,
    failure: 0,
    local: two.statistics.local,
    lost: 0,
    evicted: 0,
  });
});

test("what is held is released when the limiter ends", async (test) => {
  const client = await connect(test);
  const k = key();
  {
    await using two = new HoldLimiter({ client, limit: 2, timeout: 20_000 });
    await two.hold(k);
    await two.hold(k);
  }
  assert.deepEqual(await sender(client)("SWLIMIT.HOLDERS", k), []);
});

test("what is held, denied or counted keeps no process from ending", async () => {
  const program = `
    import { createClient } from "redis";
    import { BudgetLimiter, HoldLimiter, Limiter } from "swlimit";
    const client = await createClient({ socket: { port: ${port()} }, RESP: 3 }).connect();
    const options = { client, limit: 1, timeout: "1h" };
    const hold = await new HoldLimiter({ ...options, ttl: "1h" }).hold("${key()}");
    const here = await new HoldLimiter({ limit: 1 }).hold("k");
    await new BudgetLimiter({ ...options, window: "1h" }).allow("${key()}");
    const denied = new Limiter({ ...options, window: "1h" });
    for (let source; source !== "cache"; { source } = await denied.allow("${key()}"));
    client.unref();
    console.log(hold.isLive, here.isLive);
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], {
    timeout: 100_000,
  });
  assert.equal(stdout, "true true\n");
});

test("what is refused as too short says what is long enough", () => {
  const made = (ttl) => new HoldLimiter({ limit: 1, ttl });
  assert.throws(() => made("1s"), /ttl must be at least 3000 ms, not "1s"/);
  assert.equal(made("3s").ttl, 3000);
});
