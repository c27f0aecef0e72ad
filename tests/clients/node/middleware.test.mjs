/** The middleware for Express, Fastify, Hono and Koa: one behaviour in all of them, over HTTP. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { serve as serveHono } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import { Limiter, Limits } from "swlimit";
import * as forExpress from "swlimit/express";
import * as forFastify from "swlimit/fastify";
import * as forHono from "swlimit/hono";
import * as forKoa from "swlimit/koa";
import { addressKey, limitsMethod } from "../../../src/clients/node/dist/esm/adapters/http.js";
import { asking, assertRetryAfter, connect, eventually, key, limiter, serve, statuses, vectors } from "./support.mjs";

/** How each framework serves one route behind the middleware, and how it reads a header. */
const FRAMEWORKS = {
  Express: {
    header: (request, name) => request.get(name),
    onDenied: (_, response, _next, { never }) => {
      response.statusCode = 503;
      response.end(`${never}`);
    },
    async serve(test, rules, options) {
      const app = express();
      app.get("/", forExpress.rateLimit(rules, options), (_, response) => response.send("welcome"));
      app.use((error, _request, response, _next) => response.status(500).send(error.message));
      return serve(test, app);
    },
  },
  Fastify: {
    header: (request, name) => request.headers[name],
    onDenied: (_, reply, { never }) => reply.code(503).send(`${never}`),
    async serve(test, rules, options) {
      const app = fastify({ forceCloseConnections: true });
      app.get("/", { onRequest: forFastify.rateLimit(rules, options) }, () => "welcome");
      await app.listen({ port: 0, host: "127.0.0.1" });
      test.after(() => app.close());
      return asking(app.server.address().port);
    },
  },
  Koa: {
    header: (context, name) => context.get(name) || undefined,
    onDenied: (context, { never }) => {
      context.status = 503;
      context.body = `${never}`;
    },
    async serve(test, rules, options) {
      const app = new Koa();
      app.use((context, next) =>
        next().catch((error) => {
          context.status = 500;
          context.body = error.message;
        }),
      );
      app.use(forKoa.rateLimit(rules, options));
      app.use((context) => {
        context.body = "welcome";
      });
      return serve(test, app.callback());
    },
  },
  Hono: {
    header: (context, name) => context.req.header(name),
    onDenied: (context, { never }) => context.text(`${never}`, 503),
    async serve(test, rules, options) {
      const app = new Hono();
      app.get("/", forHono.rateLimit(rules, options), (context) => context.text("welcome"));
      app.onError((error, context) => context.text(error.message, 500));
      const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
      test.after(() => server.close());
      await once(server, "listening");
      return asking(server.address().port);
    },
  },
};

for (const [name, framework] of Object.entries(FRAMEWORKS)) {
  const named = (value, cost) => ({ headers: { "x-key": value, ...(cost && { "x-cost": String(cost) }) } });

  test(`${name}: by address, with headers and an exact Retry-After`, async (test) => {
    const three = limiter(test, { client: await connect(test), prefix: `${key()}:`, window: "1m" });
    const ask = await framework.serve(test, { limiter: three });
    const first = await ask();
    assert.deepEqual([first.status, first.text], [200, "welcome"]);
    assert.equal(first.headers["ratelimit-policy"], '"default";q=3;w=60');
    assert.match(first.headers.ratelimit, /^"default";r=2;t=\d+$/);
    assert.ok(!("retry-after" in first.headers) && !("x-ratelimit-limit" in first.headers));
    assert.deepEqual(await statuses(ask, 3), [200, 200, 429]);
    const denied = await ask();
    assert.equal(denied.text, "Too many requests, please try again later.");
    assert.match(denied.headers["content-type"], /^text\/plain; charset=utf-8$/i);
    assert.match(denied.headers.ratelimit, /^"default";r=0;t=\d+$/);
    assertRetryAfter(denied, await three.peek("127.0.0.1"));
  });

  test(`${name}: keys, costs, and requests that are not limited`, async (test) => {
    const three = limiter(test, { client: await connect(test), prefix: `${key()}:` });
    const ask = await framework.serve(
      test,
      {
        limiter: three,
        key: async (request) => framework.header(request, "x-key"),
        cost: (request) => Number(framework.header(request, "x-cost") ?? 1),
      },
      { headers: { legacy: true } },
    );
    const first = await ask("/", named("ann", 2));
    assert.deepEqual([first.status, first.headers["x-ratelimit-remaining"]], [200, "1"]);
    assert.deepEqual(await statuses(ask, 2, "/", named("ann", 2)), [429, 429]);
    assert.equal((await ask("/", named("ann"))).status, 200);
    assert.equal((await ask("/", named("ben", 3))).status, 200);
    const free = await ask();
    assert.deepEqual([free.status, "ratelimit" in free.headers], [200, false]);
    const never = await ask("/", named("zoe", 4));
    assert.deepEqual([never.status, "retry-after" in never.headers], [429, false]);
  });

  test(`${name}: a limit that depends on who asks`, async (test) => {
    const plans = limiter(test, { client: await connect(test), prefix: `${key()}:`, limit: 1 });
    const ask = await framework.serve(test, {
      limiter: async (request) => plans.with({ limit: Number(framework.header(request, "x-plan")) }),
      key: (request) => framework.header(request, "x-key"),
    });
    for (const plan of [0, 2]) {
      const found = await statuses(ask, 4, "/", { headers: { "x-key": `of-${plan}`, "x-plan": String(plan) } });
      assert.deepEqual(found, [...Array(plan).fill(200), ...Array(4 - plan).fill(429)]);
    }
  });

  test(`${name}: several limits, all or nothing`, async (test) => {
    const client = await connect(test);
    const made = (limit, window, name) => limiter(test, { client, limit, window, name, prefix: `${key()}:` });
    const [burst, hour] = [made(2, "1s", "burst"), made(3, "1h", "hour")];
    const rules = [burst, hour].map((limiter) => ({ limiter, key: () => "k" }));
    const ask = await framework.serve(test, rules);
    assert.deepEqual(await statuses(ask, 3), [200, 200, 429]);
    assert.equal((await hour.peek("k")).remaining, 1, "what one denies no other counts");
    const { headers } = await ask();
    assert.equal(headers["ratelimit-policy"], '"burst";q=2;w=1, "hour";q=3;w=3600');
    assert.match(headers["retry-after"], /^[12]$/);
  });

  test(`${name}: several rates as a text`, async (test) => {
    const limits = new Limits({ client: await connect(test), rates: "3/h; 2/m", prefix: `${key()}:`, timeout: 2000 });
    test.after(() => limits.close());
    const ask = await framework.serve(test, { limiter: limits, key: () => "k" });
    assert.deepEqual(await statuses(ask, 3), [200, 200, 429]);
  });

  test(`${name}: rules of some methods`, async (test) => {
    const none = limiter(test, { limit: 0, mode: "local" });
    const found = {};
    for (const [methods, methodExact] of [[["get"]], [["GET"], true], [["POST"]], [[]]]) {
      const ask = await framework.serve(test, { limiter: none, methods, methodExact });
      found[`${methods} ${methodExact}`] = [(await ask()).status, (await ask("/", { method: "HEAD" })).status];
    }
    assert.deepEqual(found, {
      "get undefined": [429, 429],
      "GET true": [429, 200],
      "POST undefined": [200, 200],
      " undefined": [429, 429],
    });
  });

  test(`${name}: an answer of one's own, and no headers`, async (test) => {
    const none = limiter(test, { limit: 0, mode: "local" });
    const ask = await framework.serve(test, { limiter: none }, { headers: false, onDenied: framework.onDenied });
    const { status, text, headers } = await ask();
    assert.deepEqual([status, text, "ratelimit" in headers], [503, "true", false]);
  });

  test(`${name}: the headers of each draft, and none that is made up`, async (test) => {
    const client = await connect(test);
    const made = (limit, name) => limiter(test, { client, limit, window: "1m", name, prefix: `${key()}:` });
    const rules = [made(9, "many"), made(1, "few")].map((limiter) => ({ limiter, key: () => "k" }));
    const seen = {};
    for (const standard of ["draft-6", "draft-7", "draft-8"]) {
      const ask = await framework.serve(test, rules, { headers: { standard } });
      seen[standard] = (await ask()).headers;
    }
    assert.equal(seen["draft-6"]["ratelimit-policy"], "9;w=60, 1;w=60");
    assert.deepEqual([seen["draft-6"]["ratelimit-limit"], seen["draft-6"]["ratelimit-remaining"]], ["1", "0"]);
    assert.match(seen["draft-7"].ratelimit, /^limit=1, remaining=0, reset=\d+$/);
    assert.match(seen["draft-8"].ratelimit, /"few";r=0;t=\d+$/);
    const ask = await framework.serve(test, rules);
    // Once it is known that one denies, nobody asks about the other one, and no header names it.
    await eventually(async () => !(await ask()).headers.ratelimit.includes("many"));
    const { headers } = await ask();
    assert.equal(headers["ratelimit-policy"], '"many";q=9;w=60, "few";q=1;w=60');
  });

  test(`${name}: a server that refuses fails the request; one that is away does not`, async (test) => {
    const failing = (message) =>
      new Limiter({ limit: 3, window: "1m", client: () => Promise.reject(new Error(message)) });
    const refused = await (await framework.serve(test, { limiter: failing("ERR unknown command 'SWLIMIT.ALLOW'") }))();
    assert.deepEqual([refused.status, /loadmodule/.test(refused.text)], [500, true]);
    const away = await framework.serve(test, { limiter: failing("connect ECONNREFUSED") });
    assert.deepEqual(await statuses(away, 3), [200, 429, 429]); // a share of three is one
  });
}

test("which methods are limited", () => {
  for (const { methods, exact: methodExact, matching, other } of vectors("methods")) {
    const limited = [...matching, ...other].filter((method) => limitsMethod({ methods, methodExact }, method));
    assert.deepEqual(limited, matching, `${methods} ${methodExact}`);
  }
});

test("addresses as keys", () => {
  for (const { address, key } of vectors("addresses")) assert.equal(addressKey(address), key, address);
});

for (const [name, { rateLimit }] of Object.entries({
  Express: forExpress,
  Fastify: forFastify,
  Hono: forHono,
  Koa: forKoa,
})) {
  test(`${name}: wrong rules are refused when the middleware is made`, () => {
    const three = new Limiter({ limit: 3, window: "1m" });
    for (const [rules, options, error] of [
      [{}, {}, /^TypeError: limiter must be a Limiter or Limits, or a function of the request, not undefined/],
      [three, {}, /^TypeError: a rule must be an object such as \{ limiter, key \}, not a Limiter or Limits/],
      [[], {}, /^TypeError: there must be a rule/],
      [{ limiter: three, key: "x" }, {}, /^TypeError: key must be a function, not "x"/],
      [{ limiter: three, cost: "3" }, {}, /^RangeError: cost must be an integer .*, not "3"/],
      [{ limiter: three, methods: "POST" }, {}, /^TypeError: methods must be a list of texts, not "POST"/],
      [[{ limiter: three }, { limiter: three, kye: () => "k" }], {}, /^TypeError: there is no option kye/],
      [{ limiter: three }, { onDeny: () => {} }, /^TypeError: there is no option onDeny/],
      [{ limiter: three }, { onDenied: 429 }, /^TypeError: onDenied must be a function, not 429/],
    ]) {
      assert.throws(() => rateLimit(rules, options), error);
    }
  });
}

test("a wrong rule of holds is refused when the middleware is made", () => {
  const limiter = new Limiter({ limit: 3, window: "1m" });
  assert.throws(() => forExpress.concurrencyLimit({ limiter }), /limiter must be a HoldLimiter, or a function/);
});
