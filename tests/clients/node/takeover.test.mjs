/** Keys that the script has written are the module's once it is loaded, whichever client asks first. */

import assert from "node:assert/strict";
import { subscribe } from "node:diagnostics_channel";
import { test } from "node:test";
import { Redis } from "ioredis";
import { admit, allowAll, BudgetLimiter, HoldLimiter, Limiter } from "swlimit";
import { CLIENTS, CLUSTERS, connect, eventually, holds, key, limiter, port, sleep } from "./support.mjs";

const messages = [];
subscribe("swlimit:takeover", (message) => messages.push(message));

/** A limiter of each kind; `module` says what decides. */
function limiters(test, client, module) {
  const options = { client, module, timeout: 20_000 };
  const rate = new Limiter({ ...options, limit: 10, window: "1h", prefix: "rate:", mode: "direct" });
  const plan = new BudgetLimiter({ ...options, limit: 100, period: "year", prefix: "plan:" });
  const jobs = new HoldLimiter({ ...options, limit: 5, ttl: "1m", prefix: "jobs:" });
  test.after(() => Promise.all([rate, plan, jobs].map((one) => one.close())));
  const parts = (k) => [
    { limiter: jobs, key: k },
    { limiter: rate, key: k, cost: 2 },
    { limiter: plan, key: k, cost: 20 },
  ];
  return { rate, plan, jobs, parts };
}

const OPEN = [
  ...Object.entries(CLIENTS),
  ...Object.entries(CLUSTERS).map(([name, open]) => [`a cluster of ${name}`, (test) => open(test, "cluster")]),
];

for (const [name, open] of OPEN) {
  test(`counts, holds and reservations are the module's, with ${name}`, async (test) => {
    const before = limiters(test, await open(test), "never");
    const after = limiters(test, await open(test), name.includes("texts") ? "always" : "auto");
    const k = `{${key()}}`;
    await before.rate.record(k, { cost: 3 });
    await before.rate.record(`${k}2`);
    await before.plan.allow(k, { cost: 10 });
    const first = await before.jobs.hold(k);
    const admission = await admit(before.parts(k));
    assert.equal(admission.granted, true);
    for (const { rate } of [before, after]) {
      await eventually(async () => (await rate.peek(`${k}3`)) && rate.servers().length === 1, "its node");
    }

    const both = [k, `${k}2`].map((key) => ({ limiter: after.rate, key }));
    assert.deepEqual(
      (await allowAll(both)).each.map(({ remaining }) => remaining),
      [4, 8],
    );
    assert.equal((await after.jobs.hold(k, { cost: 4 })).remaining, 3);
    const more = await after.jobs.hold(k, { cost: 3 });
    assert.ok(more.token > admission.hold.token && admission.hold.token > first.token);
    // The client of the script finds two keys that the module has, and two that it has not.
    assert.deepEqual(await admission.settle(1, 5), [-1, -15]);
    await first.release();
    assert.deepEqual(
      (await after.jobs.holders(k)).map(({ id }) => id),
      [more.id],
    );
    assert.deepEqual([(await before.plan.peek(k)).remaining, (await after.plan.peek(k)).remaining], [85, 85]);
    assert.equal((await before.rate.allow(k)).remaining, 4);

    const taken = messages.filter(({ key }) => key.includes(k)).map(({ key }) => key);
    assert.deepEqual(taken.sort(), [`jobs:${k}`, `jobs:${k}:reserved`, `plan:${k}`, `rate:${k}`, `rate:${k}2`]);
    const counts = [before, after].map(({ rate }) => rate.servers().reduce((sum, { takenOver }) => sum + takenOver, 0));
    assert.deepEqual(counts, [2, 3]);
  });
}

test("what is refused leaves the key as it was", async (test) => {
  const admin = await connect(test);
  await admin.sendCommand(["ACL", "SETUSER", "lesser", "reset", "on", ">x", "~*", "&*", "+@all", "-del"]);
  const before = limiters(test, await connect(test), "never");
  const after = limiters(test, await connect(test, { username: "lesser", password: "x" }), "auto");
  const k = key();
  await before.rate.record(k, { cost: 3 });
  const hold = await before.jobs.hold(k);
  await assert.rejects(after.rate.allow(k), { name: "RefusedError", message: /permission|can't run/ });
  await assert.rejects(after.jobs.hold(k), { name: "RefusedError", message: /permission|can't run/ });
  const types = () => Promise.all([`rate:${k}`, `jobs:${k}`].map((name) => admin.sendCommand(["TYPE", name])));
  assert.deepEqual(await types(), ["string", "zset"]);
  assert.deepEqual([(await before.rate.allow(k)).remaining, (await before.jobs.holders(k))[0].id], [6, hold.id]);
  await admin.sendCommand(["ACL", "SETUSER", "lesser", "+del"]);
  assert.equal((await after.rate.allow(k)).remaining, 5);
  await admin.sendCommand(["SET", `rate:${k}2`, "text"]);
  await assert.rejects(after.rate.allow(`${k}2`), { name: "RefusedError", message: /^WRONGTYPE/ });
  assert.equal(await admin.sendCommand(["GET", `rate:${k}2`]), "text");
});

test("a key that the script makes again, once it was taken over and emptied, is taken over again", async (test) => {
  const client = await connect(test);
  const before = limiters(test, await connect(test), "never");
  const k = key();
  let times = 2;
  const made = async (args) => {
    const reply = await client.sendCommand(args);
    if (args[0] !== "EVALSHA" || reply !== 1 || times-- === 0) return reply;
    await client.sendCommand(["UNLINK", `rate:${k}`]);
    await before.rate.record(k, { cost: 3 });
    return reply;
  };
  const after = limiters(test, made, "auto");
  await before.rate.record(k, { cost: 3 });
  assert.equal((await after.rate.allow(k)).remaining, 6);
  assert.equal(after.rate.servers()[0].takenOver, 3);
  await client.sendCommand(["UNLINK", `rate:${k}`]);
  times = Number.POSITIVE_INFINITY;
  await before.rate.record(k);
  await assert.rejects(after.rate.allow(k), { name: "RefusedError", message: /^WRONGTYPE/ });
});

test("the process is warned once, when a denial that it knows is looked after, too", async (test) => {
  const warnings = [];
  const warn = (warning) => warning.code === "SWLIMIT_TAKEOVER" && warnings.push(warning.message);
  process.on("warning", warn);
  test.after(() => process.off("warning", warn));
  const [before, after] = await Promise.all(
    ["never", "auto"].map(async (module) => limiter(test, { client: await connect(test), module, window: "1h" })),
  );
  const keys = [key(), key()];
  for (const k of keys) await before.record(k, { cost: 3 });
  for (const k of keys) await eventually(async () => (await after.allow(k)).source === "cache", "the denial");
  await before.refund(keys[0], 1); // which its server announces
  await eventually(async () => (await after.allow(keys[0])).granted === 1, "the refund");
  assert.equal(after.servers()[0].takenOver, 2);
  const text = `127.0.0.1:${port()}: the module is loaded now; took over key "${keys[0]}", which the script wrote`;
  assert.deepEqual(warnings, [text]);
});

test("a module is loaded while clients work: no more is held than the limit, and all ask it in the end", async (test) => {
  const of = "later";
  const admin = await connect(test, { of });
  const redis = await connect(test, { of });
  const ioredis = new Redis(port(of));
  test.after(() => ioredis.disconnect());
  const another = await connect(test, { of });
  const fleet = [redis, ioredis, (args) => another.sendCommand(args)].map((client) =>
    holds(test, { client, limit: 3 }),
  );
  const k = key();
  const first = await fleet[0].hold(k); // so that the key is there all the time
  let [isOver, live, most, rounds] = [false, 1, 0, 0];
  const work = async (limiter) => {
    while (!isOver) {
      await limiter.hold(k, { wait: "5m" }, async (hold) => {
        assert.equal(hold.source, "server");
        most = Math.max(most, ++live);
        rounds++;
        await sleep(5);
        live--;
      });
    }
  };
  const workers = fleet.flatMap((limiter) => [1, 2, 3].map(() => work(limiter)));
  const goesOn = async (until) => {
    const before = rounds;
    await eventually(async () => rounds > before + 30 && (await until()), "the work", 60_000);
  };
  const all = (backend) => fleet.every((limiter) => limiter.servers()[0]?.backend === backend);
  await goesOn(() => all("script") && most === 3);
  await admin.sendCommand(["MODULE", "LOAD", process.env.SWLIMIT_MODULE]);
  await goesOn(() => all("script")); // which needs no module
  const newcomer = holds(test, { client: await connect(test, { of }), limit: 3 });
  fleet.push(newcomer);
  workers.push(work(newcomer));
  await goesOn(() => all("module"));
  isOver = true;
  await Promise.all(workers);
  assert.equal(most, 3);
  assert.ok(messages.some(({ key }) => key === k));
  const [{ id, token }, ...others] = await newcomer.holders(k);
  assert.deepEqual([id, token, first.isLive, others], [first.id, first.token, true, []]);
});
