/** One decision of rates, budgets and a hold, and its settlement. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { admit, allowAll, BudgetLimiter, HoldLimiter, Limiter, UnavailableError } from "swlimit";
import { connect, eventually, holds, key, sender, vectors } from "./support.mjs";

/** A plan: 2 streams at once, 3 requests an hour, 100 tokens a year. */
function plan(test, client, options) {
  const all = { client, timeout: 20_000, ...options };
  const streams = new HoldLimiter({ ...all, limit: 2, prefix: "streams:" });
  const requests = new Limiter({ ...all, limit: 3, window: "1h", prefix: "requests:" });
  const tokens = new BudgetLimiter({ ...all, limit: 100, period: "year", prefix: "tokens:" });
  test.after(async () => {
    requests.close();
    tokens.close();
    await streams.close();
  });
  const k = `{${key()}}`;
  const parts = (cost) => [
    { limiter: tokens, key: k, cost },
    { limiter: streams, key: k },
    { limiter: requests, key: k },
  ];
  const left = async () => [(await tokens.peek(k)).remaining, (await requests.peek(k)).remaining];
  return { k, streams, requests, tokens, parts, left };
}

const granted = ({ each }) => each.map((decision) => decision.granted);

test("all or nothing, and put right once", async (test) => {
  const client = await connect(test);
  const { k, streams, parts, left } = plan(test, client);
  const first = await admit(parts(60));
  assert.deepEqual([first.granted, granted(first), first.retryAfter], [true, [60, 1, 1], 0]);
  assert.deepEqual([first.each[1] === first.hold, first.hold.isLive, await left()], [true, true, [40, 2]]);
  const denied = await admit(parts(50));
  assert.deepEqual([denied.granted, granted(denied), denied.hold, await left()], [false, [0, 1, 1], null, [40, 2]]);
  assert.ok(denied.retryAfter > 0 && denied.headers()["Retry-After"]);
  assert.deepEqual(await first.settle(25, 1), [-35, 0]);
  assert.deepEqual([first.hold.isLive, await streams.holders(k), await left()], [false, [], [75, 2]]);
  assert.deepEqual([await first.settle(25, 1), await left()], [null, [75, 2]]);
  const second = await admit(parts(1));
  assert.deepEqual(
    [await second.settle(70, 3), await left()],
    [
      [69, 2],
      [5, 0],
    ],
  );
});

test("left without a settlement, it stays counted", async (test) => {
  const { k, streams, parts, left } = plan(test, await connect(test));
  {
    await using admission = await admit(parts(60));
    assert.equal(admission.granted, true);
    await assert.rejects(admission.settle(1), /2 numbers/);
  }
  assert.deepEqual([await streams.holders(k), await left()], [[], [40, 2]]);
});

test("what was used beyond is counted though the hold had ended", async (test) => {
  const client = await connect(test);
  const { k, parts, left } = plan(test, client);
  const admission = await admit(parts(60));
  const reservations = `tokens:${k}:reserved`;
  const [[id]] = await sender(client)("SWLIMIT.HOLDERS", reservations);
  await sender(client)("SWLIMIT.RELEASE", reservations, id);
  assert.deepEqual([await admission.settle(65, 0), await left()], [null, [35, 2]]);
});

for (const onFailure of ["local", "allow", "deny", "error"]) {
  test(`a deadline ends a wait with the last denial, with ${onFailure}`, async (test) => {
    const client = await connect(test);
    let isSilent = false;
    const silent = (args) => (isSilent ? new Promise(() => {}) : client.sendCommand(args));
    const { parts, streams } = plan(test, silent, { onFailure });
    const others = [await admit(parts(1)), await admit(parts(1))];
    assert.ok(others.every(({ granted }) => granted));
    const began = performance.now();
    const waiting = admit(parts(1), { wait: "1m", deadline: 400 });
    await eventually(() => streams.denied.server > 0);
    isSilent = true;
    const { granted, each } = await waiting.finally(() => (isSilent = false));
    assert.deepEqual([granted, each.map(({ source }) => source)], [false, ["server", "server", "server"]]);
    assert.ok(performance.now() - began < 1000);
  });
}

test("who waits is denied when the limiters are closed", async (test) => {
  const { k, parts, streams, requests, tokens } = plan(test, await connect(test), { onFailure: "allow" });
  const others = holds(test, { client: await connect(test), limit: 2, prefix: "streams:" });
  await Promise.all([others.hold(k), others.hold(k)]);
  const waiting = admit(parts(1), { wait: "1m" });
  await eventually(() => streams.denied.server > 0);
  await Promise.all([streams, requests, tokens].map((one) => one.close()));
  assert.equal((await waiting).granted, false);
});

test("without a hold each is put right by itself", async (test) => {
  const { parts, left } = plan(test, await connect(test));
  const admission = await admit(parts(60).filter((_, at) => at !== 1));
  assert.deepEqual([admission.granted, admission.hold], [true, null]);
  assert.deepEqual(
    [await admission.settle(25, 2), await left()],
    [
      [-35, 1],
      [75, 1],
    ],
  );
});

test("without a server", async (test) => {
  const { streams, parts, left } = plan(test, undefined);
  const first = await admit(parts(60));
  assert.deepEqual([first.granted, first.hold.source, await left()], [true, "local", [40, 2]]);
  const denied = await admit(parts(50));
  assert.deepEqual([denied.granted, granted(denied), await left()], [false, [0, 1, 1], [40, 2]]);
  assert.deepEqual(
    [await first.settle(25, 2), await left()],
    [
      [-35, 1],
      [75, 1],
    ],
  );
  assert.equal((await streams.hold(parts(1)[1].key, { cost: 2 })).granted, 2);
});

for (const [name, decide] of Object.entries({ admit, allowAll })) {
  test(`while the server does not answer, ${name} decides each part by its own policy`, async (test) => {
    for (const { parts, outcome, left } of vectors("defaults").failures) {
      const client = () => Promise.reject(new Error("connection refused"));
      const asked = parts.map(({ on_failure: onFailure, limit, cost }, at) => {
        const limiter = new Limiter({ client, limit, window: "1h", onFailure });
        test.after(() => limiter.close());
        return { limiter, key: `${at}`, cost };
      });
      const found = await decide(asked).then(
        ({ granted }) => (granted ? "granted" : "denied"),
        (error) => error instanceof UnavailableError && "error",
      );
      const remains = async ({ limiter, key }, at) => (left[at] === null ? null : (await limiter.peek(key)).remaining);
      const here = await Promise.all(asked.map(remains));
      assert.deepEqual([found, here], [outcome, left], JSON.stringify(parts));
    }
  });
}

test("what a policy grants uncounted is not corrected", async (test) => {
  const { parts } = plan(test, () => new Promise(() => {}), { timeout: 50, onFailure: "allow" });
  const admission = await admit(parts(50));
  assert.deepEqual([await admission.settle(25, 2), admission.hold.isLive], [[0, 0], false]);
  assert.equal(await admission.settle(25, 2), null);
});

test("what is wrong is refused", async (test) => {
  const { k, streams, parts } = plan(test, await connect(test));
  await assert.rejects(admit([]), TypeError);
  await assert.rejects(admit([...parts(1), { limiter: streams, key: k }]), /named twice/);
  await assert.rejects(admit([...parts(1), { limiter: new Limiter({ limit: 1, window: 1 }), key: k }]), /same client/);
  const strict = new Limiter({ client: await connect(test), limit: 1, window: 1, strict: true });
  await assert.rejects(
    admit([
      { limiter: strict, key: k },
      { limiter: parts(1)[2].limiter, key: k },
    ]),
    /same client/,
  );
  const denied = await admit(parts(101));
  await assert.rejects(denied.settle(0, 0), /nothing was granted/);
});
