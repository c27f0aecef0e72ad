/** Limits that rise after idleness. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { STEPS, WarmingKeys, WarmUp } from "../../src/node/dist/esm/core/warm-up.js";
import { vectors } from "./support.mjs";

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
