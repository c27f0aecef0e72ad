/** The window of this process decides as the module does: tests/conformance/vectors. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient as createClient4, createCluster as createCluster4 } from "redis-4";
import { admit, allowAll, BudgetLimiter, Entry, HoldLimiter, Limiter, ModuleMissingError } from "swlimit";
import { ASK_INTERVAL } from "../../../src/clients/node/dist/esm/clients/sentinels.js";
import {
  callerDeadline,
  MAX_EXACT,
  MAX_SUBINTERVALS,
  MAX_WINDOW,
  parseDuration,
  usualResolution,
} from "../../../src/clients/node/dist/esm/core/duration.js";
import { classify } from "../../../src/clients/node/dist/esm/core/errors.js";
import { shareOf } from "../../../src/clients/node/dist/esm/core/local-windows.js";
import { COLD } from "../../../src/clients/node/dist/esm/core/warm-up.js";
import * as admission from "../../../src/clients/node/dist/esm/limiters/admission.js";
import { SHORT_MS, SHORT_TRIPS } from "../../../src/clients/node/dist/esm/limiters/cached-mode.js";
import { DenialCache, deniedFor, LOOK_DENIALS } from "../../../src/clients/node/dist/esm/limiters/denial-cache.js";
import { LEAST_TTL, LONGEST_WAIT } from "../../../src/clients/node/dist/esm/limiters/hold.js";
import { RESERVED, reservationOf } from "../../../src/clients/node/dist/esm/limiters/settlement.js";
import { SCRIPT_SUBINTERVALS, SCRIPT_TRIES } from "../../../src/clients/node/dist/esm/protocol/script-fallback.js";
import { LOOP_TURNS } from "../../../src/clients/node/dist/esm/transport/batch-timeouts.js";
import { POLL } from "../../../src/clients/node/dist/esm/transport/blocking-connections.js";
import { FAILURES, FIRST_PROBE, JITTER, LAST_PROBE } from "../../../src/clients/node/dist/esm/transport/breaker.js";
import { CLOSING, CLOSING_TRIPS } from "../../../src/clients/node/dist/esm/transport/core.js";
import { MAX_HOLD_POLL, MIN_HOLD_POLL } from "../../../src/clients/node/dist/esm/transport/hold-queue.js";
import { lifetime, MAX_IDS, RENEWALS, RETRIES } from "../../../src/clients/node/dist/esm/transport/hold-renewer.js";
import { SILENCE } from "../../../src/clients/node/dist/esm/transport/invalidation.js";
import { MAX_RECORDS } from "../../../src/clients/node/dist/esm/transport/retry-queue.js";
import { CONNECTING, PROBE_TIMEOUT, SILENT_TIMEOUTS } from "../../../src/clients/node/dist/esm/transport/server.js";
import { LATE, MAX_UNANSWERED } from "../../../src/clients/node/dist/esm/transport/server-connection.js";

import { vectors } from "./support.mjs";

test("reasons", () => {
  const happened = {
    "connection refused": "ECONNREFUSED",
    "socket file missing": "ENOENT",
    "host unreachable": "EHOSTUNREACH",
    "name not resolved": "ENOTFOUND",
    "certificate refused": "DEPTH_ZERO_SELF_SIGNED_CERT",
    "TLS handshake failed": "ERR_SSL_WRONG_VERSION_NUMBER",
    "no connection in time": "ETIMEDOUT",
    "connection reset": "ECONNRESET",
    "broken pipe": "EPIPE",
  };
  const { ends, replies } = vectors("reasons");
  for (const { name, reason } of ends) {
    const code = happened[name];
    if (code) assert.equal(classify(Object.assign(new Error("redis-tls-1 password"), { code })).reason, reason, name);
  }
  for (const { name, reply, reason } of replies) {
    const error = classify(new Error(reply));
    if (reason === "module_missing") assert.ok(error instanceof ModuleMissingError, name);
    else assert.equal(error.reason ?? null, reason, name);
  }
});

test("durations", () => {
  for (const { text, ms } of vectors("durations")) assert.equal(parseDuration(text) || null, ms, JSON.stringify(text));
});

/** A request of a vector, as a demand. */
function demandOf({ warm_up: duration, cold = COLD, ...request }) {
  return duration ? { ...request, warmUp: { duration, cold } } : request;
}

test("decisions", () => {
  for (const { stored, since, blocked_until: blocked, now, request, decision } of vectors("decisions")) {
    const entry = new Entry();
    for (const [start, cost] of stored?.counts ?? []) {
      const { window, resolution } = stored;
      entry.record({ limit: 0, window, resolution, cost, partial: false, strict: false }, start);
    }
    if (since) entry.since = since;
    if (blocked > 0) entry.block(1, blocked - 1);
    const before = JSON.stringify(entry);
    assert.deepEqual(entry.peek(demandOf(request), now), decision, JSON.stringify(request));
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
        found[name.toLowerCase()] = ["AGE", "BLOCK", "WARMUP"].includes(name) ? parseDuration(value) : Number(value);
        rest = after;
      }
    }
    const { warmup: warm_up, ...options } = found;
    return demandOf({ warm_up, ...options });
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
    const rest = words.slice(keys.length);
    const demands = keys.map(() => {
      const [limit, window, resolution, cost] = rest.splice(0, 4);
      const { warmUp } = this.options(rest.splice(0, rest[0] !== "WARMUP" ? 0 : rest[2] === "COLD" ? 4 : 2));
      return { ...this.quota(limit, window, resolution), cost: Number(cost), warmUp };
    });
    const { at, strict } = this.options(rest);
    const each = (how) => keys.map((key, place) => this.entry(key)[how]({ ...demands[place], strict }, at));
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
  assert.deepEqual([decision.granted, decision.remaining, decision.source], [1, 1, "local"]);
  assert.deepEqual(limiter.statistics, { server: 0, cache: 0, failure: 0, local: 8, lost: 0, evicted: 0 });
});

test("the process remembers a bounded number of keys", async () => {
  const limiter = new Limiter({ limit: 1, window: "1h", maxKeys: 2 });
  for (const key of ["a", "b", "c"]) await limiter.allow(key);
  assert.deepEqual([(await limiter.allow("c")).granted, (await limiter.allow("a")).granted], [0, 1]);
});

for (const [what, options, message] of [
  ["a limit", { limit: -1, window: 1 }, /limit must be an integer between 0/],
  ["a limit that is none", { limit: 1.5, window: 1 }, /limit must be an integer/],
  ["an infinite limit", { limit: Number.POSITIVE_INFINITY, window: 1 }, /limit must be an integer/],
  ["a window", { limit: 1, window: "1 minute" }, /window must be a duration/],
  ["a window in fractions", { limit: 1, window: 0.5 }, /window must be a duration/],
  ["an infinite window", { limit: 1, window: Number.POSITIVE_INFINITY }, /window must be a duration/],
  ["a window before", { limit: 1, window: -1 }, /window must be a duration/],
  ["a window of another type", { limit: 1, window: new Date() }, /window must be a duration/],
  ["a resolution", { limit: 1, window: "1m", resolution: "7s" }, /resolution must divide the window evenly/],
  ["a million subintervals and one", { limit: 1, window: 1_000_001, resolution: 1 }, /is 1000001 subintervals, above/],
  ["a share", { limit: 1, window: "1m", localShare: 2 }, /localShare must be/],
  ["a share that is none", { limit: 1, window: "1m", localShare: "0.1x" }, /localShare must be/],
  ["a mode without a server", { limit: 1, window: "1m", mode: "direct" }, /needs a client/],
  ["a mode", { limit: 1, window: "1m", mode: "leased", client: () => {} }, /mode must be one of "direct"/],
  ["a policy", { limit: 1, window: "1m", onFailure: "open" }, /onFailure must be one of "local", "allow", .*"open"/],
  ["a timeout", { limit: 1, window: "1m", timeout: "soon" }, /timeout must be a duration/],
  ["a timeout of another type", { limit: 1, window: "1m", timeout: [50] }, /timeout must be a duration/],
  ["a number of keys", { limit: 1, window: "1m", maxKeys: 0 }, /maxKeys must be an integer between 1/],
  ["a prefix", { limit: 1, window: "1m", prefix: 7 }, /prefix must be a string/],
  ["strictness", { limit: 1, window: "1m", strict: "no" }, /strict must be true or false/],
  ["a client", { limit: 1, window: "1m", client: {} }, /client must be a client of/],
  ["ioredis-mock", { limit: 1, window: "1m", client: new (class RedisMock {})() }, /swlimit\/testing, or a server/],
  [
    "a URL as a client",
    { limit: 1, window: "1m", client: "redis://127.0.0.1" },
    /client must be a client of .* string/,
  ],
  ["no client where there is none", { limit: 1, window: "1m", client: null }, /client must be .* object/],
  ["release 4 of redis", { limit: 1, window: "1m", client: createClient4() }, /needs release 5 or later/],
  [
    "a cluster of release 4",
    { limit: 1, window: "1m", client: createCluster4({ rootNodes: [] }) },
    /release 5 or later/,
  ],
  ["an option", { limit: 1, window: "1m", timeOut: 5 }, /there is no option timeOut/],
  ...Object.entries({
    decide: "mode",
    whenAway: "onFailure",
    untracked: "maxUntrackedAge",
    share: "localShare.*leaseShare",
    keyPrefix: "prefix",
  }).map(([old, now]) => [old, { limit: 1, window: "1m", [old]: 1 }, new RegExp(`option ${old} is called ${now}`)]),
]) {
  test(`${what} that cannot be is refused`, () => assert.throws(() => new Limiter(options), message));
}

test("arguments that cannot be are refused at once", async () => {
  const limiter = new Limiter({ limit: 1, window: "1m" });
  const [budget, holds] = [new BudgetLimiter({ limit: 1, period: "day" }), new HoldLimiter({ limit: 1 })];
  for (const [call, message] of [
    [() => limiter.allow(undefined), /key must be a string/],
    [() => limiter.allow("k", { cost: "2" }), /cost must be an integer/],
    [() => limiter.allow("k", { cost: Number.POSITIVE_INFINITY }), /cost must be an integer/],
    [() => limiter.allow("k", { partial: "no" }), /partial must be true or false/],
    [() => limiter.allow("k", { block: -1 }), /block must be a duration/],
    [() => limiter.record("k", { keep: 1 }), /keep must be true or false, not 1/],
    [() => limiter.block("k", "1m", { unlessBlocked: "no" }), /unlessBlocked must be true or false/],
    [() => limiter.acquire("k", "1 s"), /timeout must be a duration/],
    [() => limiter.acquire("k", undefined), /timeout must be a duration/],
    [() => limiter.record("k", { age: -1 }), /age must be a duration/],
    [() => limiter.refund("k", 0), /units must be an integer/],
    [() => limiter.block("k", undefined), /duration must be a duration/],
    [async () => limiter.with({ Limit: 2 }), /there is no option Limit/],
    [async () => budget.with({ limit: 2, period: "day" }), /there is no option period/],
    [() => limiter.allow("k", 2), /options must be an object, not 2/],
    [() => limiter.allow("k", { costs: 2 }), /there is no option costs/],
    [() => limiter.record("k", { partial: true }), /there is no option partial/],
    [() => limiter.acquire("k", 0, { deadline: 5 }), /there is no option deadline/],
    [() => limiter.refund("k", 1, { since: 5 }), /there is no option since/],
    [() => limiter.block("k", "1m", { nx: true }), /there is no option nx/],
    [() => budget.record("k", { partial: true }), /there is no option partial/],
    [() => budget.allow("k", { deadline: "soon" }), /deadline must be a duration/],
    [() => holds.hold("k", { timeout: 5 }), /there is no option timeout/],
    [() => holds.hold("k", { signal: {} }), /signal must be an AbortSignal/],
    [() => admit([{ limiter: holds, key: "k", ttl: "5s" }]), /there is no option ttl/],
    [() => admit([{ limiter: budget, key: "k" }], { waits: 5 }), /there is no option waits/],
    [() => allowAll([{ limiter, key: "k", partial: true }]), /there is no option partial/],
    [() => allowAll([{ limiter, key: "k" }], { deadline: -1 }), /deadline must be a duration/],
    [() => limiter.allow("k", { deadline: "soon" }), /deadline must be a duration/],
    [() => limiter.peek("k", { signal: new AbortController() }), /signal must be an AbortSignal/],
    [() => limiter.acquire("k", 0, { signal: null }), /signal must be an AbortSignal, not null/],
    [() => limiter.allow("k", { signal: AbortSignal.abort(new Error("gone")) }), /gone/],
    [() => allowAll([]), /at least one/],
    [() => allowAll(), /at least one/],
  ]) {
    await assert.rejects(call, { message });
  }
  const { signal } = new AbortController();
  const decided = [limiter, budget, holds].map((one) =>
    (one.hold ?? one.allow).call(one, "k", { deadline: 5, signal }),
  );
  for (const { granted, source } of await Promise.all(decided)) assert.deepEqual([granted, source], [1, "local"]);
});

test("a look pays where many are denied", () => {
  for (const { retry_after: wait, denials } of vectors("defaults").looks) {
    const cache = new DenialCache(10);
    const demand = { limit: 1, window: 3_600_000, resolution: 300_000, strict: false, cost: 1, partial: false };
    cache.remember("k", demand, cache.snapshot("k"), [0, 1, 0, 3_600_000, 0], 0, Number.POSITIVE_INFINITY);
    for (const { at, pays } of denials) {
      if (pays === null) assert.ok(cache.find("k", demand, false));
      else assert.equal(cache.paysToLook("k", at, wait), pays, JSON.stringify({ at, denials }));
    }
    cache.forgetAll();
  }
});

test("defaults", () => {
  const { options, breaker, numbers, resolutions, shares, denials, deadlines, reservations, refusals } =
    vectors("defaults");
  const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
  const { settings } = new Limiter({ client: () => {}, limit: 1, window: "1m" });
  for (const [name, value] of Object.entries(options)) {
    if (!["lease_share", "sync_interval"].includes(name)) assert.equal(settings[camel(name)], value, name);
  }
  assert.deepEqual(breaker, {
    failures: FAILURES,
    silent_timeouts: SILENT_TIMEOUTS,
    first_probe: FIRST_PROBE,
    last_probe: LAST_PROBE,
    jitter: JITTER,
    probe_timeout: PROBE_TIMEOUT,
  });
  const { max_hold_id, max_admitted, ...shared } = numbers; // which the server checks
  assert.deepEqual(shared, {
    ...{ poll: POLL, silence: SILENCE, connect: CONNECTING, sentinel_interval: ASK_INTERVAL, loop_turns: LOOP_TURNS },
    ...{ script_tries: SCRIPT_TRIES, script_subintervals: SCRIPT_SUBINTERVALS },
    ...{ late: LATE, max_unanswered: MAX_UNANSWERED },
    ...{ min_hold_poll: MIN_HOLD_POLL, max_hold_poll: MAX_HOLD_POLL },
    ...{ look_from: SHORT_MS, look_round_trips: SHORT_TRIPS, look_denials: LOOK_DENIALS },
    ...{ closing: CLOSING, closing_round_trips: CLOSING_TRIPS },
    ...{ max_kept: MAX_RECORDS, hold_ttl: new HoldLimiter({ limit: 1 }).ttl, min_hold_ttl: LEAST_TTL },
    ...{ max_hold_wait: LONGEST_WAIT, ids_per_renewal: MAX_IDS, renewals_per_ttl: RENEWALS, retries_per_ttl: RETRIES },
    drift: 1e6 / (1e6 - lifetime(1e6)),
    ...{ admission_poll: admission.POLL, admission_jitter: admission.JITTER, hold_retry_after: admission.PLACE_WAIT },
    reservation_ttl: RESERVED,
    ...{ max_limit: MAX_EXACT, max_window: MAX_WINDOW, max_subintervals: MAX_SUBINTERVALS },
  });
  for (const { window, resolution } of resolutions) assert.equal(usualResolution(window), resolution, `${window}`);
  for (const { limit, share, units } of shares)
    assert.equal(shareOf({ limit }, share).limit, units, `${limit} ${share}`);
  for (const { retry_after: wait, denied_for_us: us } of denials) {
    assert.equal(Math.floor(deniedFor(wait) * 1000 + 0.001), us, `${wait}`);
  }
  for (const { key, name } of reservations) assert.equal(reservationOf(key), name);
  for (const { reply, error } of refusals) assert.equal(classify(new Error(reply)).message, error);
  for (const { left_us: left, wait_us: us } of deadlines) {
    assert.equal(Math.floor(callerDeadline(left / 1000) * 1000 + 0.001), us, `${left}`);
  }
});

test("a clock that is set changes nothing", async (test) => {
  const limiter = new Limiter({ limit: 1, window: "1h" });
  const granted = async () => (await limiter.allow("k")).granted;
  assert.deepEqual([await granted(), await granted()], [1, 0]);
  const { now } = Date;
  test.after(() => (Date.now = now));
  for (const jump of [86_400_000, -86_400_000]) {
    Date.now = () => now() + jump;
    assert.equal(await granted(), 0);
  }
});

test("a limiter is closed where its block ends", async () => {
  let closed = 0;
  {
    await using limiter = new Limiter({ limit: 1, window: "1h" });
    const { close } = limiter;
    limiter.close = () => closed++ || close.call(limiter);
    await limiter.allow("k");
  }
  assert.equal(closed, 1);
});
