/** Limits that rise after idleness. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit, allowAll, HoldLimiter, Limiter, NeedsModuleError } from "swlimit";
import { TestClock } from "swlimit/testing";
import { DenialCache } from "../../../src/clients/node/dist/esm/limiters/denial-cache.js";
import { asModule, connect, key, limiter, sent } from "./support.mjs";

const HOURLY = { limit: 120, window: "1h", resolution: "5m", warmUp: "10h" };

/** Ask until it is denied: how many units were granted, and the denial. */
async function saturate(limiter, k = "k") {
  for (let granted = 0; ; granted++) {
    const decision = await limiter.allow(k);
    if (decision.granted === 0) return [granted, decision];
  }
}

test("it rises while the key is in use, and begins again after idleness", async () => {
  const clock = new TestClock();
  const one = clock.limiter(HOURLY);
  for (let hours = 0; hours < 11; hours++) {
    const [, { limit, retryAfter }] = await saturate(one);
    assert.equal(limit, Math.min(120, 40 + 8 * hours));
    assert.ok(retryAfter > 0 && retryAfter < 3_900_000);
    clock.advance("1h");
  }
  clock.advance("3h");
  assert.equal((await saturate(one))[0], 40);
  assert.equal((await saturate(clock.limiter({ ...HOURLY, cold: 2 })))[0], 60);
});

test("it goes with every method", async () => {
  const clock = new TestClock();
  const one = clock.limiter(HOURLY);
  assert.equal((await one.with({ limit: 30 }).peek("k")).limit, 10);
  assert.throws(() => one.with({ window: "2h" }), /at least ten times/);
  const [, { retryAfter }] = await saturate(one);
  assert.equal((await one.allow("k", { block: retryAfter + 1 })).retryAfter, retryAfter + 1);
  const waited = await one.acquire("k", "2h");
  assert.deepEqual([waited.granted, waited.limit > 40], [1, true]);
  const shares = [
    { limiter: one, key: "a", cost: 40 },
    { limiter: clock.limiter({ ...HOURLY, warmUp: undefined }), key: "b" },
  ];
  assert.equal((await allowAll(shares)).granted, true);
  const { granted, each } = await allowAll(shares);
  assert.deepEqual([granted, each.map(({ limit }) => limit)], [false, [40, 120]]);
  await using admission = await admit([
    { limiter: one, key: "c", cost: 30 },
    { limiter: new HoldLimiter({ limit: 1 }), key: "d" },
  ]);
  assert.equal(admission.each[0].limit, 40);
});

test("options that cannot be are refused", () => {
  for (const [options, error] of [
    [{ warmUp: "9h" }, /^RangeError: warmUp must be at least ten times the window$/],
    [{ warmUp: 0.5 }, /warmUp must be a duration/],
    [{ cold: 1 }, /^RangeError: cold must be an integer between 2 and 1000$/],
    [{ cold: 1001 }, /cold must be an integer/],
    [{ cold: 2.5 }, /cold must be an integer/],
    [{ cold: "3" }, /cold must be an integer/],
    [{ warmUp: undefined, cold: 3 }, /^TypeError: cold needs warmUp$/],
    [{ warm_up: "10h" }, /is called warmUp/],
  ]) {
    assert.throws(() => new Limiter({ ...HOURLY, ...options }), error);
  }
});

for (const module of ["always", "never"]) {
  test(`all processes have the limit of the key, by one command a decision, the module: ${module}`, async (test) => {
    const [client, other] = [await connect(test), await connect(test)];
    const options = { ...HOURLY, module, mode: "direct" };
    const [first, late] = [limiter(test, { ...options, client: other }), limiter(test, { ...options, client })];
    const plain = limiter(test, { ...options, client, warmUp: undefined });
    const k = `{${key()}}`;
    await first.record(k, { cost: 44, age: "30m" });
    const commands = sent(client);
    assert.equal((await late.peek(k)).limit, 44);
    assert.equal((await late.allow(k)).limit, 44);
    const both = await allowAll([late, plain].map((limiter, at) => ({ limiter, key: k + at, cost: 100 })));
    assert.deepEqual(
      both.each.map(({ limit }) => limit),
      [100, 120],
    );
    assert.equal((await late.acquire(k, 0)).limit, 44);
    const found = commands.map((words) => asModule(words)[0]).filter((name) => name.startsWith("SWLIMIT"));
    const acquire = module === "always" ? "SWLIMIT.ACQUIRE" : "SWLIMIT.ALLOW";
    assert.deepEqual(found, ["SWLIMIT.PEEK", "SWLIMIT.ALLOW", "SWLIMIT.MALLOW", acquire]);
    await using admission = await admit([{ limiter: late, key: k + 2, cost: 30 }]);
    assert.equal(admission.each[0].limit, 40);
  });
}

test("a known denial is one of the same warm-up", (test) => {
  const [denials, k] = [new DenialCache(10), key()];
  const quota = { limit: 100, window: 60_000, resolution: 5000, strict: false, cost: 3, partial: false };
  const demand = { ...quota, warmUp: { duration: 600_000, cold: 3 } };
  denials.remember(k, demand, denials.snapshot(k), [0, 33, 2, 9000, 9000], 0, 9000);
  test.after(() => denials.forgetAll());
  const same = { ...demand, warmUp: { duration: 600_000, cold: 3 } };
  assert.deepEqual(denials.find(k, same, false).slice(0, 3), [0, 33, 2]);
  for (const warmUp of [undefined, { duration: 600_000, cold: 4 }, { duration: 700_000, cold: 3 }]) {
    assert.equal(denials.find(k, { ...quota, warmUp }, false), undefined);
  }
});

test("a module that does not know it reads another limit behind the first of several", async (test) => {
  const old = async (words) => {
    if (words.includes("WARMUP")) throw new Error("ERR limit must be an integer between 0 and 9007199254740991");
    return words[0] === "SWLIMIT.ALLOW" ? [1, 120, 119, 0, 1] : "OK";
  };
  const [one, plain] = [HOURLY, { ...HOURLY, warmUp: undefined }].map((options) =>
    limiter(test, { ...options, client: old }),
  );
  const shares = ["a", "b"].map((key) => ({ limiter: one, key }));
  for (let i = 0; i < 2; i++) {
    await assert.rejects(allowAll(shares), (error) => {
      assert.ok(error instanceof NeedsModuleError);
      assert.match(error.message, /^WARMUP needs a newer module than this server has/);
      return true;
    });
  }
  assert.equal((await plain.allow("a")).granted, 1);
});
