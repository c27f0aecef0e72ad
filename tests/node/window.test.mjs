/** The window of this process decides as the module does: tests/vectors. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Entry, Limiter } from "swlimit";
import { parseDuration } from "../../src/node/dist/esm/duration.js";

const vectors = (name) => JSON.parse(readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), "utf8"));

test("durations", () => {
  for (const { text, ms } of vectors("durations")) assert.equal(parseDuration(text) || null, ms, JSON.stringify(text));
});

test("decisions", () => {
  for (const { stored, blocked_until: blocked, now, request, decision } of vectors("decisions")) {
    const entry = new Entry();
    for (const [start, cost] of stored?.counts ?? []) {
      const { window, resolution } = stored;
      entry.record({ limit: 0, window, resolution, cost, partial: false, strict: false }, start);
    }
    if (blocked > 0) entry.block(1, blocked - 1);
    const before = JSON.stringify(entry);
    assert.deepEqual(entry.peek(request, now), decision, JSON.stringify(request));
    assert.equal(JSON.stringify(entry), before, "looking changes nothing");
  }
});

/** Runs a command of a vector on entries; those about one key, and MALLOW. */
class Player {
  entries = new Map();

  entry(key) {
    if (!this.entries.has(key)) this.entries.set(key, new Entry());
    return this.entries.get(key);
  }

  play([name, ...words]) {
    return this[name.slice("SWLIMIT.".length).toLowerCase()](...words);
  }

  quota(limit, window, resolution) {
    return { limit: Number(limit), window: parseDuration(window), resolution: parseDuration(resolution) };
  }

  options(words) {
    const found = { cost: 1, partial: false, strict: false };
    for (let rest = words; rest.length > 0; ) {
      const [name, value, ...after] = rest;
      if (["PARTIAL", "STRICT", "NX"].includes(name)) {
        found[name.toLowerCase()] = true;
        rest = rest.slice(1);
      } else {
        found[name.toLowerCase()] = ["AGE", "BLOCK"].includes(name) ? parseDuration(value) : Number(value);
        rest = after;
      }
    }
    return found;
  }

  allow(key, limit, window, resolution, ...rest) {
    const options = this.options(rest);
    return this.entry(key).allow({ ...this.quota(limit, window, resolution), ...options }, options.at, options.block);
  }

  peek(key, limit, window, resolution, ...rest) {
    const options = this.options(rest);
    return this.entry(key).peek({ ...this.quota(limit, window, resolution), ...options }, options.at);
  }

  record(key, limit, window, resolution, ...rest) {
    const { at, age = 0, block, ...options } = this.options(rest);
    const demand = { ...this.quota(limit, window, resolution), ...options };
    return this.entry(key).record(demand, at, Math.max(0, at - age), block);
  }

  refund(key, units, ...rest) {
    const { at, since, age = since === undefined ? undefined : Math.max(0, at - since) } = this.options(rest);
    return this.entry(key).refund(Number(units), at, age);
  }

  block(key, duration, ...rest) {
    const { at, nx } = this.options(rest);
    return this.entry(key).block(parseDuration(duration), at, nx);
  }

  unblock(key, ...rest) {
    return Number(this.entry(key).unblock(this.options(rest).at));
  }

  mallow(numkeys, ...words) {
    const keys = words.slice(0, Number(numkeys));
    const quotas = words.slice(keys.length, 5 * keys.length);
    const { at, strict } = this.options(words.slice(5 * keys.length));
    const each = (how) =>
      keys.map((key, place) => {
        const [limit, window, resolution, cost] = quotas.slice(4 * place);
        return this.entry(key)[how]({ ...this.quota(limit, window, resolution), cost: Number(cost), strict }, at);
      });
    const looked = each("peek");
    return looked.every(([granted]) => granted > 0) ? [1, ...each("allow")] : [0, ...looked];
  }
}

for (const { name, steps } of vectors("replies").filter(({ name }) => name !== "errors")) {
  test(`replies: ${name}`, () => {
    const player = new Player();
    for (const { command, reply } of steps) {
      const play = () => player.play(command);
      if (reply.error) assert.throws(play, { message: reply.error }, command.join(" "));
      else assert.deepEqual(play(), reply, command.join(" "));
    }
  });
}

test("products beyond 2^53 are exact", () => {
  const most = Number.MAX_SAFE_INTEGER;
  const cost = most - 9;
  const demand = { limit: most, window: 3_600_000, resolution: 3_600_000, cost, strict: false };
  const entry = new Entry();
  assert.deepEqual(entry.allow(demand, 0), [cost, most, 9, 0, 7_200_000]);
  // One ms after the window, 3599999/3600000 of it still count, rounded up.
  const still = Number((BigInt(cost) * 3_599_999n + 3_599_999n) / 3_600_000n);
  assert.equal(entry.peek({ ...demand, cost: 1 }, 3_600_001)[2], most - still);
});

test("a limiter without a server", async () => {
  const limiter = new Limiter({ limit: 2, window: "1h" });
  const granted = [];
  for (let i = 0; i < 3; i++) granted.push((await limiter.allow("a")).granted);
  assert.deepEqual(granted, [1, 1, 0]);
  assert.equal(await limiter.refund("a", 5), 2);
  assert.equal((await limiter.allow("a", { cost: 5, partial: true })).granted, 2);
  assert.equal((await limiter.record("a", { cost: 2 })).granted, 0);
  assert.equal((await limiter.peek("b")).remaining, 2);
  assert.ok((await limiter.block("b", "1m")) > Date.now() + 59_000);
  assert.deepEqual(
    [(await limiter.allow("b")).granted, await limiter.unblock("b"), await limiter.unblock("b")],
    [0, true, false],
  );
  await limiter.reset("a");
  const decision = await limiter.allow("a");
  assert.deepEqual([decision.granted, decision.remaining, decision.local], [1, 1, true]);
  assert.deepEqual(limiter.counts, { server: 0, denials: 0, local: 8, away: 0 });
});

test("the process remembers a bounded number of keys", async () => {
  const limiter = new Limiter({ limit: 1, window: "1h", maxKeys: 2 });
  for (const key of ["a", "b", "c"]) await limiter.allow(key);
  assert.deepEqual([(await limiter.allow("c")).granted, (await limiter.allow("a")).granted], [0, 1]);
});

for (const [what, options, message] of [
  ["a limit", { limit: -1, window: 1 }, /limit must be an integer between 0/],
  ["a limit that is none", { limit: 1.5, window: 1 }, /limit must be an integer/],
  ["a window", { limit: 1, window: "1 minute" }, /window must be a duration/],
  ["a window in fractions", { limit: 1, window: 0.5 }, /window must be a duration/],
  ["a resolution", { limit: 1, window: "1m", resolution: "7s" }, /resolution must divide the window evenly/],
  ["a share", { limit: 1, window: "1m", localShare: 2 }, /localShare must be/],
  ["a way without a server", { limit: 1, window: "1m", decide: "direct" }, /needs a client/],
  ["a client", { limit: 1, window: "1m", client: {} }, /client must be a client of/],
]) {
  test(`${what} that cannot be is refused`, () => assert.throws(() => new Limiter(options), message));
}
