/** Limits of how many at once that follow response times. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { inspect } from "node:util";
import { Adaptive, Limiter } from "swlimit";
import { AdaptiveState, step } from "../../../src/clients/node/dist/esm/core/adaptive.js";
import { eventually, serve, vectors } from "./support.mjs";

const { samples, phases } = vectors("adaptive");

for (const { name, options, steps } of samples) {
  test(name, () => {
    const state = new AdaptiveState(options.min);
    for (const { sample, state: expected } of steps) {
      const [end, rtt, inflight, dropped] = sample;
      step(settingsOf(options), state, { end, rtt, inflight, dropped });
      assert.deepEqual(asVector(state), expected);
    }
  });
}

for (const { name, options, phases: given, states } of phases) {
  test(name, () => {
    const [settings, state] = [settingsOf(options), new AdaptiveState(options.min)];
    const expected = new Map(states.map((one) => [one.windows, one.state]));
    let [windows, now] = [0, 0];
    for (const phase of given) {
      for (let number = 0; number < phase.windows; number++) {
        for (const sample of windowOf(phase, number, now, state.limit, settings.window)) step(settings, state, sample);
        now += settings.window + 1;
        if (expected.has(++windows)) assert.deepEqual(asVector(state), expected.get(windows), `${windows}`);
        expected.delete(windows);
      }
    }
    assert.equal(expected.size, 0);
  });
}

/** A window's samples, as the vectors' page says. */
function windowOf({ share, rtt_us, ramp_us, capacity, samples, drops }, number, now, limit, window) {
  const inflight = Math.floor((limit * share[0]) / share[1]) + share[2];
  let rtt = rtt_us + number * ramp_us;
  if (capacity) rtt = Math.floor((rtt * Math.max(inflight, capacity)) / capacity);
  return Array.from({ length: samples }, (_, i) => ({
    end: now + Math.floor(((window + 1) * (i + 1)) / samples),
    rtt: rtt + i,
    inflight,
    dropped: i < drops,
  }));
}

function settingsOf({ min, max, algorithm, window_us: window, timeout_us: timeout }) {
  return { min, max, algorithm, window, timeout };
}

function asVector({ ends, samples, sum, inflight, drops, windows, windowsSum, long, estimate }) {
  const rest = { samples, inflight, drops, windows, estimate };
  return { ends_us: ends, sum_us: sum, windows_us: windowsSum, long_us: long, ...rest };
}

/** The clock of permits stands, and runs ahead as the test says, in µs. */
function movedClock(test) {
  const { now } = performance;
  const clock = { us: 0 };
  performance.now = () => clock.us / 1000;
  test.after(() => {
    performance.now = now;
  });
  return clock;
}

/** An HTTP server that answers once the test says so, with the status that it says. */
async function overloadedServer(test) {
  const waiting = [];
  const get = await serve(test, (_, response) => waiting.push(response));
  return { waiting, get };
}

/** So many windows in each of which the server is as busy as the limit allows, and takes so many µs. */
async function windows(adaptive, clock, { waiting, get }, number, latency, status = 200) {
  for (let i = 0; i < number; i++) {
    const wanted = adaptive.limit;
    const requests = Array.from({ length: wanted }, () => adaptive.run(() => get()));
    await eventually(() => waiting.length === wanted, "all requests have arrived");
    await assert.rejects(
      adaptive.run(() => assert.fail()),
      { name: "DeniedError" },
    );
    clock.us += Math.max(latency, 1_000_001);
    for (const response of waiting.splice(0)) {
      response.statusCode = status;
      response.end();
    }
    await Promise.all(requests);
    assert.equal(adaptive.inflight, 0);
  }
}

test("an overloaded server: drops lower the limit", async (test) => {
  const [clock, server] = [movedClock(test), await overloadedServer(test)];
  const adaptive = new Adaptive({ min: 10, max: 40, algorithm: "aimd" });
  await windows(adaptive, clock, server, 10, 0);
  assert.equal(adaptive.limit, 19);
  await windows(adaptive, clock, server, 1, 0, 503);
  assert.equal(adaptive.limit, 17);
  await windows(adaptive, clock, server, 8, 0, 429);
  assert.equal(adaptive.limit, 10);
});

test("an overloaded server: slowness lowers the limit", async (test) => {
  const [clock, server] = [movedClock(test), await overloadedServer(test)];
  const adaptive = new Adaptive({ min: 10, max: 40 });
  await windows(adaptive, clock, server, 12, 0);
  const raised = adaptive.limit;
  assert.ok(raised > 15);
  await windows(adaptive, clock, server, 6, 20_000_000);
  await windows(adaptive, clock, server, 2, 0, 500); // neither good nor bad
  const lowered = adaptive.limit;
  assert.ok(lowered < raised);
  await windows(adaptive, clock, server, 8, 0);
  assert.ok(adaptive.limit > lowered);
});

/** How many samples there are, and whether any was dropped. */
function sampled({ state }) {
  return [state.samples, state.drops > 0];
}

test("at most so many permits are out, and each is given back once", async (test) => {
  const clock = movedClock(test);
  const adaptive = new Adaptive({ min: 2, max: 2 });
  const [first, second] = [adaptive.permit(), adaptive.permit()];
  assert.equal(adaptive.permit(), null);
  clock.us += 1000;
  first.done();
  first.done();
  assert.deepEqual([adaptive.inflight, ...sampled(adaptive)], [1, 1, false]);
  second.drop();
  assert.equal(adaptive.inflight, 1);
  second.done();
  assert.deepEqual([adaptive.inflight, ...sampled(adaptive)], [0, 2, true]);
  adaptive.permit().ignore();
  assert.deepEqual([adaptive.inflight, ...sampled(adaptive)], [0, 2, true]);
});

test("the permit comes before a limiter: without one, nothing is counted", async (test) => {
  const clock = movedClock(test);
  const adaptive = new Adaptive({ min: 1, max: 1 });
  const limiter = new Limiter({ limit: 1, window: "1m" });
  await adaptive.run(async () => {
    clock.us += 1000;
    await assert.rejects(
      adaptive.run(() => limiter.allow("k")),
      ({ decision }) => decision.limit === 1 && decision.retryAfter === undefined,
    );
  });
  assert.equal((await limiter.peek("k")).remaining, 1);
});

function causedByItself() {
  const error = new Error();
  error.cause = error;
  return error;
}

const GRPC = { details: "", metadata: {} };
const CASES = [
  [Object.assign(new Error(), { name: "TimeoutError" }), true],
  [new TypeError("fetch failed", { cause: { code: "UND_ERR_HEADERS_TIMEOUT" } }), true],
  [{ code: "ETIMEDOUT" }, true],
  [new TypeError("fetch failed", { cause: { code: "ECONNRESET" } }), false],
  [causedByItself(), false],
  [Object.assign(new Error(), { name: "AbortError", code: 20 }), false],
  [{ status: 429 }, true],
  [{ statusCode: 503 }, true],
  [{ response: { status: 503 } }, true],
  [{ response: { statusCode: 504 } }, true],
  [{ status: 500 }, false],
  [{ ...GRPC, code: 4 }, true],
  [{ ...GRPC, code: 8 }, true],
  [{ ...GRPC, code: 14 }, true],
  [{ ...GRPC, code: 5 }, false],
  [{ code: 14 }, false],
  ["503", false],
  [new Error(), false],
];

for (const [error, dropped] of CASES) {
  test(`${inspect(error).split("\n")[0]} is ${dropped ? "a drop" : "no sample"}`, async (test) => {
    const [clock, adaptive] = [movedClock(test), new Adaptive()];
    const failing = adaptive.run(() => {
      clock.us += 1000;
      throw error;
    });
    await failing.catch((thrown) => assert.equal(thrown, error));
    assert.deepEqual([adaptive.inflight, ...sampled(adaptive)], [0, dropped ? 1 : 0, dropped]);
  });
}

test("a real time-out of fetch is a drop", async (test) => {
  const { port } = await new Promise((resolve) => {
    const server = createServer(() => {}).listen(0, "127.0.0.1", () => resolve(server.address()));
    test.after(() => server.closeAllConnections() ?? server.close());
  });
  const adaptive = new Adaptive();
  const fetching = adaptive.run(() => fetch(`http://127.0.0.1:${port}/`, { signal: AbortSignal.timeout(20) }));
  await assert.rejects(fetching, { name: "TimeoutError" });
  assert.deepEqual(sampled(adaptive), [1, true]);
});

test("what is wrong", () => {
  for (const options of [
    { min: 0 },
    { min: 10, max: 9 },
    { max: 2.5 },
    { algorithm: "vegas" },
    { window: 0 },
    { timeout: "long" },
    { size: 5 },
  ]) {
    assert.throws(() => new Adaptive(options), { message: new RegExp(Object.keys(options).at(-1)) });
  }
});
