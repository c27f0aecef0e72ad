/** Clients of GLIDE: what they show less than others. */

import assert from "node:assert/strict";
import { createServer, connect as socketTo } from "node:net";
import { test } from "node:test";
import { BudgetLimiter, ClusterClientError, HoldLimiter, Limiter, UnavailableError } from "swlimit";
import { connect, eventually, key, limiter, port } from "./support.mjs";

const { GlideClient } = await import(process.env.SWLIMIT_GLIDE ?? "@valkey/valkey-glide");

async function glide(test, { of, at = port(of), ...options } = {}) {
  const addresses = [{ host: "127.0.0.1", port: at }];
  const client = await GlideClient.createClient({ addresses, requestTimeout: 20_000, ...options });
  test.after(() => client.close());
  return client;
}

/** A way to the server that can be cut, and whose replies can be held back. */
async function way(test) {
  const sockets = new Set();
  const server = createServer((near) => {
    const far = socketTo(port(), "127.0.0.1");
    near.pipe(far);
    far.on("data", (bytes) => found.isHeld || near.write(bytes));
    for (const one of [near, far]) {
      sockets.add(one);
      one.on("error", () => {});
    }
  });
  const cut = () => {
    for (const one of sockets) one.destroy();
    sockets.clear();
  };
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.close();
    cut();
  });
  const found = { at: server.address().port, isHeld: false, cut };
  return found;
}

test("a request whose reply is lost is counted once, and the server is back", async (test) => {
  const direct = await connect(test);
  const through = await way(test);
  const three = limiter(test, { client: await glide(test, { at: through.at }), mode: "direct", onFailure: "deny" });
  await three.allow(key());
  const k = key();
  through.isHeld = true;
  const asking = three.allow(k);
  const left = async () => (await direct.sendCommand(["SWLIMIT.PEEK", k, "3", "10s", "1s"]))[2];
  await eventually(async () => (await left()) === 2, "its count");
  through.cut();
  through.isHeld = false;
  const { granted, source } = await asking;
  assert.deepEqual([granted, source], [0, "failure"]);
  await eventually(async () => (await three.allow(key())).source === "server", "its return");
  assert.equal(await left(), 2);
});

test("a reply that does not come is no answer", async (test) => {
  const through = await way(test);
  const client = await glide(test, { at: through.at, requestTimeout: 60 });
  const three = limiter(test, { client, mode: "direct", onFailure: "error", timeout: 60 });
  through.isHeld = true;
  await assert.rejects(
    three.allow(key()),
    (error) => error instanceof UnavailableError && error.reason === "no_answer",
  );
});

test("error replies are in the server's words", async (test) => {
  const admin = await connect(test);
  const client = await glide(test);
  const three = limiter(test, { client });
  const k = key();
  await admin.set(k, "text");
  await assert.rejects(three.allow(k), { name: "RefusedError", message: /^WRONGTYPE / });
  for (const [reply, reason] of [
    ["OOM no room", "OOM"],
    ["READONLY a replica", "READONLY"],
    ["LOADING it", "LOADING"],
    ["NOAUTH first", "auth"],
    ["CLUSTERDOWN now", "CLUSTERDOWN"],
    ["BUSY a script", "BUSY"],
  ]) {
    const refused = {
      customCommand: (_words, options) =>
        client.customCommand(["EVAL", "return redis.error_reply(ARGV[1])", "0", reply], options),
      config: client.config,
      requestTimeout: client.requestTimeout,
    };
    const one = limiter(test, { client: refused, mode: "direct", onFailure: "error" });
    await assert.rejects(one.allow(key()), (error) => error instanceof UnavailableError && error.reason === reason);
  }
  const redirected = {
    customCommand: () => client.customCommand(["EVAL", "return redis.error_reply('MOVED 1 127.0.0.1:1')", "0"]),
    config: client.config,
    requestTimeout: client.requestTimeout,
  };
  const one = limiter(test, { client: redirected, mode: "direct" });
  await assert.rejects(one.allow(key()), (error) => error instanceof ClusterClientError && /Glide/.test(error.message));
});

test("texts are read where the client gives bytes", async (test) => {
  for (const of of ["main", "bare"]) {
    const client = await glide(test, { of, defaultDecoder: 0 });
    const budget = new BudgetLimiter({ client, limit: 5, period: "year", timeout: "20s" });
    test.after(() => budget.close());
    const k = key();
    await budget.allow(k, { cost: 2 });
    assert.equal((await budget.peek(k)).remaining, 3);
    assert.equal(budget.servers()[0].backend, of === "main" ? "module" : "script");
    assert.equal(budget.servers()[0].address, `127.0.0.1:${port(of)}`);
  }
});

test("what such a client cannot do is said when the limiter is made", async (test) => {
  const client = await glide(test, { requestTimeout: 250 });
  const options = { client, limit: 3, window: "1m" };
  new Limiter({ ...options, timeout: 250 }).close();
  assert.throws(() => new Limiter({ ...options, timeout: 251 }), {
    name: "RangeError",
    message: /^timeout must be at most 250 ms, after which the client drops replies, not 251: .*`requestTimeout`$/,
  });
  assert.throws(() => new HoldLimiter({ client, limit: 3 }), /^RangeError: timeout must be at most 250 ms/);
  const replicas = await glide(test, { readFrom: "preferReplica" });
  assert.throws(() => new Limiter({ ...options, client: replicas }), /^TypeError: .*`readFrom: "primary"`/);
});

test("a limiter whose client is closed decides by its policy", async (test) => {
  const client = await glide(test);
  const three = limiter(test, { client, mode: "direct", onFailure: "deny" });
  assert.equal((await three.allow(key())).source, "server");
  client.close();
  assert.equal((await three.allow(key())).source, "failure");
});
