/** A caller that gives up, at every point of every command: what it was granted goes back, and nothing of its neighbour's. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit, allowAll, BudgetLimiter, HoldLimiter, Limiter } from "swlimit";
import { connect, eventually, key } from "./support.mjs";

/** A neighbour has used so many units of each key, of a limit of 10. */
const NEIGHBOUR = 6;

/** A client, and its duplicates, that says before each command and after each reply that it has come so far. */
async function stepping(test) {
  const steps = { passed: 0, under_way: 0, at: Number.POSITIVE_INFINITY, reached() {} };
  const step = () => {
    if (++steps.passed === steps.at) steps.reached();
  };
  const watch = (client) => {
    const { sendCommand, duplicate } = client;
    client.sendCommand = async (...words) => {
      steps.under_way++;
      try {
        step();
        await null; // who gives up now does so before the command is written
        return await sendCommand.apply(client, words);
      } finally {
        step();
        steps.under_way--;
      }
    };
    client.duplicate = (...options) => watch(duplicate.apply(client, options));
    return client;
  };
  return { client: watch(await connect(test)), steps };
}

/** The limiters of a test, and the units that are counted in them. */
function limiters(test, client) {
  const all = { client, timeout: "20s", onFailure: "error" };
  const rate = new Limiter({ ...all, limit: 10, window: "1m", resolution: "1s", mode: "direct", prefix: "rate:" });
  const other = new Limiter({ ...all, limit: 10, window: "1m", resolution: "1s", mode: "direct", prefix: "other:" });
  const budget = new BudgetLimiter({ ...all, limit: 10, period: "year", prefix: "budget:" });
  const fixed = new BudgetLimiter({ ...all, limit: 10, window: "1h", prefix: "fixed:" });
  const holds = new HoldLimiter({ ...all, limit: 10, prefix: "holds:" });
  const rates = [rate, other, budget, fixed];
  test.after(async () => {
    for (const limiter of rates) limiter.close();
    await holds.close();
  });
  const used = async (k) => [
    ...(await Promise.all(rates.map(async (limiter) => 10 - (await limiter.peek(k)).remaining))),
    (await holds.holders(k)).reduce((sum, { units }) => sum + units, 0),
  ];
  const fill = async (k) => {
    for (const limiter of rates) await limiter.record(k, { cost: NEIGHBOUR });
    await holds.hold(k, { cost: NEIGHBOUR });
  };
  return { rate, other, budget, fixed, holds, used, fill };
}

/** What is asked for, and how many units of each limit a caller then has that was granted them. */
const CALLS = {
  allow: [({ rate }, k, signal) => rate.allow(k, { cost: 2, signal }), [2, 0, 0, 0, 0]],
  "allow in part": [({ rate }, k, signal) => rate.allow(k, { cost: 9, partial: true, signal }), [4, 0, 0, 0, 0]],
  peek: [({ rate }, k, signal) => rate.peek(k, { cost: 3, signal }), [0, 0, 0, 0, 0]],
  acquire: [({ rate }, k, signal) => rate.acquire(k, "10s", { cost: 3, signal }), [3, 0, 0, 0, 0]],
  "several limits": [
    ({ rate, other }, k, signal) =>
      allowAll(
        [
          { limiter: rate, key: `{${k}}`, cost: 2 },
          { limiter: other, key: `{${k}}`, cost: 3 },
        ],
        { signal },
      ),
    [2, 3, 0, 0, 0],
  ],
  "a budget": [({ budget }, k, signal) => budget.allow(k, { cost: 2, signal }), [0, 0, 2, 0, 0]],
  "a budget's peek": [({ budget }, k, signal) => budget.peek(k, { cost: 3, signal }), [0, 0, 0, 0, 0]],
  "a fixed window": [({ fixed }, k, signal) => fixed.allow(k, { cost: 2, signal }), [0, 0, 0, 2, 0]],
  "a hold": [({ holds }, k, signal) => holds.hold(k, { cost: 2, signal }), [0, 0, 0, 0, 2]],
  "a hold with a wait": [({ holds }, k, signal) => holds.hold(k, { cost: 2, wait: "10s", signal }), [0, 0, 0, 0, 2]],
  "rates and budgets at once": [
    ({ rate, budget }, k, signal) =>
      admit(
        [
          { limiter: rate, key: `{${k}}`, cost: 2 },
          { limiter: budget, key: `{${k}}`, cost: 3 },
        ],
        { signal },
      ),
    [2, 0, 3, 0, 0],
  ],
  "all at once": [
    ({ rate, budget, holds }, k, signal) =>
      admit(
        [
          { limiter: rate, key: `{${k}}` },
          { limiter: holds, key: `{${k}}` },
          { limiter: budget, key: `{${k}}` },
        ],
        {
          signal,
        },
      ),
    [1, 0, 1, 0, 1],
  ],
};

for (const [name, [call, grants]] of Object.entries(CALLS)) {
  test(`given up at each point: ${name}`, async (test) => {
    const { client, steps } = await stepping(test);
    const all = limiters(test, client);
    const quiet = () => eventually(() => steps.under_way === 0, "its end");
    let isCut = true;
    for (let at = 0; isCut; at++) {
      const k = key();
      const tagged = call.toString().includes("{$") ? `{${k}}` : k;
      await all.fill(tagged);
      const controller = new AbortController();
      isCut = at === 0;
      Object.assign(steps, {
        passed: 0,
        at,
        reached() {
          isCut = true;
          controller.abort(new Error("gone"));
        },
      });
      const asking = call(all, k, controller.signal);
      if (at === 0) controller.abort(new Error("gone"));
      const hasIt = await asking.then(
        () => true,
        (error) => assert.equal(error.message, "gone") ?? false,
      );
      steps.at = Number.POSITIVE_INFINITY;
      const expected = grants.map((units) => NEIGHBOUR + (hasIt ? units : 0));
      await quiet();
      let used = [];
      const isSo = async () => {
        used = await all.used(tagged);
        return used.every((units, each) => units === expected[each]);
      };
      await eventually(isSo, `${expected} after step ${at}, in place of`, 3000).catch((error) => {
        error.message += ` ${used}`;
        throw error;
      });
      await quiet();
      assert.ok(await isSo(), `${expected} after step ${at}, and not ${used}`);
    }
    assert.ok(steps.passed > 0);
  });
}

test("a record of a budget stays, as far within the limit as beyond", async (test) => {
  const { client, steps } = await stepping(test);
  const { budget } = limiters(test, client);
  const k = key();
  for (const cost of [3, 3, 6]) {
    const controller = new AbortController();
    Object.assign(steps, { passed: 0, at: 1, reached: () => controller.abort(new Error("gone")) });
    await assert.rejects(budget.record(k, { cost, signal: controller.signal }), /gone/);
    steps.at = Number.POSITIVE_INFINITY;
    await eventually(() => steps.under_way === 0, "its end");
  }
  assert.equal((await client.sendCommand(["SWLIMIT.INFO", `budget:${k}`])).used, 12);
});

for (const wait of ["a rate", "a hold"]) {
  test(`given up at each point of a wait: ${wait}`, async (test) => {
    const { client, steps } = await stepping(test);
    const all = limiters(test, client);
    let isCut = true;
    for (let at = 1; isCut; at++) {
      const k = key();
      await all.fill(k);
      const spare = wait === "a hold" ? await all.holds.hold(k, { cost: 4 }) : null;
      if (!spare) await all.rate.record(k, { cost: 4 });
      const free = () => (spare ? spare.release() : all.rate.refund(k, 4));
      const controller = new AbortController();
      isCut = false;
      Object.assign(steps, {
        passed: 0,
        at,
        reached() {
          isCut = true;
          controller.abort(new Error("gone"));
        },
      });
      const { signal } = controller;
      const asking = spare
        ? all.holds.hold(k, { cost: 2, wait: "20s", signal })
        : all.rate.acquire(k, "2m", { cost: 2, signal });
      const over = asking.then(
        () => true,
        (error) => assert.equal(error.message, "gone") ?? false,
      );
      const info = await connect(test);
      const isWaiting = async () => /swlimit_waiting:1\b/.test(await info.sendCommand(["INFO", "swlimit"]));
      await eventually(async () => isCut || (await isWaiting()), "its wait");
      await free();
      const hasIt = await over;
      steps.at = Number.POSITIVE_INFINITY;
      const expected = NEIGHBOUR + (hasIt ? 2 : 0);
      const used = async () => (await all.used(k))[spare ? 4 : 0];
      await eventually(async () => (await used()) === expected, `${expected} after step ${at}`, 3000);
      await eventually(() => steps.under_way === 0, "its end");
      assert.equal(await used(), expected, `after step ${at}`);
      info.destroy();
    }
  });
}
