/** Limits of how many at once that follow response times. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { AdaptiveState, step } from "../../src/node/dist/esm/core/adaptive.js";
import { vectors } from "./support.mjs";

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

/** Ten samples, as the vectors' page says. */
function windowOf({ share, rtt_us, ramp_us, capacity, drop }, number, now, limit, window) {
  const inflight = Math.floor((limit * share[0]) / share[1]) + share[2];
  let rtt = rtt_us + number * ramp_us;
  if (capacity) rtt = Math.floor((rtt * Math.max(inflight, capacity)) / capacity);
  return Array.from({ length: 10 }, (_, i) => ({
    end: now + Math.floor(((window + 1) * (i + 1)) / 10),
    rtt: rtt + i,
    inflight,
    dropped: drop && i === 0,
  }));
}

function settingsOf({ min, max, algorithm, window_us: window, timeout_us: timeout }) {
  return { min, max, algorithm, window, timeout };
}

function asVector({ ends, samples, sum, inflight, dropped, windows, windowsSum, long, estimate }) {
  const rest = { samples, inflight, dropped, windows, estimate };
  return { ends_us: ends, sum_us: sum, windows_us: windowsSum, long_us: long, ...rest };
}
