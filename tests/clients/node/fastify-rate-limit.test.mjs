/** The store of @fastify/rate-limit, in it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fastifyRateLimit from "@fastify/rate-limit";
import fastify from "fastify";
import { BudgetLimiter } from "swlimit";
import { swlimitStore } from "swlimit/fastify-rate-limit";
import { asking, assertRetryAfter, connect, eventually, key, limiter, sleep, statuses } from "./support.mjs";

/** An application behind the plugin with the store. */
async function application(test, options, routes = () => {}) {
  const prefix = `${key()}:`;
  const store = swlimitStore({ client: await connect(test), prefix, timeout: 2000, ...options.storeOptions });
  const app = fastify({ forceCloseConnections: true });
  const { storeOptions, ...others } = options;
  await app.register(fastifyRateLimit, { max: 3, timeWindow: "1 minute", keyGenerator: () => "k", store, ...others });
  app.get("/", () => "welcome");
  await routes(app);
  await app.listen({ port: 0, host: "127.0.0.1" });
  test.after(() => app.close());
  return { ask: asking(app.server.address().port), prefix };
}

test("three and no more, and an exact Retry-After", async (test) => {
  const { ask, prefix } = await application(test, {});
  const first = await ask();
  assert.deepEqual([first.headers["x-ratelimit-limit"], first.headers["x-ratelimit-remaining"]], ["3", "2"]);
  assert.deepEqual(await statuses(ask, 3), [200, 200, 429]);
  const denied = await ask();
  const three = limiter(test, { client: await connect(test), window: 60_000, resolution: undefined, prefix });
  assertRetryAfter(denied, await three.peek("k"));
  assert.equal((await three.peek("k")).remaining, 0);
});

test("who waits as told is let in", async (test) => {
  const { ask } = await application(test, { max: 1, timeWindow: 1000 });
  assert.deepEqual(await statuses(ask, 2), [200, 429]);
  await sleep(Number((await ask()).headers["retry-after"]) * 1000);
  assert.equal((await ask()).status, 200);
});

test("limits and windows that depend on the request", async (test) => {
  const { ask } = await application(test, {
    max: (request) => Number(request.headers["x-plan"]),
    timeWindow: (request) => (Number(request.headers["x-plan"]) + 1) * 10_000,
    keyGenerator: (request) => request.headers["x-plan"],
  });
  for (const plan of ["1", "4", "0"]) {
    const limit = Number(plan);
    const found = await statuses(ask, limit + 2, "/", { headers: { "x-plan": plan } });
    assert.deepEqual(found, [...Array(limit).fill(200), 429, 429]);
  }
});

test("routes with options of their own", async (test) => {
  const { ask } = await application(test, {}, (app) => {
    app.get("/two", { config: { rateLimit: { max: 2, timeWindow: "1 hour" } } }, () => "welcome");
    app.get("/free", { config: { rateLimit: false } }, () => "welcome");
  });
  assert.deepEqual(await statuses(ask, 3, "/two"), [200, 200, 429]);
  assert.deepEqual(await statuses(ask, 4), [200, 200, 200, 429]);
  assert.deepEqual(await statuses(ask, 5, "/free"), Array(5).fill(200));
});

test("looking without counting", async (test) => {
  const { ask } = await application(test, { global: false }, (app) => {
    const check = app.createRateLimit({ max: 2 });
    app.get("/look", (request) => check(request, { increment: false }));
    app.get("/count", (request) => check(request));
  });
  const remaining = async (path) => JSON.parse((await ask(path)).text).remaining;
  assert.deepEqual([await remaining("/look"), await remaining("/look")], [2, 2]);
  assert.deepEqual([await remaining("/count"), await remaining("/look")], [1, 1]);
});

test("a ban at once", async (test) => {
  const { ask } = await application(test, { ban: 0, max: 1 });
  assert.deepEqual(await statuses(ask, 2), [200, 403]);
});

test("a ban after some denials blocks the key", async (test) => {
  const { ask, prefix } = await application(test, { ban: 2, max: 1, timeWindow: 2000 });
  assert.deepEqual(await statuses(ask, 6), [200, 429, 429, 403, 403, 403]);
  const client = await connect(test);
  const { blocked } = await client.sendCommand(["SWLIMIT.INFO", `${prefix}k`]);
  assert.ok(Number(blocked) > Date.now());
  const one = limiter(test, { client, prefix, limit: 1, window: 2000, resolution: undefined });
  await eventually(async () => (await one.peek("k")).granted === 1, "its end");
  assert.equal((await ask()).status, 200);
});

test("fixed windows: all comes back at once, and routes keep their own windows", async (test) => {
  const { ask, prefix } = await application(test, { storeOptions: { fixed: true } }, (app) => {
    app.get("/short", { config: { rateLimit: { max: 1, timeWindow: 1500 } } }, () => "welcome");
  });
  assert.deepEqual(await statuses(ask, 4), [200, 200, 200, 429]);
  const { headers, began } = await ask();
  const minute = new BudgetLimiter({ client: await connect(test), prefix, limit: 3, window: "1m", timeout: 2000 });
  test.after(() => minute.close());
  assertRetryAfter({ headers, began }, await minute.peek("k"));
  assert.deepEqual(await statuses(ask, 1, "/short"), [200]);
  await eventually(async () => (await ask("/short")).status === 429, "a denial");
  await eventually(async () => (await ask("/short")).status === 200, "the next window");
  assert.equal((await ask()).status, 429);
  await assert.rejects(application(test, { ban: 1, storeOptions: { fixed: true } }), /fixed windows have no `ban`/);
  assert.throws(() => swlimitStore({ fixed: "yes" }), /fixed must be/);
});

for (const [option, value] of [
  ["continueExceeding", true],
  ["exponentialBackoff", true],
]) {
  test(`${option} is refused loudly`, async (test) => {
    await assert.rejects(application(test, { [option]: value }), new RegExp(option));
  });
}

test("a server that is away", async (test) => {
  const client = () => Promise.reject(new Error("connect ECONNREFUSED"));
  const { ask } = await application(test, { storeOptions: { client, onFailure: "deny" } });
  assert.deepEqual(await statuses(ask, 2), [429, 429]);
});

test("a server that refuses fails the request", async (test) => {
  const client = () => Promise.reject(new Error("WRONGTYPE Operation against a key holding the wrong kind of value"));
  const { ask } = await application(test, { storeOptions: { client } });
  const { status, text } = await ask();
  assert.deepEqual([status, /WRONGTYPE/.test(text)], [500, true]);
});
