/**
 * The store of express-rate-limit and hono-rate-limiter, in both.
 *
 * The tests that express-rate-limit has for its own stores are not in its package. What they ask of a store is asked
 * here.
 */

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { serve as serveHono } from "@hono/node-server";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { SwlimitStore } from "swlimit/express-rate-limit";
import { asking, assertRetryAfter, connect, eventually, key, limiter, serve, sleep, statuses } from "./support.mjs";

const MINUTE = 60_000;

async function store(test, { client, ...options } = {}) {
  const made = new SwlimitStore({
    client: client ?? (await connect(test)),
    prefix: `${key()}:`,
    timeout: 2000,
    ...options,
  });
  test.after(() => made.shutdown());
  return made;
}

async function ready(test, options = {}) {
  const made = await store(test);
  made.init({ windowMs: MINUTE, limit: 5, ...options });
  return made;
}

test("the first increment makes one, the next one two", async (test) => {
  const made = await ready(test);
  const first = await made.increment("k");
  assert.equal(first.totalHits, 1);
  assert.ok(first.resetTime instanceof Date && first.resetTime > Date.now() + MINUTE - 2000);
  assert.equal((await made.increment("k")).totalHits, 2);
  assert.equal((await made.increment("other")).totalHits, 1);
});

test("get tells the hits and the reset time, and counts nothing", async (test) => {
  const made = await ready(test);
  assert.equal(await made.get("k"), undefined);
  await made.increment("k");
  for (let i = 0; i < 2; i++) {
    const found = await made.get("k");
    assert.equal(found.totalHits, 1);
    assert.ok(found.resetTime instanceof Date);
  }
});

test("decrement takes one back, and never more than there are", async (test) => {
  const made = await ready(test);
  await made.increment("k");
  await made.increment("k");
  await made.decrement("k");
  assert.equal((await made.increment("k")).totalHits, 2);
  for (let i = 0; i < 5; i++) await made.decrement("k");
  assert.equal((await made.increment("k")).totalHits, 1);
});

test("resetKey forgets a key, and only that", async (test) => {
  const made = await ready(test);
  await made.increment("k");
  await made.increment("other");
  await made.resetKey("k");
  assert.equal(await made.get("k"), undefined);
  assert.equal((await made.increment("k")).totalHits, 1);
  assert.equal((await made.increment("other")).totalHits, 2);
});

test("hits end with their window", async (test) => {
  const made = await ready(test, { windowMs: 100 });
  await made.increment("k");
  await sleep(210);
  assert.equal((await made.increment("k")).totalHits, 1);
});

test("a denial is one hit above the limit, however many there are, and says when it ends", async (test) => {
  const made = await ready(test, { limit: 2 });
  const hits = [];
  for (let i = 0; i < 5; i++) hits.push((await made.increment("k")).totalHits);
  assert.deepEqual(hits, [1, 2, 3, 3, 3]);
  const { resetTime } = await made.increment("k");
  const { retryAfter } = await limiter(test, {
    client: await connect(test),
    limit: 2,
    window: MINUTE,
    resolution: undefined,
    prefix: made.prefix,
  }).peek("k");
  assert.ok(Math.abs(resetTime - Date.now() - retryAfter) < 1000);
  assert.equal((await made.get("k")).totalHits, 2);
});

test("fixed windows begin with the first request, and all comes back at once", async (test) => {
  const made = await store(test, { fixed: true });
  made.init({ windowMs: MINUTE, limit: 2 });
  assert.equal(await made.get("k"), undefined);
  const first = await made.increment("k");
  assert.ok(Math.abs(first.resetTime - Date.now() - MINUTE) < 20_000);
  const hits = [first.totalHits];
  for (let i = 0; i < 3; i++) hits.push((await made.increment("k")).totalHits);
  assert.deepEqual(hits, [1, 2, 3, 3]);
  const { resetTime, totalHits } = await made.get("k");
  assert.ok(totalHits === 2 && Math.abs(resetTime - first.resetTime) < 5000, "the window stands");
  await made.decrement("k");
  assert.equal((await made.increment("k")).totalHits, 2);
  await made.resetKey("k");
  assert.equal((await made.increment("k")).totalHits, 1);
  const short = await store(test, { fixed: true });
  short.init({ windowMs: 300, limit: 1 });
  await eventually(async () => (await short.increment("k")).totalHits === 2, "a denial");
  await eventually(async () => (await short.increment("k")).totalHits === 1, "the next window");
  assert.throws(() => new SwlimitStore({ fixed: "yes" }).init({ windowMs: 1, limit: 1 }), /fixed must be/);
});

test("two stores share what they count, unless their prefixes differ", async (test) => {
  const made = await ready(test);
  const same = await store(test, { prefix: made.prefix });
  const apart = await store(test);
  for (const other of [same, apart]) other.init({ windowMs: MINUTE, limit: 5 });
  await made.increment("k");
  assert.equal((await same.increment("k")).totalHits, 2);
  assert.equal((await apart.increment("k")).totalHits, 1);
  assert.equal(made.localKeys, false);
});

/** An Express application behind express-rate-limit with the store; what it is asked with. */
async function application(test, options, routes = () => {}) {
  const made = await store(test, options.storeOptions);
  const app = express();
  const logged = [];
  const logger = { error: (error) => logged.push(error), warn: (warning) => logged.push(warning) };
  const { storeOptions, ...others } = options;
  app.use(rateLimit({ windowMs: MINUTE, limit: 3, store: made, logger, keyGenerator: () => "k", ...others }));
  app.get("/", (_, response) => response.send("welcome"));
  app.get("/bad", (_, response) => response.status(400).end());
  routes(app);
  app.use((error, _request, response, _next) => response.status(500).send(error.message));
  return { ask: await serve(test, app), made, logged };
}

test("express-rate-limit: three and no more, with the headers of each draft", async (test) => {
  for (const standardHeaders of ["draft-6", "draft-7", "draft-8"]) {
    const { ask, made, logged } = await application(test, { standardHeaders });
    assert.deepEqual(await statuses(ask, 3), [200, 200, 200]);
    const denied = await ask();
    const { status, headers } = denied;
    assert.equal(status, 429);
    const client = await connect(test);
    assertRetryAfter(
      denied,
      await limiter(test, { client, window: MINUTE, resolution: undefined, prefix: made.prefix }).peek("k"),
    );
    assert.equal(headers["x-ratelimit-limit"], "3");
    assert.equal(headers["x-ratelimit-remaining"], "0");
    assert.deepEqual(logged, []);
  }
});

test("express-rate-limit: who waits as told is let in", async (test) => {
  const { ask } = await application(test, { windowMs: 1000, limit: 1 });
  assert.equal((await ask()).status, 200);
  const { status, headers } = await ask();
  assert.equal(status, 429);
  await sleep(Number(headers["retry-after"]) * 1000);
  assert.equal((await ask()).status, 200);
});

test("express-rate-limit: a limit of 0 lets nobody in", async (test) => {
  const { ask } = await application(test, { limit: 0 });
  assert.deepEqual(await statuses(ask, 2), [429, 429]);
});

test("express-rate-limit: failed requests that are skipped give back what was counted, and no more", async (test) => {
  const { ask, made } = await application(test, { skipFailedRequests: true });
  assert.deepEqual(await statuses(ask, 10, "/bad"), Array(10).fill(400));
  await eventually(async () => (await made.get("k")) === undefined, "all given back");
  assert.deepEqual(await statuses(ask, 3), [200, 200, 200]);
  // Denials are failures, too. They were never counted, so nothing must be given back for them.
  assert.deepEqual(await statuses(ask, 10), Array(10).fill(429));
  assert.equal((await made.get("k")).totalHits, 3);
});

test("express-rate-limit: successful requests that are skipped", async (test) => {
  const { ask, made } = await application(test, { skipSuccessfulRequests: true });
  assert.deepEqual(await statuses(ask, 10), Array(10).fill(200));
  assert.deepEqual(await statuses(ask, 5, "/bad"), [400, 400, 400, 429, 429]);
  assert.equal((await made.get("k")).totalHits, 3);
});

test("express-rate-limit: requests that end in any order give back their own", async (test) => {
  const held = [];
  const { ask, made } = await application(test, { skipFailedRequests: true, limit: 2 }, (app) =>
    app.get("/slow", (_, response) => held.push(response)),
  );
  const slow = [ask("/slow"), ask("/slow")];
  await eventually(() => held.length === 2);
  assert.deepEqual(await statuses(ask, 5), Array(5).fill(429)); // each is decremented while the two are counted
  assert.equal((await made.get("k")).totalHits, 2);
  held[0].status(500).end();
  held[1].status(200).end();
  await Promise.all(slow);
  await eventually(async () => (await made.get("k")).totalHits === 1, "one given back");
});

test("express-rate-limit: a client that hangs up", async (test) => {
  const held = [];
  const { ask, made } = await application(test, { skipFailedRequests: true }, (app) =>
    app.get("/slow", (_, response) => held.push(response)),
  );
  const controller = new AbortController();
  const gone = ask("/slow", { signal: controller.signal });
  await eventually(() => held.length === 1);
  assert.equal((await made.get("k")).totalHits, 1);
  controller.abort();
  await assert.rejects(gone);
  await eventually(async () => (await made.get("k")) === undefined, "given back");
});

test("express-rate-limit: limits that are functions count all requests, denied ones, too", async (test) => {
  const limit = (request) => Number(request.query.plan);
  const { ask, made, logged } = await application(test, { limit, keyGenerator: (request) => request.query.plan });
  for (const plan of [2, 1, 4]) {
    const found = await statuses(ask, plan + 2, `/?plan=${plan}`);
    assert.deepEqual(found, [...Array(plan).fill(200), 429, 429]);
    assert.equal((await made.get(String(plan))).totalHits, plan + 2);
  }
  const { headers } = await ask("/?plan=1");
  assert.ok(headers["retry-after"] > 55 && headers["retry-after"] <= 66, headers["retry-after"]);
  assert.deepEqual(logged, []);
  const before = await store(test);
  await assert.rejects(before.increment("k"), /init of the store was not called/);
});

test("express-rate-limit: resetKey and getKey of the middleware", async (test) => {
  const made = await store(test);
  const limit = rateLimit({ windowMs: MINUTE, limit: 1, store: made, keyGenerator: () => "k" });
  const app = express().use(limit);
  app.get("/", (_, response) => response.send("welcome"));
  const ask = await serve(test, app);
  assert.deepEqual(await statuses(ask, 2), [200, 429]);
  assert.equal((await limit.getKey("k")).totalHits, 1);
  await limit.resetKey("k");
  assert.deepEqual(await statuses(ask, 2), [200, 429]);
});

test("express-rate-limit: a server that is away", async (test) => {
  const away = () => Promise.reject(new Error("connect ECONNREFUSED"));
  const { ask } = await application(test, { storeOptions: { client: away, onFailure: "deny" } });
  assert.deepEqual(await statuses(ask, 2), [429, 429]);
  const open = await application(test, {
    storeOptions: { client: away, onFailure: "allow" },
    skipFailedRequests: true,
  });
  assert.deepEqual(await statuses(open.ask, 5, "/bad"), Array(5).fill(400));
});

/** An application of Hono behind hono-rate-limiter with the store. */
async function honoApplication(test, options) {
  const made = await store(test);
  const app = new Hono();
  app.use(rateLimiter({ windowMs: MINUTE, limit: 3, keyGenerator: () => "k", store: made, ...options }));
  app.get("/", (context) => context.text("welcome"));
  app.get("/bad", (context) => context.text("bad", 400));
  const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
  test.after(() => server.close());
  await once(server, "listening");
  return { ask: asking(server.address().port), made };
}

test("hono-rate-limiter: three and no more", async (test) => {
  const { ask, made } = await honoApplication(test, { standardHeaders: "draft-6" });
  assert.deepEqual(await statuses(ask, 3), [200, 200, 200]);
  const denied = await ask();
  assert.equal(denied.status, 429);
  const client = await connect(test);
  assertRetryAfter(
    denied,
    await limiter(test, { client, window: MINUTE, resolution: undefined, prefix: made.prefix }).peek("k"),
  );
});

test("hono-rate-limiter: failed requests that are skipped give back what was counted, and no more", async (test) => {
  const { ask, made } = await honoApplication(test, {
    skipFailedRequests: true,
    // It asks this before it has answered a denial, when the status is still 200.
    requestWasSuccessful: (context) => context.req.path !== "/bad",
  });
  assert.deepEqual(await statuses(ask, 5, "/bad"), Array(5).fill(400));
  assert.equal(await made.get("k"), undefined);
  assert.deepEqual(await statuses(ask, 3), [200, 200, 200]);
  assert.deepEqual(await statuses(ask, 5, "/bad"), Array(5).fill(429));
  assert.equal((await made.get("k")).totalHits, 3);
});

test("hono-rate-limiter: limits that are functions", async (test) => {
  const { ask } = await honoApplication(test, {
    limit: (context) => Number(context.req.query("plan")),
    keyGenerator: (context) => context.req.query("plan"),
  });
  for (const plan of [0, 3]) {
    assert.deepEqual(await statuses(ask, plan + 2, `/?plan=${plan}`), [...Array(plan).fill(200), 429, 429]);
  }
});
