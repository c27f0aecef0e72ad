/** While the server is away: who decides, how long that takes, and how it is noticed that it is back. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { allowAll, HoldLimiter, ModuleMissingError, RefusedError, UnavailableError } from "swlimit";
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

/** Pause the server, until the test ends or says to go on. */
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

/** Use a key up, whose limiter may have no patience with a busy machine, and have that remembered. */
async function fill(three, k) {
  await admin.sendCommand(["SWLIMIT.RECORD", k, "3", "10s", "1s", "COST", "3"]);
  await eventually(async () => (await three.allow(k)).source === "cache");
}

for (const [onFailure, granted] of [
  ["allow", [1, 1, 1, 1]],
  ["deny", [0, 0, 0, 0]],
  ["local", [1, 0, 0, 0]],
]) {
  test(`a paused server: ${onFailure}`, async (test) => {
    const client = await connect(test, { of: "spare" });
    const ten = limiter(test, { client, onFailure, limit: 10, timeout: 200 });
    const k = key();
    assert.equal((await ten.allow(k)).source, "server");
    const goOn = await pause(test);
    const decisions = [];
    const { breaker } = ten.core.server(k);
    for (let i = 0; i < granted.length; i++) {
      assert.equal(breaker.isOpen, i === 3, "three are waited for"); // and of the fourth, nobody is asked
      const [decision, took] = await timed(ten.allow(k));
      decisions.push(decision);
      assert.ok(i === 3 || took >= 100, `${i}: ${took}`);
    }
    assert.deepEqual(
      decisions.map((decision) => decision.granted),
      granted,
    );
    assert.ok(decisions.every(({ source }) => source !== "server"));
    assert.equal(ten.statistics.failure, 4);
    goOn();
    await eventually(async () => (await ten.allow(k)).source === "server", "its return");
    const { failure } = ten.statistics;
    assert.equal((await ten.allow(k)).source, "server");
    assert.equal(ten.statistics.failure, failure);
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

test("one at a time asks whether the server is back, with a write that leaves no trace", async (test) => {
  const client = await connect(test, { of: "spare" });
  const sent = [];
  const ten = limiter(test, {
    client: (args) => {
      sent.push({ args, at: performance.now() });
      return client.sendCommand(args);
    },
    timeout: 20,
  });
  const goOn = await pause(test);
  for (let i = 0; i < 50; i++) await ten.allow("k");
  const probes = () => sent.filter(({ args }) => args[2] === "0");
  await eventually(() => probes().length === 2, "a second probe");
  const [first, second] = probes();
  const asked = sent.length - 2; // a busy machine may take 60 ms for two: then nothing was heard for three timeouts
  assert.ok(asked === 2 || asked === 3, `${asked} were waited for`);
  assert.ok(second.at - first.at >= 500, `the first was given up after ${second.at - first.at} ms`);
  for (const { args } of probes()) assert.deepEqual(args, ["SWLIMIT.ALLOW", "k", "0", "1ms", "1ms"]);
  goOn();
  await eventually(async () => (await ten.allow("k")).source === "server", "its return");
});

for (const [what, open] of Object.entries({
  redis: (test) => connect(test, { of: "spare" }),
  ioredis: (test) => {
    const client = new Redis(port("spare"));
    client.on("error", () => {});
    test.after(() => client.disconnect());
    return client;
  },
})) {
  test(`a client that nobody answers any more is replaced: ${what}`, async (test) => {
    const client = await open(test);
    const ten = limiter(test, { client, limit: 1000, timeout: 30 });
    const k = key();
    await eventually(async () => (await ten.allow(k)).source === "server", "its connection");
    // Its connection is half open: what it sends is lost, and it does not know.
    const silent = () => new Promise(() => {});
    if (client.call) {
      const { call } = Redis.prototype;
      test.mock.method(Redis.prototype, "call", function (...words) {
        return this.options.retryStrategy ? silent() : call.apply(this, words); // a new one has none
      });
    } else client.sendCommand = silent;
    for (let i = 0; i < 3; i++) assert.equal((await ten.allow(k)).source, "failure");
    await eventually(async () => (await ten.allow(k)).source === "server", "its return");
    assert.equal(ten.statistics.server > 1, true);
  });
}

test("what is unanswered while nothing is heard counts, however few ask", async (test) => {
  const client = await connect(test, { of: "spare" });
  const ten = limiter(test, { client, timeout: 20 });
  await ten.allow("k");
  await pause(test);
  await ten.allow("k");
  const { breaker } = ten.core.server("k");
  await eventually(() => breaker.isOpen, "its opening");
  assert.match(breaker.opened.message, /nothing received/);
});

test("a reply that comes late closes nothing", async (test) => {
  const answers = [];
  const client = () => new Promise((resolve) => answers.push(() => resolve([1, 3, 2, 0, 1000])));
  const three = limiter(test, { client, timeout: 5 });
  const { breaker } = three.core.server("k");
  for (let i = 0; i < 3; i++) assert.equal((await three.allow("k")).source, "failure");
  assert.equal(breaker.isOpen, true);
  for (const answer of answers) answer();
  await sleep(1);
  assert.equal(breaker.isOpen, true);
});

test("a server whose replies come late is slow, and not unavailable", async (test) => {
  let answer;
  const client = () => new Promise((resolve) => (answer = () => resolve([1, 3, 2, 0, 1000])));
  const three = limiter(test, { client, timeout: 5 });
  for (let i = 0; i < 4; i++) {
    assert.equal((await three.allow("k")).source, "failure");
    answer();
    await sleep(1);
  }
  const [{ state, reason }] = three.servers();
  assert.deepEqual([state, reason], ["slow", "slow"]);
});

test("a caller's deadline says nothing about the server", async (test) => {
  let answer = () => {};
  const client = () =>
    new Promise((resolve) => {
      answer = () => resolve([1, 3, 2, 0, 1000]);
    });
  const three = limiter(test, { client, timeout: 20_000 });
  for (let i = 0; i < 5; i++) {
    const [decision, took] = await timed(three.allow("k", { deadline: 10 }));
    assert.equal(decision.source, "failure");
    assert.ok(took >= 4, `${took}`);
    answer();
  }
  assert.equal((await three.allow("k", { deadline: 1 })).source, "failure");
  assert.equal(three.core.server("k").breaker.isOpen, false);
  const patient = three.allow("k", { deadline: 20_000 });
  answer();
  assert.equal((await patient).source, "server");
});

test("errors that are the server's count, and those that are the caller's do not", async (test) => {
  for (const [message, counts, wasServed] of [
    ["NOAUTH Authentication required.", true],
    ["WRONGPASS invalid username-password pair", true],
    ["ERR max number of clients reached", true],
    ["LOADING Redis is loading the dataset in memory", true],
    ["MASTERDOWN Link with MASTER is down", true],
    ["READONLY You can't write against a read only replica.", true],
    ["MISCONF Errors writing to the AOF file", true],
    ["OOM command not allowed when used memory > 'maxmemory'.", true],
    ["NOREPLICAS Not enough good replicas to write.", true],
    ["CLUSTERDOWN The cluster is down", true],
    ["BUSY Redis is busy running a script.", true],
    ["TRYAGAIN Multiple keys request during rehashing of slot", true, "after it was served"],
    ["connect ECONNREFUSED 127.0.0.1:6379", true],
    ["WRONGTYPE Operation against a key holding the wrong kind of value", false],
    ["NOPERM this user has no permissions", false],
    ["ERR limit must be an integer", false],
  ]) {
    let reply = async () => [1, 3, 2, 0, 1000];
    const three = limiter(test, { client: () => reply() });
    if (wasServed) await three.allow("k"); // before, the error says which client to use
    reply = () => Promise.reject(new Error(message));
    for (let i = 0; i < 3; i++) {
      if (counts) assert.equal((await three.allow("k")).source, "failure", message);
      else await assert.rejects(three.allow("k"), RefusedError);
    }
    assert.equal(three.core.server("k").breaker.isOpen, counts, message);
  }
});

test("a module that has been there is away, and not missing", async (test) => {
  let reply = () => Promise.reject(new Error("ERR unknown command 'SWLIMIT.ALLOW'"));
  const three = limiter(test, { client: () => reply() });
  await assert.rejects(three.allow("k"), ModuleMissingError);
  const missing = reply;
  reply = async () => [1, 3, 2, 0, 1000];
  await three.allow("k");
  reply = missing;
  assert.equal((await three.allow("k")).source, "failure");
});

test("onFailure: error", async (test) => {
  const three = limiter(test, { client: () => Promise.reject(new Error("gone")), onFailure: "error" });
  await assert.rejects(three.allow("k"), UnavailableError);
  await assert.rejects(allowAll([{ limiter: three, key: "k" }]), UnavailableError);
});

test("what is unknown is not made up", async (test) => {
  const made = (onFailure) => limiter(test, { client: () => Promise.reject(new Error("gone")), onFailure });
  const open = await made("allow").allow("k");
  assert.deepEqual([open.granted, open.remaining, open.retryAfter, open.resetAfter], [1, undefined, 0, undefined]);
  const closed = await made("deny").allow("k");
  assert.deepEqual([closed.granted, closed.remaining, closed.retryAfter], [0, undefined, undefined]);
  assert.deepEqual(closed.headers({ legacy: true }), { "RateLimit-Policy": '"default";q=3;w=10' });
});

test("a record that nobody answers fails, or is kept and sent later", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, timeout: 20, limit: 100, window: "1h", resolution: "1m" });
  const [k, other] = [key(), key()];
  await three.allow(k);
  const goOn = await pause(test);
  await assert.rejects(three.record(other, { cost: 5 }), UnavailableError);
  for (let i = 0; i < 5; i++) assert.equal((await three.record(k, { cost: 7, keep: true })).source, "failure");
  goOn();
  await eventually(async () => (await admin.sendCommand(["SWLIMIT.PEEK", k, "100", "1h", "1m"]))[2] <= 100 - 36);
  await sleep(50);
  assert.equal((await admin.sendCommand(["SWLIMIT.PEEK", k, "100", "1h", "1m"]))[2], 100 - 36, "each of them once");
  assert.equal(three.statistics.lost, 0);
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
  const made = (onFailure) => limiter(test, { client, timeout: 300, onFailure, prefix: `${key()}:` });
  const [open, closed, own] = ["allow", "deny", "local"].map(made);
  const full = key();
  await admin.sendCommand(["SWLIMIT.RECORD", open.settings.prefix + full, "3", "10s", "1s", "COST", "3"]);
  const waiting = open.acquire(full, "2s");
  await sleep(50);
  await pause(test);
  assert.equal((await open.acquire(key(), "10s")).granted, 1);
  assert.equal((await closed.acquire(key(), "10s")).granted, 0);
  const all = async (...limiters) => (await allowAll(limiters.map((limiter) => ({ limiter, key: "k" })))).granted;
  assert.deepEqual([await all(open, own), await all(open, own), await all(open, closed)], [true, false, false]);
  assert.deepEqual([own.statistics.failure, closed.statistics.failure], [2, 2]);
  const [decision] = await timed(waiting);
  assert.deepEqual([decision.granted, decision.source], [0, "server"], "it had nothing to hope for");
});

const isWaiting = async () => /swlimit_waiting:1\b/.test(await admin.sendCommand(["INFO", "swlimit"]));

for (const onFailure of ["deny", "error", "local"]) {
  test(`a wait outlasts a restart of the server, by itself and as a hold: ${onFailure}`, async (test) => {
    const client = await connect(test, { of: "spare" });
    // Of limit 0 no share is granted in this process.
    const none = limiter(test, { client, onFailure, limit: 1, window: "1h", timeout: 500 });
    const holds = new HoldLimiter({ client, onFailure, limit: 1, ttl: "10m", timeout: 500 });
    test.after(() => holds.close());
    for (const isHold of [false, true]) {
      const k = key();
      const fill = () =>
        isHold
          ? admin.sendCommand(["SWLIMIT.HOLD", k, "1", "10m", "another"])
          : admin.sendCommand(["SWLIMIT.RECORD", k, "1", "1h", "5m"]);
      await fill();
      if (onFailure === "local")
        isHold ? holds.heldHere("failure", holds.request(k, {})) : none.window(k).allow(none.demand({}), Date.now(), 0);
      const waiting = isHold ? holds.hold(k, { wait: "60s" }) : none.acquire(k, "2h");
      await eventually(isWaiting, "its wait");
      await kill();
      const { granted, source } = await waiting;
      assert.deepEqual([granted, source], [1, "server"]);
      await eventually(async () => (await none.allow(key())).source === "server", "its return");
    }
  });
}

test("what was kept is sent while a limiter is closed, if the server is back in time, and else said to be lost", async (test) => {
  for (const isBack of [true, false]) {
    const client = await connect(test, { of: "spare" });
    const three = limiter(test, { client, timeout: 20, limit: 100, window: "1h", resolution: "1m" });
    const k = key();
    await three.allow(k);
    const warnings = [];
    const warned = ({ code, message }) => code === "SWLIMIT_LOST" && warnings.push(message);
    process.on("warning", warned);
    const goOn = await pause(test);
    for (let i = 0; i < 5; i++) await three.record(k, { cost: 7, keep: true });
    const closing = three.close();
    if (isBack) goOn();
    await closing;
    await new Promise((resolve) => setImmediate(resolve));
    process.off("warning", warned);
    if (isBack) {
      await eventually(async () => (await admin.sendCommand(["SWLIMIT.PEEK", k, "100", "1h", "1m"]))[2] === 100 - 36);
      assert.deepEqual(warnings, []);
    } else {
      const [, units] = /^(\d+) units of 1 keys/.exec(warnings[0] ?? "") ?? [];
      assert.ok(Number(units) > 0 && Number(units) % 7 === 0, `${warnings}`);
      assert.equal(three.statistics.lost, Number(units) / 7);
      goOn();
    }
  }
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
    return decision.granted > 0 && decision.source === "server";
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
  assert.equal((await three.allow(k)).source, "cache");
  await eventually(() => three.denials.size === 0, "forgetting");
  goOn();
  await fill(three, k);
});

test("what the server says of its own condition is no reason to fail", async (test) => {
  const client = await connect(test, { of: "spare" });
  const ten = limiter(test, { client, limit: 10, onFailure: "allow" });
  await admin.sendCommand(["CONFIG", "SET", "maxmemory", "1"]);
  try {
    const decision = await ten.allow(key()); // OOM
    assert.deepEqual([decision.granted, decision.source], [1, "failure"]);
  } finally {
    await admin.sendCommand(["CONFIG", "SET", "maxmemory", "0"]);
  }
  await admin.sendCommand(["REPLICAOF", "127.0.0.1", "1"]);
  try {
    assert.equal((await ten.allow(key())).source, "failure"); // READONLY
  } finally {
    await admin.sendCommand(["REPLICAOF", "NO", "ONE"]);
  }
  await eventually(async () => (await ten.allow(key())).source === "server", "its return");
});

test("a reply that has come counts, however late this process looks", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, timeout: 50 });
  const asking = three.allow(key());
  await new Promise((resolve) => setImmediate(resolve)); // it has been sent
  const began = performance.now();
  while (performance.now() < began + 400);
  assert.equal((await asking).source, "server");
});

test("time that this process takes before it writes is not the server's", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, timeout: 300 });
  const asking = three.allow(key());
  const began = performance.now();
  while (performance.now() < began + 400); // nothing has been sent yet
  assert.equal((await asking).source, "server");
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
    const three = limiter(test, { client: await open(test), onFailure: "allow", module: "always" });
    const says = { name: "ModuleMissingError", message: /loadmodule .*swlimit\.so/ };
    await assert.rejects(three.allow("k"), says);
    await assert.rejects(three.acquire("k", "1s"), says);
    await assert.rejects(three.refund("k"), ModuleMissingError);
    await assert.rejects(allowAll([{ limiter: three, key: "k" }]), says);
  });
}
