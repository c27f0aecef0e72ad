/** Budgets: quotas of the calendar, and fixed windows. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { BudgetLimiter, periodAt, UnavailableError } from "swlimit";
import { connect, eventually, key, told } from "./support.mjs";

function budget(test, options) {
  const made = new BudgetLimiter({ limit: 10, period: "year", timeout: 20_000, ...options });
  test.after(() => made.close());
  return made;
}

const ENDS_WITHIN = 1000 * 60 * 60 * 24 * 366;

for (const RESP of [2, 3]) {
  test(`counted until the period ends, with RESP${RESP}`, async (test) => {
    const plan = budget(test, { client: await connect(test, { RESP }), timeZone: "Europe/Berlin" });
    const k = key();
    assert.deepEqual(told(await plan.peek(k)), { granted: 1, limit: 10, remaining: 10, source: "server" });
    const first = await plan.allow(k, { cost: 9 });
    assert.deepEqual(told(first), { granted: 9, limit: 10, remaining: 1, source: "server" });
    const { end } = periodAt({ period: "year", timeZone: "Europe/Berlin" }, Date.now());
    assert.ok(Math.abs(first.resetAfter - (end - Date.now())) < 60_000);
    const denied = await plan.allow(k, { cost: 2 });
    assert.deepEqual([told(denied).granted, denied.retryAfter], [0, denied.resetAfter]);
    assert.deepEqual(told(await plan.allow(k, { cost: 2, partial: true })).granted, 1);
    assert.equal((await plan.allow(k, { cost: 11 })).never, true);
    assert.deepEqual(told(await plan.record(k, { cost: 5 })), {
      granted: 0,
      limit: 10,
      remaining: 0,
      source: "server",
    });
    assert.equal(await plan.refund(k, 7), 7);
    const left = await plan.peek(k);
    assert.deepEqual([left.remaining, left.resetAfter > 0], [2, true]);
    assert.equal((await plan.with({ limit: 100 }).allow(k)).remaining, 91);
    await plan.reset(k);
    assert.equal((await plan.allow(k)).remaining, 9);
    assert.match(first.headers()["RateLimit-Policy"], /^"default";q=10;w=3\d{7}$/);
  });
}

test("a caller whose clock is behind asks for the next period", async (test) => {
  const plan = budget(test, { client: await connect(test), period: "day" });
  const { now } = Date;
  test.mock.method(Date, "now", () => now() - 24 * 60 * 60 * 1000);
  assert.equal((await plan.allow(key())).granted, 1);
});

test("fixed windows begin with the first unit, by the server's clock", async (test) => {
  const { now } = Date;
  test.mock.method(Date, "now", () => now() - 1_000_000); // and not by this process's
  const client = await connect(test);
  const fixed = (window) => budget(test, { client, period: undefined, window, limit: 1 });
  const { resetAfter } = await fixed("1h").allow(key());
  assert.ok(Math.abs(resetAfter - 3_600_000) < 60_000, `${resetAfter} ms`);
  const [k, short] = [key(), fixed("300ms")];
  await eventually(async () => (await short.allow(k)).granted === 0, "a denial");
  await eventually(async () => (await short.allow(k)).granted === 1, "the next window");
});

test("fixed windows last as long as they do, whatever the clock is set to", async (test) => {
  const client = await connect(test);
  for (const options of [{ client }, {}]) {
    const fixed = budget(test, { ...options, period: undefined, window: "1h", limit: 2 });
    const [before, after] = [key(), key()];
    await fixed.allow(before);
    const { now } = Date;
    for (const hours of [1, -2]) {
      test.mock.method(Date, "now", () => now() + hours * 3_600_000);
      const told = [await fixed.allow(before), await fixed.peek(before), await fixed.allow(`${after}${hours}`)];
      for (const { resetAfter } of told) assert.ok(Math.abs(resetAfter - 3_600_000) < 600_000, `${resetAfter} ms`);
      test.mock.restoreAll();
    }
    assert.equal((await fixed.peek(before)).granted, 0);
  }
});

test("fixed windows of another length", async (test) => {
  const fixed = budget(test, { client: await connect(test), period: undefined, window: 1000, limit: 1 });
  const { resetAfter, remaining } = await fixed.with({ limit: 3, window: "1h" }).allow(key());
  assert.deepEqual([remaining, resetAfter > 3_000_000], [2, true]);
  assert.throws(() => budget(test).with({ window: 1000 }), /has no window/);
});

test("without a server, and while it does not answer", async (test) => {
  const local = budget(test, { period: "month", anchor: 15 });
  assert.deepEqual(told(await local.peek("k")), { granted: 1, limit: 10, remaining: 10, source: "local" });
  assert.deepEqual(told(await local.allow("k", { cost: 10 })), {
    granted: 10,
    limit: 10,
    remaining: 0,
    source: "local",
  });
  const denied = await local.allow("k");
  assert.deepEqual([denied.granted, denied.retryAfter > 0, denied.retryAfter < ENDS_WITHIN], [0, true, true]);
  assert.equal(await local.refund("k", 3), 3);
  assert.equal((await local.record("k", { cost: 5 })).remaining, 0);
  const { end } = periodAt({ period: "month", anchor: 15 }, Date.now());
  const { now } = Date;
  test.mock.method(Date, "now", () => now() + (end - now()) + 1);
  assert.equal((await local.allow("k")).remaining, 9);
  test.mock.restoreAll();
  const away = budget(test, { client: () => new Promise(() => {}), timeout: 50, limit: 20 });
  assert.deepEqual(told(await away.allow("k", { cost: 2 })), { granted: 2, limit: 2, remaining: 0, source: "failure" });
  assert.equal((await away.allow("k")).granted, 0);
  await assert.rejects(away.record("k"), UnavailableError);
});

test("what is wrong is refused", () => {
  for (const [wrong, message] of [
    [{ period: "fortnight" }, /period must be one of/],
    [{ period: "day", timeZone: "Europe/Nowhere" }, /time zone/i],
    [{ period: "day", anchor: 1 }, /no anchor/],
    [{ period: "week", anchor: "mon" }, /anchor of a week/],
    [{ period: "month", anchor: 32 }, /anchor of a month/],
    [{ period: "month", anchor: "1" }, /anchor of a month/],
    [{ period: "year", anchor: "02-30" }, /anchor of a year/],
    [{ window: "1m", period: "day" }, /either a period or a window/],
    [{ window: "1m", timeZone: "UTC" }, /no timeZone/],
    [{}, /either a period or a window/],
  ]) {
    assert.throws(() => new BudgetLimiter({ limit: 1, ...wrong }), message);
  }
});
