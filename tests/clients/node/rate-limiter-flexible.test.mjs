/** The limiter with the methods of rate-limiter-flexible, beside that package's own, and in what it makes of limiters. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { RateLimiterMemory, RateLimiterQueue, RLWrapperBlackAndWhite } from "rate-limiter-flexible";
import { RateLimiterSwlimit } from "swlimit/rate-limiter-flexible";
import { connect, eventually, key } from "./support.mjs";

/** The package's own limiter, and one in place of it: three points a minute, unless other things are asked for. */
async function both(test, options = {}) {
  const common = { points: 3, duration: 60, ...options };
  return [new RateLimiterMemory(common), await made(test, common)];
}

async function made(test, options) {
  const limiter = new RateLimiterSwlimit({ client: await connect(test), timeout: 20_000, ...options });
  test.after(() => limiter.close());
  return limiter;
}

/** What a call comes to, without the instant: whether that lies within a window of a minute and a subinterval. */
async function found(promise) {
  const [how, res] = await promise.then(
    (res) => ["resolved", res],
    (res) => ["rejected", res],
  );
  if (res === null || typeof res !== "object" || res instanceof Error) return [how, res];
  const { msBeforeNext, ...others } = JSON.parse(JSON.stringify(res));
  return [how, { ...others, isLater: msBeforeNext > 0 && msBeforeNext <= 65_000 }];
}

for (const fixed of [false, true]) {
  test(`${fixed ? "fixed" : "sliding"} windows say what the package's own limiter says`, async (test) => {
    const [theirs] = await both(test);
    const ours = await made(test, { points: 3, duration: 60, fixed });
    const k = key();
    for (const call of [
      (one) => one.get(k),
      (one) => one.delete(k),
      (one) => one.consume(k),
      (one) => one.consume(k),
      (one) => one.get(k),
      (one) => one.reward(k),
      (one) => one.penalty(k, 2),
      (one) => one.consume(k),
      (one) => one.get(k), // which has counted that, and says what it would be
      (one) => one.delete(k),
      (one) => one.get(k),
      (one) => one.consume(7, 2),
      (one) => one.delete(7),
      (one) => one.delete(k),
      (one) => one.penalty(k, 7),
      (one) => one.reward(k, 2),
    ]) {
      assert.deepEqual(await found(call(ours)), await found(call(theirs)), String(call));
    }
  });
}

test("a denied request takes nothing", async (test) => {
  const [, ours] = await both(test);
  const k = key();
  await ours.consume(k);
  const denied = await ours.consume(k, 3).catch((res) => res);
  assert.deepEqual([denied.consumedPoints, denied.remainingPoints], [4, 2]);
  const never = await ours.consume(k, 5).catch((res) => res);
  assert.deepEqual([never.consumedPoints, never.msBeforeNext], [8, 60_000]);
  assert.equal((await ours.consume(k, 2)).remainingPoints, 0);
  assert.equal((await ours.penalty(k, 2)).consumedPoints, 5);
});

test("blocks", async (test) => {
  const limiters = await both(test, { points: 1, blockDuration: 600 });
  const k = key();
  for (const one of limiters) {
    await one.consume(k);
    const { msBeforeNext, consumedPoints } = await one.consume(k).catch((res) => res);
    assert.deepEqual([Math.ceil(msBeforeNext / 1000), consumedPoints], [600, 2]);
    assert.ok((await one.get(k)).consumedPoints > 1);
    assert.equal(await one.delete(k), true);
    assert.equal((await one.consume(k)).remainingPoints, 0);
    const blocked = { remainingPoints: 0, msBeforeNext: 30_000, consumedPoints: 2, isFirstInDuration: false };
    assert.equal(String(await one.block(key(), 30)), JSON.stringify(blocked));
  }
});

test("the package's recipe for logins", async (test) => {
  const blocking = { points: 2, duration: 3600, blockDuration: 7200 };
  for (const limiter of [...(await both(test, blocking)), ...(await both(test, { ...blocking, blockDuration: 0 }))]) {
    const k = key();
    const login = async (isRight) => {
      const known = await limiter.get(k);
      if (known !== null && known.consumedPoints > 2) return "locked";
      if (isRight) {
        await limiter.delete(k);
        return "welcome";
      }
      return limiter.consume(k).then(
        () => "wrong",
        () => "locked",
      );
    };
    const said = [];
    for (const isRight of [false, true, false, false, false, true]) said.push(await login(isRight));
    assert.deepEqual(said, ["wrong", "welcome", "wrong", "wrong", "locked", "locked"]);
    const { msBeforeNext } = await limiter.get(k);
    if (limiter.blockDuration > 0) assert.ok(msBeforeNext > 7000_000, `blocked for ${msBeforeNext} ms`);
  }
});

test("its queue and its lists take it", async (test) => {
  const limiter = await made(test, { points: 1, duration: 1 });
  const [k, queue] = [key(), new RateLimiterQueue(limiter)];
  assert.deepEqual(await Promise.all([queue.removeTokens(1, k), queue.removeTokens(1, k)]), [0, 0]);
  const listed = new RLWrapperBlackAndWhite({ limiter, whiteList: ["friend"], blackList: ["foe"] });
  assert.equal((await listed.consume("friend")).remainingPoints, Number.MAX_SAFE_INTEGER);
  await assert.rejects(listed.consume("foe"), (res) => res.remainingPoints === 0);
  await eventually(() => listed.consume(k).catch(() => false), "its turn");
});

test("what cannot be is refused", async (test) => {
  const client = await connect(test);
  for (const [options, message] of [
    [{ points: 1.5, duration: 1 }, /points must be an integer/],
    [{ points: 1, duration: 0 }, /duration must be seconds/],
    [{ points: 1, duration: "60" }, /duration must be seconds/],
    [{ points: 1, duration: 1, blockDuration: -1 }, /blockDuration must be seconds/],
    [{ points: 1, duration: 1, blockDuration: 1, fixed: true }, /fixed windows have no blocks/],
    [{ points: 1, duration: 1, execEvenly: true }, /there is no option execEvenly/],
  ]) {
    assert.throws(() => new RateLimiterSwlimit({ client, ...options }), message);
  }
  const one = await made(test, { points: 1, duration: 60, fixed: true });
  await assert.rejects(one.block("k", 5), /fixed windows have no blocks/);
  await assert.rejects(one.consume("k", 0), /cost must be an integer/);
  await assert.rejects(one.consume(undefined), /key must be a string or a number/);
  const away = new RateLimiterSwlimit({ client: () => Promise.reject(new Error("gone")), points: 1, duration: 60 });
  assert.equal((await away.consume("k")).remainingPoints, 0);
  await assert.rejects(away.consume("k"), (res) => res.consumedPoints === 2);
});
