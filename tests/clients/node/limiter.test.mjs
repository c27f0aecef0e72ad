/** A limiter on a real server, through each client. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import { allowAll, Limiter, RefusedError } from "swlimit";
import { CLIENTS, connect, eventually, key, limiter, port, told } from "./support.mjs";

for (const [name, open] of Object.entries(CLIENTS)) {
  for (const mode of ["direct", "cached"]) {
    test(`every command through ${name}, ${mode}`, async (test) => {
      const three = limiter(test, { client: await open(test), mode });
      const k = key();
      assert.deepEqual(told(await three.allow(k, { cost: 2 })), {
        granted: 2,
        limit: 3,
        remaining: 1,
        source: "server",
      });
      assert.deepEqual(told(await three.peek(k)), { granted: 1, limit: 3, remaining: 1, source: "server" });
      assert.deepEqual(told(await three.allow(k, { cost: 2, partial: true })), {
        granted: 1,
        limit: 3,
        remaining: 0,
        source: "server",
      });
      const denied = await three.allow(k);
      assert.deepEqual([denied.granted, denied.source], [0, "server"]);
      assert.ok(denied.retryAfter > 9000 && denied.retryAfter <= 11_000, `${denied.retryAfter}`);
      assert.ok(denied.resetAfter > denied.retryAfter - 1 && denied.resetAfter <= 11_000);
      assert.equal(await three.refund(k, 2), 2);
      assert.equal((await three.allow(k)).remaining, 1);
      assert.equal((await three.record(k, { cost: 4, age: "1s" })).granted, 0);
      assert.equal((await three.record(k, { block: "1h" })).retryAfter > 3_500_000, true);
      assert.equal(await three.unblock(k), true);
      assert.equal(await three.unblock(k), false);
      const until = await three.block(k, "1h");
      assert.ok(until > Date.now() + 3_590_000);
      assert.equal(await three.block(k, "2h", { unlessBlocked: true }), until);
      await three.reset(k);
      assert.deepEqual(told(await three.acquire(k, "1s", { cost: 3 })), {
        granted: 3,
        limit: 3,
        remaining: 0,
        source: "server",
      });
      assert.equal((await three.acquire(k, "20ms")).granted, 0);
    });
  }
}

test("strict windows and windows of another length", async (test) => {
  const client = await connect(test);
  const k = key();
  const strict = limiter(test, { client, strict: true, window: 10_000, resolution: 5000 });
  await strict.allow(k, { cost: 3 });
  const { retryAfter } = await strict.allow(k);
  assert.ok(retryAfter > 10_000 && retryAfter <= 15_000);
  const wide = strict.with({ limit: 5 });
  assert.deepEqual(told(await wide.allow(k)), { granted: 1, limit: 5, remaining: 1, source: "server" });
  assert.equal(wide.quota.resolution, 5000);
  assert.equal(strict.with({ window: "1m" }).quota.resolution, 5000);
});

test("several limits at once: all or nothing", async (test) => {
  const client = await connect(test);
  const k = key();
  const burst = limiter(test, { client, limit: 2, window: "1s", resolution: "100ms", name: "burst", prefix: "burst:" });
  const hour = limiter(test, { client, limit: 10, window: "1h", resolution: "1m", name: "hour", prefix: "hour:" });
  const both = (cost) =>
    allowAll([
      { limiter: burst, key: k, cost },
      { limiter: hour, key: k },
    ]);
  const granted = await both(2);
  assert.deepEqual([granted.granted, granted.retryAfter, granted.each[0].source], [true, 0, "server"]);
  assert.deepEqual(
    granted.each.map(({ remaining }) => remaining),
    [0, 9],
  );
  const denied = await both(2);
  assert.equal(denied.granted, false);
  assert.ok(denied.retryAfter > 500 && denied.retryAfter <= 1100);
  assert.equal(denied.each[1].remaining, 9, "nothing is counted");
  const never = await both(3);
  assert.deepEqual([never.granted, never.never, never.each[0].source], [false, true, "cache"]);
  const headers = denied.headers();
  assert.equal(headers["RateLimit-Policy"], '"burst";q=2;w=1, "hour";q=10;w=3600');
  assert.match(headers.RateLimit, /^"burst";r=0;t=\d, "hour";r=9;t=36\d\d$/);
  assert.match(headers["Retry-After"], /^[12]$/);
});

test("limits that cannot be decided at once are refused", async (test) => {
  const client = await connect(test);
  const one = limiter(test, { client });
  const other = limiter(test, { client: await connect(test) });
  const strict = limiter(test, { client, strict: true });
  for (const [limiters, message] of [
    [[], /at least one/],
    [[one, other], /same client/],
    [[one, strict], /all be strict or none/],
    [[one, one], /key named twice/],
  ]) {
    await assert.rejects(allowAll(limiters.map((limiter) => ({ limiter, key: "k" }))), { message });
  }
});

test("what the server refuses is thrown, and said clearly", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client });
  const k = key();
  await client.set(k, "text");
  await assert.rejects(three.allow(k), (error) => error instanceof RefusedError && /WRONGTYPE/.test(error.message));
  await assert.rejects(three.acquire(k, "1s"), /WRONGTYPE/);
  const fine = limiter(test, { client, limit: 1, window: 65_537, resolution: 1 });
  await assert.rejects(fine.allow(key()), /ERR window \/ resolution is 65537 subintervals/);
  for (const cost of [0, -1, 1.5, 2 ** 53]) await assert.rejects(three.allow(k, { cost }), RangeError);
});

test("headers", async () => {
  const limiter = new Limiter({ limit: 100, window: "60s", resolution: "5s", name: 'a "name"' });
  const granted = await limiter.allow("k");
  assert.deepEqual(granted.headers(), {
    "RateLimit-Policy": '"a \\"name\\"";q=100;w=60',
    RateLimit: `"a \\"name\\"";r=99;t=${Math.ceil(granted.resetAfter / 1000)}`,
  });
  const denied = await limiter.allow("k", { cost: 100 });
  const headers = denied.headers({ legacy: true });
  assert.equal(headers["Retry-After"], String(Math.ceil(denied.retryAfter / 1000)));
  assert.deepEqual([headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]], ["100", "99"]);
  const reset = Number(headers["X-RateLimit-Reset"]) - Date.now() / 1000;
  assert.ok(reset > 58 && reset <= 66, `${reset}`);
  const never = await limiter.allow("k", { cost: 101 });
  assert.deepEqual([never.retryAfter, never.never, "Retry-After" in never.headers()], [undefined, true, false]);
});

test("a clock of this process that is set changes no decision", async (test) => {
  const client = await connect(test);
  const asked = limiter(test, { client, window: "1h" });
  const local = limiter(test, { window: "1h", resolution: "1m" });
  const away = limiter(test, { client: () => Promise.reject(new Error("gone")), window: "1h", limit: 10 });
  const [k, other] = [key(), key()];
  await asked.record(k, { cost: 3 });
  await local.record(k, { cost: 3 });
  await away.allow(k);
  await eventually(async () => (await asked.allow(k)).source === "cache", "a local denial");
  const { now } = Date;
  test.after(() => {
    Date.now = now;
  });
  for (const days of [-400, 400]) {
    Date.now = () => now() + days * 86_400_000;
    assert.deepEqual(told(await asked.allow(k)), { granted: 0, limit: 3, remaining: 0, source: "cache" });
    assert.deepEqual(told(await local.allow(k)), { granted: 0, limit: 3, remaining: 0, source: "local" });
    assert.deepEqual(told(await away.allow(k)), { granted: 0, limit: 1, remaining: 0, source: "failure" });
    assert.equal((await asked.allow(other)).source, "server");
    assert.equal(await asked.refund(other), 1);
  }
});

test("what is asked at once costs redis no timer each, and is one write of ioredis's", async (test) => {
  const clients = [await connect(test), new Redis({ port: port(), host: "127.0.0.1" })];
  test.after(() => clients[1].disconnect());
  for (const client of clients) {
    const three = limiter(test, { client, mode: "direct", timeout: 20_000 });
    await eventually(async () => (await three.allow(key())).source === "server", "its connection");
    const timers = test.mock.method(AbortSignal, "timeout");
    const stream = client.stream && three.core.server("k").connection; // not the caller's own
    const writes = stream && ["_write", "_writev"].map((how) => test.mock.method(stream, how));
    const decided = await Promise.all(Array.from({ length: 50 }, () => three.allow(key())));
    assert.ok(decided.every(({ granted, source }) => granted === 1 && source === "server"));
    assert.equal(timers.mock.callCount(), 0);
    if (writes) assert.equal(writes[0].mock.callCount() + writes[1].mock.callCount(), 1);
    timers.mock.restore();
  }
});
