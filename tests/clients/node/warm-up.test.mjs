/** Limits that rise after idleness. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit, allowAll, Limiter } from "swlimit";
import { STEPS, WarmingKeys, WarmUp } from "../../../src/clients/node/dist/esm/core/warm-up.js";
import { DenialCache } from "../../../src/clients/node/dist/esm/limiters/denial-cache.js";
import { asModule, connect, eventually, key, limiter, sent, vectors } from "./support.mjs";

const { limits, steps, shown, waits, refused, traces } = vectors("warm_up");

test("the functions are those of the vectors", () => {
  for (const { limit, cold, limits: expected } of limits) {
    const warmUp = new WarmUp(1000, cold);
    assert.deepEqual(
      Array.from({ length: STEPS + 1 }, (_, step) => warmUp.limit(limit, step)),
      expected,
    );
  }
  for (const { warm_up, t, step, next } of steps) {
    const warmUp = new WarmUp(warm_up, 3);
    assert.deepEqual([warmUp.step(t), step < STEPS ? warmUp.begins(step + 1) - t : null], [step, next]);
  }
  for (const { warm_up, cold, limit, used, t } of shown) {
    assert.equal(new WarmUp(warm_up, cold).shown(limit, used), t, `${limit} ${used}`);
  }
  for (const { warm_up, cold, limit, t, cost, retry_after } of waits) {
    assert.equal(new WarmUp(warm_up, cold).wait(t, limit, cost), retry_after);
  }
  for (const { window, warm_up, cold, error } of refused) {
    const make = () => WarmUp.of(warm_up, cold, window);
    if (error) assert.throws(make, { name: "RangeError", message: error.replace("warm_up", "warmUp") });
    else assert.equal(make().period, warm_up);
  }
});

for (const { name, limit, warm_up, cold, quiet, events } of traces) {
  test(`processes that share a key know how warm it is: ${name}`, () => {
    const processes = Array.from({ length: 3 }, () => new WarmingKeys(new WarmUp(warm_up, cold), 10));
    for (const { process, now, ask, look, fed, state } of events) {
      const keys = processes[process];
      if (ask !== undefined) assert.equal(keys.limit("k", limit, quiet, now), ask);
      else if (look !== undefined) assert.equal(keys.looks("k"), look);
      else keys.heard("k", limit, fed[0], fed[1], fed[2], now);
      if (state) {
        const { t, at, looked } = keys.state("k");
        assert.deepEqual([t, at, looked], state);
      }
    }
  });
}

const HOUR = 3_600_000;

/** The limiter's clock runs ahead by so many ms, which the test sets. */
function movedClock(test) {
  const { now } = performance;
  const clock = { ahead: 0 };
  performance.now = () => now.call(performance) + clock.ahead;
  test.after(() => {
    performance.now = now;
  });
  return clock;
}

function warming(options = {}) {
  return new Limiter({ limit: 120, window: "1h", warmUp: "10h", ...options });
}

/** Ask until it is denied: how many units were granted, and the limit of the denial. */
async function saturate(limiter, k = "k") {
  for (let granted = 0; ; granted++) {
    const decision = await limiter.allow(k);
    if (decision.granted === 0) return [granted, decision.limit];
  }
}

function limitAt(hours, limit = 120) {
  return new WarmUp(10 * HOUR, 3).limit(limit, 2 * hours);
}

test("it rises in steps, and begins again after idleness", async (test) => {
  const clock = movedClock(test);
  const limiter = warming();
  for (let hours = 0; hours < 11; hours += 0.5) {
    clock.ahead = hours * HOUR + 1000;
    assert.equal((await saturate(limiter))[1], limitAt(hours));
  }
  clock.ahead += 1.2 * HOUR;
  assert.deepEqual(await saturate(limiter), [40, 40]);
  assert.deepEqual(await saturate(warming({ cold: 1.5 })), [80, 80]);
});

test("another limit of the same keys warms up, too", async (test) => {
  const clock = movedClock(test);
  const limiter = warming();
  assert.equal((await limiter.with({ limit: 30 }).allow("k")).limit, 10);
  clock.ahead = 0.5 * HOUR + 1000;
  assert.equal((await limiter.with({ limit: 1200 }).peek("k")).limit, limitAt(0.5, 1200));
  assert.throws(() => limiter.with({ window: "2h" }), /at least ten times/);
});

test("a cost above the moment's limit waits until that has risen", async (test) => {
  const clock = movedClock(test);
  const limiter = warming();
  const denied = await limiter.allow("k", { cost: 60 });
  assert.equal(denied.granted, 0);
  for (clock.ahead = HOUR; clock.ahead < denied.retryAfter; clock.ahead += HOUR) {
    assert.equal((await limiter.allow("k", { cost: 60 })).granted, 0);
  }
  clock.ahead = denied.retryAfter;
  assert.equal((await limiter.allow("k", { cost: 60 })).granted, 60);
  assert.equal((await limiter.allow("k", { cost: 121 })).never, true);
});

test("a denial waits even if the limit has risen since it was asked", async (test) => {
  const clock = movedClock(test);
  const client = await connect(test);
  const slow = async (words) => {
    const reply = await client.sendCommand(words);
    if (words[0] !== "INFO") clock.ahead += slowness;
    return reply;
  };
  const options = { limit: 120, window: "1h", resolution: "5m", warmUp: "10h", timeout: "1d" };
  const [limit, k] = [limiter(test, { ...options, client: slow }), key()];
  let slowness = 0;
  await limit.peek(k);
  slowness = 9.9 * HOUR;
  const { granted, retryAfter } = await limit.peek(k, { cost: 60 });
  assert.deepEqual([granted, retryAfter], [0, 1]);
});

test("the newest keys are remembered, and a reset forgets one", async () => {
  const limiter = warming({ maxKeys: 16 });
  for (let i = 0; i < 100; i++) await limiter.allow(`${i}`);
  assert.equal(limiter.warming.size, 16);
  await limiter.reset("99");
  assert.equal(limiter.warming.size, 15);
});

test("several limits: each is as warm as its key", async () => {
  const shares = [
    { limiter: warming(), key: "a" },
    { limiter: new Limiter({ limit: 50, window: "1h" }), key: "b" },
  ];
  for (let i = 0; i < 40; i++) assert.ok((await allowAll(shares)).granted);
  const { granted, each } = await allowAll(shares);
  assert.deepEqual([granted, each.map(({ limit }) => limit)], [false, [40, 50]]);
});

test("what is wrong, and what does not go with it", async () => {
  for (const [options, error] of [
    [{ warmUp: "9h" }, /^RangeError: warmUp must be at least ten times the window$/],
    [{ cold: 1 }, /^RangeError: cold must be above 1 and at most 1000$/],
    [{ cold: "3" }, /^RangeError: cold/],
    [{ warmUp: undefined, cold: 3 }, /^TypeError: cold needs warmUp$/],
    [{ warm_up: "10h" }, /is called warmUp/],
  ]) {
    assert.throws(() => warming(options), error);
  }
  const limiter = warming();
  await assert.rejects(limiter.acquire("k", "1s"), /^TypeError: warmUp does not go with acquire$/);
  await assert.rejects(limiter.allow("k", { block: "1m" }), /^TypeError: warmUp does not go with block$/);
  await assert.rejects(limiter.record("k", { block: "1m" }), /^TypeError: warmUp does not go with block$/);
  await assert.rejects(admit([{ limiter, key: "k" }]), /^TypeError: warmUp does not go with admit$/);
});

for (const [mode, module] of [
  ["direct", "auto"],
  ["cached", "auto"],
  ["cached", "never"],
]) {
  test(`who joins late is as warm: ${mode}, the module: ${module}`, async (test) => {
    // With a client of its own, a limiter knows as little of others as one of another process.
    const [first, late] = [await connect(test), await connect(test)].map((client) =>
      limiter(test, { client, limit: 120, window: "1h", resolution: "5m", warmUp: "10h", mode, module }),
    );
    const k = key();
    await first.record(k, { cost: 120 });
    assert.deepEqual(await saturate(late, k), [0, 120]);
    assert.equal(late.statistics.server, 2);
    assert.equal(late.servers()[0].backend, module === "never" ? "script" : "module");
  });
}

test("a cost above the moment's limit is asked for", async (test) => {
  const client = await connect(test);
  const limit = limiter(test, { client, limit: 120, window: "1h", resolution: "5m", warmUp: "10h" });
  const k = key();
  const sources = [];
  for (const cost of [60, 60, 121]) sources.push((await limit.allow(k, { cost })).source);
  assert.deepEqual(sources, ["server", "server", "cache"]);
});

test("a request whose time is over does not look", async (test) => {
  const clock = movedClock(test);
  const client = await connect(test);
  const found = sent(client);
  const slow = async (words) => {
    const reply = await client.sendCommand(words);
    clock.ahead += 1000;
    return reply;
  };
  const options = { limit: 120, window: "1h", resolution: "5m", warmUp: "10h", timeout: "1s", mode: "direct" };
  const [late, k] = [limiter(test, { ...options, client: slow }), key()];
  await limiter(test, { ...options, client: await connect(test) }).record(k, { cost: 120 });
  assert.equal((await late.allow(k)).limit, 40);
  assert.equal((await allowAll([{ limiter: late, key: k }])).each[0].limit, 40);
  assert.deepEqual(
    found.map((words) => asModule(words)[0]).filter((name) => name === "SWLIMIT.PEEK"),
    [],
  );
});

test("who joins late with several limits is as warm", async (test) => {
  const client = await connect(test);
  const options = { client, limit: 120, window: "1h", resolution: "5m" };
  const [late, other] = [limiter(test, { ...options, warmUp: "10h" }), limiter(test, options)];
  const k = key();
  await limiter(test, { ...options, client: await connect(test) }).record(k, { cost: 120 });
  const shares = [
    { limiter: late, key: k },
    { limiter: other, key: key() },
  ];
  assert.equal((await allowAll(shares)).each[0].limit, 120);
});

test("a denial is looked into once in a step, and remembered until the limit rises", async (test) => {
  const clock = movedClock(test);
  const client = await connect(test);
  const found = sent(client);
  const asked = (name) => found.filter((words) => asModule(words)[0] === `SWLIMIT.${name}`).length;
  const limit = limiter(test, { client, limit: 120, window: "1h", resolution: "5m", warmUp: "10h" });
  const k = key();
  assert.deepEqual(await saturate(limit, k), [40, 40]);
  await eventually(async () => (await limit.allow(k)).source === "cache", "a local denial");
  const [allowed, looked] = [asked("ALLOW"), asked("PEEK")];
  assert.equal(looked, 1);
  assert.equal((await limit.allow(k)).source, "cache");
  clock.ahead = HOUR;
  assert.deepEqual(await saturate(limit, k), [1, 41]);
  assert.deepEqual([asked("ALLOW"), asked("PEEK")], [allowed + 2, looked + 1]);
});

test("a known denial covers lower limits", async (test) => {
  const [denials, k] = [new DenialCache(10), key()];
  const demand = { limit: 100, window: 60_000, resolution: 5000, strict: false, cost: 3, partial: false };
  const rising = { ...demand, fullLimit: 120 };
  denials.remember(k, rising, denials.snapshot(k), [0, 100, 2, 9000, 9000], 0, 9000);
  test.after(() => denials.forgetAll());
  assert.deepEqual(denials.find(k, { ...rising, limit: 99 }, false).slice(0, 3), [0, 99, 1]);
  for (const other of [
    { ...rising, limit: 101 },
    { ...rising, limit: 99, cost: 2 },
    { ...demand, limit: 99 },
    { ...rising, limit: 99, strict: true },
  ]) {
    assert.equal(denials.find(k, other, false), undefined);
  }
});

for (const onFailure of ["error", "allow", "local"]) {
  test(`what the server has denied stays denied where it is asked again without an answer: ${onFailure}`, async (test) => {
    const client = await connect(test);
    const unanswered = (words) =>
      /(M?ALLOW|EVALSHA)$/.test(words[0]) && words.includes("120")
        ? Promise.reject(new Error("LOADING the data"))
        : client.sendCommand(words);
    const k = key();
    const options = { limit: 120, window: "1h", resolution: "5m", mode: "direct" };
    await limiter(test, { ...options, client, warmUp: "10h" }).record(k, { cost: 120 });
    for (const ask of [
      (late) => late.allow(k),
      async (late, other) =>
        (
          await allowAll([
            { limiter: late, key: k },
            { limiter: other, key: `{${k}}` },
          ])
        ).each[0],
    ]) {
      const all = { ...options, client: unanswered, onFailure };
      const [late, other] = [limiter(test, { ...all, warmUp: "10h" }), limiter(test, { ...all, limit: 1000 })];
      const { granted, limit, source } = await ask(late, other);
      assert.deepEqual([granted, limit, source, late.statistics.failure], [0, 40, "server", 0]);
    }
  });
}

test("while the server is away, it goes on by the clock", async (test) => {
  const clock = movedClock(test);
  const away = () => Promise.reject(new Error("away"));
  const limit = limiter(test, {
    client: away,
    limit: 120,
    window: "1h",
    resolution: "5m",
    warmUp: "10h",
    localShare: 1,
  });
  for (let hours = 0; hours < 11; hours += 0.5) {
    clock.ahead = hours * HOUR + 1000;
    const { source, limit: of } = await limit.allow("k");
    assert.deepEqual([source, of], ["failure", limitAt(hours)]);
  }
});
