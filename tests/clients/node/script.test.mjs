/** On servers without the module: found out, loaded, forgotten, and what the script has not. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Redis } from "ioredis";
import { admit, allowAll, BudgetLimiter, ModuleMissingError, NeedsModuleError } from "swlimit";
import { Dialect, ServerScripts, SHA } from "../../../src/clients/node/dist/esm/protocol/script-fallback.js";
import { HoldQueue, holdPoll } from "../../../src/clients/node/dist/esm/transport/hold-queue.js";
import {
  asModule,
  connect,
  eventually,
  holds,
  key,
  limiter,
  onDuplicate,
  port,
  sent,
  sleep,
  told,
} from "./support.mjs";

const RIGHT = { timeout: 20_000 };

test("the script is the one of src/server/script", () => {
  const script = readFileSync(new URL("../../../src/server/script/swlimit.lua", import.meta.url));
  assert.equal(SHA, createHash("sha1").update(script).digest("hex"));
});

for (const [name, open] of Object.entries({
  redis: (test) => connect(test),
  ioredis: async (test) => {
    const client = new Redis(port());
    test.after(() => client.disconnect());
    return client;
  },
  "a function": async (test) => {
    const client = await connect(test);
    return (args) => {
      assert.ok(args.every((word) => typeof word === "string"));
      return client.sendCommand(args);
    };
  },
})) {
  test(`every command, with ${name}`, async (test) => {
    const client = await open(test);
    const three = limiter(test, { client, ...RIGHT, limit: 2 ** 40, window: "1h", strict: true });
    const k = `{${key()}}`;
    assert.deepEqual(three.servers(), []);
    const first = await three.allow(k, { cost: 2 ** 33 + 1 });
    assert.equal(first.remaining, 2 ** 40 - 2 ** 33 - 1);
    assert.equal(three.servers()[0].backend, "script");
    assert.equal((await three.allow(k, { cost: 2 ** 40, partial: true })).granted, 2 ** 40 - 2 ** 33 - 1);
    assert.equal((await three.peek(k)).granted, 0);
    assert.equal(await three.refund(k, 5), 5);
    assert.equal((await three.record(k)).remaining, 4);
    assert.ok((await three.block(k, "1m")) > Date.now());
    assert.equal((await three.peek(k)).remaining, 0);
    assert.equal(await three.unblock(k), true);
    const both = await allowAll([
      { limiter: three, key: k },
      { limiter: three.with({ limit: 1 }), key: `${k}b` },
    ]);
    assert.deepEqual([both.granted, both.each.map(({ remaining }) => remaining)], [true, [3, 0]]);
    await three.reset(k);
    const plan = new BudgetLimiter({ client, ...RIGHT, limit: 10, period: "year" });
    test.after(() => plan.close());
    const parts = [
      { limiter: three, key: k },
      { limiter: plan, key: `${k}:plan`, cost: 7 },
    ];
    const admission = await admit(parts);
    assert.deepEqual([admission.granted, admission.each.map(({ granted }) => granted)], [true, [1, 7]]);
    assert.equal((await admit(parts)).granted, false);
    await admission.settle(1, 4);
    assert.equal((await plan.allow(`${k}:plan`)).remaining, 5);
    await three.reset(k);
    assert.equal((await three.allow(k)).remaining, 2 ** 40 - 1);
    assert.equal((await three.allow(k, { block: "1s", cost: 2 ** 41 })).never, true);
    assert.ok(
      (await three
        .with({ window: 8192, resolution: 1 })
        .allow(key())
        .catch((error) => error)) instanceof Error,
    );
  });
}

test("where the script may not ask for the time, this machine's clock decides", async (test) => {
  const admin = await connect(test);
  await admin.sendCommand(["ACL", "SETUSER", "timeless", "reset", "on", ">x", "~*", "&*", "+@all", "-time"]);
  const client = await connect(test, { username: "timeless", password: "x" });
  const three = limiter(test, { client, ...RIGHT, mode: "direct", window: "1h" });
  const [k, other] = ["{a}", "{b}"].map(key);
  test.mock.method(Date, "now", () => 4e12);
  assert.equal((await three.allow(k)).remaining, 2);
  assert.equal((await three.allow(k, { block: "1s", cost: 4 })).granted, 0);
  assert.equal(await three.block(other, "1m"), 4e12 + 60_000);
  assert.equal((await three.peek(k)).granted, 0);
  assert.equal((await allowAll([{ limiter: three, key: other }])).granted, false);
  const stored = await admin.sendCommand(["EVALSHA", SHA, "1", k, "INFO"]);
  assert.ok(4e12 - stored[stored.indexOf("newest") + 1] < 3_600_000);
  assert.equal(await three.refund(k), 1);
});

test("waits take turns within the process", async (test) => {
  const two = limiter(test, { client: await connect(test), ...RIGHT, limit: 1, window: 200, resolution: 10 });
  const k = key();
  const order = [];
  await Promise.all([1, 2, 3].map((number) => two.acquire(k, "5m").then(() => order.push(number))));
  assert.deepEqual(order, [1, 2, 3]);
});

test("who waits for its turn is answered when the limiter is closed", async (test) => {
  const one = limiter(test, { client: await connect(test), ...RIGHT, limit: 1, window: "1h" });
  const k = key();
  await one.allow(k);
  const waiting = [1, 2].map(() => one.acquire(k, "2h"));
  await eventually(() => one.statistics.server + one.statistics.cache >= 2);
  await one.close();
  for (const decision of await Promise.all(waiting)) assert.equal(decision.granted, 0);
});

test("it is found out once a connection, and again for another server", async (test) => {
  const client = await connect(test, { of: "spare" });
  const commands = sent(client);
  const three = limiter(test, { client, ...RIGHT, mode: "direct" });
  const k = key();
  for (let i = 0; i < 5; i++) await three.allow(k);
  assert.equal(commands.filter(([name]) => name === "SWLIMIT.ALLOW").length, 1);
  assert.equal(commands.at(-1)[0], "EVALSHA");
  const other = await connect(test, { of: "module" });
  await other.sendCommand(["SCRIPT", "FLUSH"]);
  const { sendCommand } = other;
  client.sendCommand = (...args) => sendCommand.apply(other, args);
  assert.equal((await three.allow(k)).granted, 1, "it counts there");
  assert.equal(three.servers()[0].backend, "module");
  assert.deepEqual(told(await three.allow(k)), { granted: 1, limit: 3, remaining: 1, source: "server" });
  const back = await connect(test, { of: "spare" });
  client.sendCommand = (...args) => back.sendCommand(...args);
  assert.equal((await three.peek(k)).remaining, 0);
  assert.equal(three.servers()[0].backend, "script");
});

test("always the module, never the module", async (test) => {
  const always = limiter(test, { client: await connect(test), ...RIGHT, module: "always" });
  await assert.rejects(always.allow("k"), ModuleMissingError);
  const client = await connect(test, { of: "module" });
  const commands = sent(client);
  const never = limiter(test, { client, ...RIGHT, module: "never", mode: "direct" });
  const k = key();
  assert.equal((await never.allow(k)).granted, 1);
  assert.equal(await client.sendCommand(["TYPE", k]), "string");
  assert.ok(commands.every(([name]) => !name.startsWith("SWLIMIT")));
  assert.throws(() => limiter(test, { client, module: "sometimes" }), /module must be one of/);
});

test("a module that is loaded later is noticed by what the script has not", async () => {
  let hasModule = false;
  const sent = [];
  const dialect = new Dialect(
    async ([name]) => {
      sent.push(name);
      if (name.startsWith("SWLIMIT.") && !hasModule) throw new Error(`ERR unknown command '${name}'`);
      return 1;
    },
    true,
    new ServerScripts({}),
  );
  const demand = { limit: 2, window: 60_000, resolution: 5000, cost: 1, partial: false, strict: false };
  const acquire = { name: "ACQUIRE", key: "k", demand, timeout: 0 };
  await dialect.ask({ name: "UNBLOCK", key: "k" }, "auto");
  for (let i = 0; i < 2; i++) await assert.rejects(dialect.ask(acquire, "auto"), /SWLIMIT.ACQUIRE needs the module/);
  const found = ["SWLIMIT.UNBLOCK", "SWLIMIT.PEEK", "EVALSHA"]; // an old module would know PEEK
  assert.deepEqual(sent.splice(0), [...found, "SWLIMIT.ACQUIRE", "SWLIMIT.ACQUIRE"]);
  hasModule = true;
  await assert.rejects(dialect.ask(acquire, "never"), NeedsModuleError);
  assert.equal(await dialect.ask(acquire, "auto"), 1);
  assert.equal(dialect.backend, "module");
  assert.deepEqual(sent, ["SWLIMIT.ACQUIRE"]);
});

test("a server that is full grants no hold, and is noticed to be back", async (test) => {
  const client = await connect(test, { of: "spare" });
  const many = holds(test, { client, ...RIGHT, limit: 1e6, onFailure: "deny" });
  const k = key();
  const isAway = () => many.servers()[0].state === "unavailable";
  await many.hold(k);
  const admin = await connect(test, { of: "spare" });
  await admin.sendCommand(["CONFIG", "SET", "maxmemory", "1"]);
  try {
    await eventually(async () => (await many.hold(k)).source === "failure" && isAway());
    for (let i = 0; i < 20; i++, await sleep(50)) assert.ok(isAway(), "whatever is probed");
    assert.equal(many.servers()[0].reason, "OOM");
  } finally {
    await admin.sendCommand(["CONFIG", "SET", "maxmemory", "0"]);
  }
  await eventually(async () => (await many.hold(k)).source === "server", "its return");
});

/** Have waits for holds go on until something wakes them, instead of the next poll; the keys that are waited for. */
function neverPoll(test) {
  const { changed } = HoldQueue.prototype;
  const waiting = [];
  test.mock.method(HoldQueue.prototype, "changed", function (k, _, signal) {
    const change = changed.call(this, k, 3_600_000, signal);
    waiting.push(k);
    return change;
  });
  return waiting;
}

for (const [name, end] of Object.entries({
  released: (admission) => admission.release(),
  settled: (one) => one.settle(),
}))
  test(`who waits for a hold asks at once when this process has ${name} one`, async (test) => {
    const waits = neverPoll(test);
    const client = await connect(test);
    const one = holds(test, { client });
    const k = key();
    const first = await admit([{ limiter: one, key: k }]);
    const waiting = one.hold(k, { wait: "1h" });
    await eventually(() => waits.length === 1, "the wait");
    await one.hold(key(), {}, async () => {}); // whose release is nothing to who waits
    await end(first);
    const second = await waiting;
    assert.equal(second.granted, 1);
    const controller = new AbortController();
    const third = one.hold(k, { wait: "1h", signal: controller.signal });
    await eventually(() => waits.length === 2, "the next wait");
    await second.release();
    assert.deepEqual(await one.holders(k), [], "every second one is left to other processes");
    controller.abort(new Error("mine"));
    await assert.rejects(third, /mine/);
  });

test("who waits for a hold asks at once when the server announces that the key has changed", async (test) => {
  const waits = neverPoll(test);
  const client = await connect(test);
  const connections = [];
  onDuplicate(client, (made) => connections.push([made, sent(made)]));
  const k = key();
  const denied = limiter(test, { client, ...RIGHT, limit: 1, window: "1h", maxUntrackedAge: 0, prefix: "rate:" });
  await eventually(async () => (await denied.allow(k)).source === "cache", "client tracking");
  const [one, other] = [holds(test, { client }), holds(test, { client: await connect(test) })];
  const first = await other.hold(k);
  const waiting = one.hold(k, { wait: "1h" });
  const [[tracking, commands]] = connections;
  await eventually(() => waits.length === 1, "the wait");
  assert.ok(commands.some((words) => asModule(words)[0] === "SWLIMIT.HOLDERS"));
  await tracking.sendCommand(["PING"]); // which is answered after that
  await first.release();
  assert.equal((await waiting).granted, 1);
});

test("who waits for a hold asks again after 20 to 60 ms, or when it may fit", () => {
  const drawn = Array.from({ length: 1000 }, () => holdPoll(30_000));
  assert.ok(drawn.every((ms) => ms >= 20 && ms < 60) && new Set(drawn).size > 100);
  assert.ok(Array.from({ length: 1000 }, () => holdPoll(30)).every((ms) => ms >= 20 && ms <= 30));
  assert.equal(holdPoll(3), 3);
});
