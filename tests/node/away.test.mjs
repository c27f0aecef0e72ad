/** While the server is away: who decides, how long that takes, and how it is noticed that it is back. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { allowAll, ModuleMissingError, UnavailableError } from "swlimit";
import { connect, eventually, key, limiter, port, sleep } from "./support.mjs";

const admin = await createClient({ socket: { port: port("spare") } }).connect();
admin.on("error", () => {});
after(() => admin.destroy());

async function pid() {
  return Number(/process_id:(\d+)/.exec(await admin.sendCommand(["INFO", "server"]))[1]);
}

/** End the server; test_node.py starts it again. */
async function kill() {
  process.kill(await pid(), "SIGKILL");
}

/** Pause the server, until the test ends or it is told to go on. */
async function pause(test) {
  const server = await pid();
  process.kill(server, "SIGSTOP");
  const goOn = () => process.kill(server, "SIGCONT");
  test.after(goOn);
  return goOn;
}

/** What a promise comes to, and the ms that took. */
async function timed(promise) {
  const began = performance.now();
  return [await promise, performance.now() - began];
}

async function fill(three, k) {
  await three.record(k, { cost: 3 });
  await eventually(async () => (await three.allow(k)).local);
}

for (const [whenAway, granted] of [
  ["allow", [1, 1, 1, 1]],
  ["deny", [0, 0, 0, 0]],
  ["local", [1, 0, 0, 0]],
]) {
  test(`a paused server: ${whenAway}`, async (test) => {
    const client = await connect(test, { of: "spare" });
    const ten = limiter(test, { client, whenAway, limit: 10, timeout: 200 });
    const k = key();
    assert.equal((await ten.allow(k)).local, false);
    const goOn = await pause(test);
    const decisions = [];
    for (let i = 0; i < granted.length; i++) {
      const [decision, took] = await timed(ten.allow(k));
      decisions.push(decision);
      // Three are waited for; then the circuit is open.
      assert.ok(i < 3 ? took >= 199 && took < 2000 : took < 150, `${i}: ${took}`);
    }
    assert.deepEqual(
      decisions.map((decision) => decision.granted),
      granted,
    );
    assert.ok(decisions.every(({ local }) => local));
    assert.equal(ten.counts.away, 4);
    goOn();
    await eventually(async () => !(await ten.allow(k)).local, "its return");
    const { away } = ten.counts;
    assert.equal((await ten.allow(k)).local, false);
    assert.equal(ten.counts.away, away);
  });
}

test("a share of the limit is for this process, and whole limits without a server", async (test) => {
  const client = await connect(test, { of: "spare" });
  const hundred = limiter(test, { client, limit: 100, localShare: 0.05, timeout: 20 });
  await pause(test);
  let granted = 0;
  for (let i = 0; i < 10; i++) granted += (await hundred.allow("k")).granted;
  assert.equal(granted, 5);
  assert.equal((await limiter(test, { client, limit: 0, timeout: 20 }).allow("k")).granted, 0);
});

test("only one asks whether the server is back", async (test) => {
  const client = await connect(test, { of: "spare" });
  let sent = 0;
  const ten = limiter(test, {
    client: (args) => {
      sent++;
      return client.sendCommand(args);
    },
    timeout: 20,
  });
  await pause(test);
  for (let i = 0; i < 50; i++) await ten.allow("k");
  assert.equal(sent, 3 + 1);
});

test("changes are not made up", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, timeout: 20 });
  await pause(test);
  for (const change of [three.refund("k"), three.block("k", "1s"), three.unblock("k"), three.reset("k")]) {
    await assert.rejects(change, UnavailableError);
  }
});

test("waiting and several limits go by the same rule", async (test) => {
  const client = await connect(test, { of: "spare" });
  const made = (whenAway) => limiter(test, { client, timeout: 20, whenAway, prefix: `${key()}:` });
  const [open, closed, own] = ["allow", "deny", "local"].map(made);
  const full = key();
  await open.record(full, { cost: 3 });
  const waiting = open.acquire(full, "2s");
  await sleep(50);
  await pause(test);
  assert.equal((await open.acquire(key(), "10s")).granted, 1);
  assert.equal((await closed.acquire(key(), "10s")).granted, 0);
  const all = async (...limiters) => (await allowAll(limiters.map((limiter) => ({ limiter, key: "k" })))).granted;
  assert.deepEqual([await all(open, own), await all(open, own), await all(open, closed)], [true, false, false]);
  assert.deepEqual([own.counts.away, closed.counts.away], [2, 2]);
  const [decision] = await timed(waiting);
  assert.deepEqual([decision.granted, decision.local], [0, false], "it had nothing to hope for");
});

test("a server that is killed while somebody waits", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, whenAway: "allow", window: "3s", resolution: "100ms" });
  const k = key();
  await three.record(k, { cost: 3 });
  const waiting = three.acquire(k, "10s");
  await eventually(async () => /swlimit_waiting:1\b/.test(await admin.sendCommand(["INFO", "swlimit"])));
  await kill();
  const [decision, took] = await timed(waiting);
  assert.deepEqual([decision.granted, decision.local], [1, true]);
  assert.ok(took < 2500);
  await eventually(async () => !(await three.allow(key())).local, "its return");
});

test("a server that starts again is asked, and heard, again", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client });
  const k = key();
  await fill(three, k);
  await kill();
  await eventually(() => three.denials.size === 0, "forgetting");
  await eventually(async () => {
    const decision = await three.allow(k);
    return decision.granted > 0 && !decision.local;
  }, "its return");
  await three.reset(k);
  await fill(three, k);
  await admin.sendCommand(["SWLIMIT.REFUND", k, "1"]);
  assert.ok(await eventually(async () => (await three.allow(k)).granted));
});

test("a connection that nobody answers on is noticed while everything is denied without it", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, timeout: 20 });
  const k = key();
  await fill(three, k);
  const goOn = await pause(test);
  const began = performance.now();
  assert.equal((await three.allow(k)).local, true);
  await eventually(() => three.denials.size === 0, "forgetting");
  const took = performance.now() - began;
  assert.ok(took < 4000, `${took}`);
  goOn();
  await fill(three, k);
});

test("what the server says of its own condition is no reason to fail", async (test) => {
  const client = await connect(test, { of: "spare" });
  const ten = limiter(test, { client, limit: 10, whenAway: "allow" });
  await admin.sendCommand(["CONFIG", "SET", "maxmemory", "1"]);
  try {
    const decision = await ten.allow(key()); // OOM
    assert.deepEqual([decision.granted, decision.local], [1, true]);
  } finally {
    await admin.sendCommand(["CONFIG", "SET", "maxmemory", "0"]);
  }
  await admin.sendCommand(["REPLICAOF", "127.0.0.1", "1"]);
  try {
    assert.equal((await ten.allow(key())).local, true); // READONLY
  } finally {
    await admin.sendCommand(["REPLICAOF", "NO", "ONE"]);
  }
  assert.equal((await ten.allow(key())).local, false);
});

test("a reply that has come counts, however late this process looks", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, timeout: 20 });
  await three.allow(key());
  const asking = three.allow(key());
  await new Promise((resolve) => setImmediate(resolve)); // it has been sent
  const began = performance.now();
  while (performance.now() < began + 60);
  assert.equal((await asking).local, false);
});

for (const [name, open] of Object.entries({
  redis: (test) => connect(test, { of: "bare" }),
  ioredis: (test) => {
    const client = new Redis(port("bare"));
    test.after(() => client.disconnect());
    return client;
  },
})) {
  test(`a server without the module, with ${name}`, async (test) => {
    const three = limiter(test, { client: await open(test), whenAway: "allow" });
    const says = { name: "ModuleMissingError", message: /loadmodule .*swlimit\.so/ };
    await assert.rejects(three.allow("k"), says);
    await assert.rejects(three.acquire("k", "1s"), says);
    await assert.rejects(three.refund("k"), ModuleMissingError);
    await assert.rejects(allowAll([{ limiter: three, key: "k" }]), says);
  });
}
