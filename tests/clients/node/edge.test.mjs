/** Edge functions: the limiter that asks swlimitd, and what it does when that does not answer. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { SourceTextModule } from "node:vm";
import { EdgeVM } from "@edge-runtime/vm";
import { RefusedError, UnavailableError } from "swlimit";
import { HttpLimiter } from "swlimit/edge";
import { key, port } from "./support.mjs";

/** A limiter of a daemon that test_node.py has started. */
function limiter(options = {}) {
  return new HttpLimiter({
    url: `http://127.0.0.1:${port("daemon")}`,
    limit: 3,
    window: "10s",
    resolution: "1s",
    timeout: 2000,
    ...options,
  });
}

test("three and no more", async () => {
  const three = limiter({ prefix: `${key()}:` });
  const first = await three.allow("k", { cost: 2 });
  assert.deepEqual([first.granted, first.limit, first.remaining, first.source], [2, 3, 1, "server"]);
  assert.match(first.headers().RateLimit, /^"default";r=1;t=1[01]$/);
  assert.equal((await three.peek("k")).remaining, 1);
  assert.equal((await three.allow("k", { cost: 2, partial: true })).granted, 1);
  const denied = await three.allow("k", { block: "1m" });
  assert.deepEqual([denied.granted, denied.retryAfter > 50_000], [0, true]);
  assert.equal((await three.with({ limit: 9 }).peek("k")).granted, 0, "it is blocked");
});

test("what swlimitd refuses is thrown", async () => {
  const unsafe = limiter({ prefix: "x".repeat(2000) });
  await assert.rejects(unsafe.allow("k"), RefusedError);
  await assert.rejects(limiter().allow(7), { message: /key must be a string/ });
  await assert.rejects(limiter().allow("k", { cost: 0 }), RangeError);
  assert.throws(() => limiter({ onFailure: "open" }), /onFailure must be one of/);
  assert.throws(() => limiter({ url: "limits" }), TypeError);
});

test("while swlimitd does not answer", async () => {
  let at;
  const fetch = (url, options) => {
    at = url;
    return globalThis.fetch("http://127.0.0.1:1/", options);
  };
  const decisions = [];
  for (const onFailure of ["local", "allow", "deny"]) {
    decisions.push((await limiter({ fetch, onFailure }).allow("k")).granted);
  }
  assert.deepEqual(decisions, [1, 1, 0]);
  assert.match(at, /\/v1\/allow$/);
  await assert.rejects(limiter({ fetch, onFailure: "error" }).allow("k"), UnavailableError);
  const signal = AbortSignal.abort(new Error("gone"));
  await assert.rejects(limiter().allow("k", { signal }), /gone/);
  await assert.rejects(limiter().peek("k", { block: 5 }), /there is no option block/);
  await assert.rejects(limiter().allow("k", { partial: 1 }), /partial must be true or false/);
});

test("a reply that takes too long is not waited for", async () => {
  const fetch = (_, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const began = performance.now();
  assert.equal((await limiter({ fetch, timeout: 5000 }).allow("k", { deadline: 20 })).source, "failure");
  assert.equal((await limiter({ fetch, timeout: 20 }).allow("k")).source, "failure");
  assert.ok(performance.now() - began < 4500);
});

/** What an edge function has, and nothing else: the runtime that Next.js's own is built on. */
async function edgeFunction(handler) {
  const edge = new EdgeVM();
  const modules = new Map();
  const load = (name) => {
    if (!modules.has(name)) {
      const text = readFileSync(new URL(`../../../src/clients/node/dist/esm/${name}`, import.meta.url), "utf8");
      modules.set(name, new SourceTextModule(text, { identifier: name, context: edge.context }));
    }
    return modules.get(name);
  };
  const program = new SourceTextModule(handler, { identifier: "middleware.js", context: edge.context });
  const at = (name, from) => (name.startsWith(".") ? new URL(name, `file:///${from}`).pathname.slice(1) : name);
  await program.link((name, { identifier }) =>
    load(name === "swlimit/edge" ? "adapters/edge.js" : at(name, identifier)),
  );
  await program.evaluate();
  return edge;
}

test("in an edge function", async () => {
  const prefix = `${key()}:`;
  const edge = await edgeFunction(`
    import { HttpLimiter } from "swlimit/edge";
    const url = "http://127.0.0.1:${port("daemon")}";
    const limiter = new HttpLimiter({ url, limit: 3, window: "1m", prefix: "${prefix}", timeout: 5000 });
    addEventListener("fetch", (event) => event.respondWith(answer(event.request)));
    async function answer(request) {
      const decision = await limiter.allow(request.headers.get("x-user") ?? "anybody", { signal: request.signal });
      return new Response(null, { status: decision.granted ? 200 : 429, headers: decision.headers() });
    }
  `);
  const found = [];
  for (let i = 0; i < 4; i++)
    found.push(await edge.dispatchFetch("http://shop.example/", { headers: { "x-user": "ann" } }));
  assert.deepEqual(
    found.map(({ status }) => status),
    [200, 200, 200, 429],
  );
  assert.match(found[3].headers.get("retry-after"), /^([1-5]?\d|6[0-5])$/);
  assert.equal((await limiter({ prefix, window: "1m", resolution: undefined }).peek("ann")).remaining, 0);
  await assert.rejects(edgeFunction('import { connect } from "node:net";'), /node:net/, "it is no Node.js");
});
