/** What tests of programs that limit use. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit, allowAll, BudgetLimiter, HoldLimiter, Limiter, Limits } from "swlimit";
import { FakeLimiter, TestClock } from "swlimit/testing";
import { connect, key, limiter, told } from "./support.mjs";

/** The clocks and timers that vitest, jest and node:test fake stand still. */
function freeze(test) {
  test.mock.timers.enable({ apis: ["Date", "setTimeout", "setInterval", "setImmediate"] });
  test.mock.method(performance, "now", () => 0);
}

test("a limiter on a clock that the test moves, whatever else is frozen", async (test) => {
  freeze(test);
  const clock = new TestClock();
  const three = clock.limiter({ limit: 3, window: "1m", resolution: "5s" });
  assert.deepEqual(told(await three.allow("k", { cost: 3 })), { granted: 3, limit: 3, remaining: 0, source: "local" });
  const denied = await three.allow("k", { cost: 3 });
  assert.deepEqual([denied.granted, denied.retryAfter, denied.resetAfter], [0, 65_000, 65_000]);
  clock.advance(64_999);
  assert.equal((await three.peek("k", { cost: 3 })).retryAfter, 1);
  clock.advance("1ms");
  assert.equal((await three.allow("k")).granted, 1);
  assert.equal(clock.now.toISOString(), "2026-01-01T00:01:05.000Z");
  assert.equal((await three.record("k", { cost: 2, age: "1s" })).remaining, 0);
  assert.equal((await three.with({ limit: 9 }).allow("k")).remaining, 5);
  assert.equal(await three.refund("k", 9), 4);
});

test("a wait is over at once, and has moved the clock", async (test) => {
  freeze(test);
  const clock = new TestClock(new Date("2030-05-05T05:05:05Z"));
  const one = clock.limiter({ limit: 1, window: "1m", resolution: "5s" });
  await one.allow("k");
  assert.equal((await one.acquire("k", "1m")).granted, 0); // its turn comes later
  assert.equal(clock.now.toISOString(), "2030-05-05T05:05:05.000Z");
  assert.equal((await one.with({ limit: 1 }).acquire("k", "65s")).granted, 1);
  assert.equal(clock.now.toISOString(), "2030-05-05T05:06:10.000Z");
  assert.equal((await one.acquire("k", "1h", { cost: 2 })).never, true);
});

test("blocks, budgets and several limits by it", async (test) => {
  freeze(test);
  const clock = new TestClock(new Date("2026-01-31T23:59:00Z"));
  const one = clock.limiter({ limit: 1, window: "1m" });
  assert.equal(await one.block("k", "1h"), clock.now.getTime() + 3_600_000);
  assert.equal((await one.allow("k")).retryAfter, 3_600_000);
  const month = clock.drive(new BudgetLimiter({ limit: 1, period: "month" }));
  const fixed = clock.drive(new BudgetLimiter({ limit: 1, window: "10s" }));
  const limits = clock.drive(new Limits({ rates: "2/hour; 1/second", mode: "local" }));
  const waits = async () => {
    const decisions = [await month.allow("k"), await fixed.allow("k"), await limits.allow("k")];
    return decisions.map(({ granted, retryAfter }) => [Number(granted), retryAfter]);
  };
  assert.deepEqual(await waits(), [
    [1, 0],
    [1, 0],
    [1, 0],
  ]);
  const [ofMonth, ofWindow, ofSecond] = await waits();
  assert.deepEqual(
    [ofMonth, ofWindow],
    [
      [0, 60_000],
      [0, 10_000],
    ],
  );
  assert.deepEqual([ofSecond[0], ofSecond[1] > 0 && ofSecond[1] <= 1083], [0, true]);
  clock.advance("1m");
  assert.deepEqual(await waits(), [
    [1, 0],
    [1, 0],
    [1, 0],
  ]);
  clock.advance("2h");
  const parts = [
    { limiter: one, key: "k" },
    { limiter: month, key: "other" },
  ];
  assert.equal((await admit(parts)).granted, true);
  assert.equal((await admit(parts)).granted, false);
});

test("what is settled goes back to when it was counted, by it", async (test) => {
  freeze(test);
  const clock = new TestClock(new Date("2026-01-31T23:59:00Z"));
  const rate = clock.limiter({ limit: 5, window: "1h", resolution: "5s" });
  const budgets = [{ period: "month" }, { window: "1h" }].map((options) =>
    clock.drive(new BudgetLimiter({ limit: 5, ...options })),
  );
  const parts = [rate, ...budgets].map((limiter, at) => ({ limiter, key: `k${at}`, cost: 2 }));
  const left = async () => Promise.all(parts.map(async ({ limiter, key }) => (await limiter.peek(key)).remaining));
  const [early, late] = [await admit(parts), await admit(parts)];
  clock.advance("30s");
  assert.deepEqual(await early.settle(0, 1, 1), [-2, -1, -1]);
  assert.deepEqual(await left(), [3, 2, 2]);
  clock.advance("2h");
  const other = await admit(parts); // of others' units nothing goes back
  assert.deepEqual(await late.settle(0, 0, 0), [0, 0, 0]);
  assert.deepEqual(await left(), [3, 3, 3]);
  assert.deepEqual(await other.settle(3, 0, 2), [1, -2, 0]);
  assert.deepEqual(await left(), [2, 5, 3]);
});

test("what has a server goes by the server's clock", async (test) => {
  const clock = new TestClock();
  const client = await connect(test);
  const remedy = { name: "TypeError", message: "a server decides by its own clock: give the limiter no client" };
  assert.throws(() => clock.drive(limiter(test, { client })), remedy);
  assert.throws(() => clock.advance("later"), /duration must be a duration/);
  assert.throws(() => clock.advance(-1), /duration/);
  assert.throws(() => new TestClock(new Date("never")), /start must be a valid date/);
  test.mock.timers.enable({ apis: ["Date"] }); // clients need the timers
  const real = limiter(test, { client });
  assert.equal((await real.allow(key())).source, "server");
});

test("a fake denies on demand, and remembers what it was asked", async () => {
  const fake = new FakeLimiter({ prefix: "p:", limit: 5 });
  assert.deepEqual(told(await fake.allow("k", { cost: 2 })), { granted: 2, limit: 5, remaining: 3, source: "local" });
  fake.deny("30s");
  const denied = await fake.with({ limit: 9 }).allow("k");
  assert.deepEqual(
    [denied.granted, denied.limit, denied.retryAfter, denied.headers()["Retry-After"]],
    [0, 9, 30_000, "30"],
  );
  assert.equal((await fake.acquire("k", "1h", { cost: 3 })).granted, 0);
  fake.grant("k");
  assert.deepEqual([(await fake.peek("k")).granted, (await fake.peek("other")).granted], [1, 0]);
  fake.grant();
  fake.deny(Number.POSITIVE_INFINITY, "other");
  assert.deepEqual([(await fake.record("k")).granted, (await fake.allow("other")).never], [1, true]);
  assert.equal(await fake.refund("k", 4), 4);
  const before = Date.now();
  assert.ok((await fake.block("k", "1h")) >= before + 3_600_000);
  assert.equal(await fake.unblock("k"), true);
  await fake.reset("k");
  assert.deepEqual(
    fake.calls.map(({ method, key, cost }) => `${method} ${key} ${cost}`),
    [
      ...["allow p:k 2", "allow p:k 1", "acquire p:k 3", "peek p:k 1", "peek p:other 1", "record p:k 1"],
      ...["allow p:other 1", "refund p:k 4", "block p:k 0", "unblock p:k 0", "reset p:k 0"],
    ],
  );
  assert.deepEqual(fake.statistics, { server: 0, cache: 0, failure: 0, local: 7, lost: 0, evicted: 0 });
  assert.deepEqual(fake.denied, { server: 0, cache: 0, failure: 0, local: 4 });
});

test("a fake among several limits, and in an admission", async () => {
  const fake = new FakeLimiter();
  const real = new Limiter({ limit: 5, window: "1m" });
  const both = () =>
    allowAll([
      { limiter: real, key: "r" },
      { limiter: fake, key: "f", cost: 2 },
    ]);
  assert.equal((await both()).granted, true);
  fake.deny("1m");
  assert.deepEqual([(await both()).granted, (await real.peek("r")).remaining], [false, 4]);
  const places = new HoldLimiter({ limit: 1 });
  assert.equal(
    (
      await admit([
        { limiter: places, key: "h" },
        { limiter: fake, key: "f" },
      ])
    ).granted,
    false,
  );
  assert.deepEqual(
    fake.calls.map(({ method, cost }) => [method, cost]),
    [
      ["allow", 2],
      ["allow", 2],
      ["allow", 1],
    ],
  );
  await assert.rejects(fake.allow("k", { cost: 0 }), /cost must be an integer/);
  for (const strict of [fake, new TestClock().limiter({ limit: 1, window: "1m" })]) {
    await assert.rejects(strict.acquire("k", 0, { partial: true }), /there is no option partial/);
    await assert.rejects(strict.acquire("k", 0, { signal: 1 }), /signal must be an AbortSignal/);
  }
  assert.throws(() => fake.deny("soon"), /retryAfter must be a duration/);
});
