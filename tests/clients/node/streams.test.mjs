/** Places that responses and WebSockets hold until they end, on real servers, with clients that leave. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, get } from "node:http";
import { test } from "node:test";
import express from "express";
import { Limiter } from "swlimit";
import { concurrencyLimit } from "swlimit/express";
import { webSocketLimit } from "swlimit/ws";
import { WebSocket, WebSocketServer } from "ws";
import { connect, eventually, holds, key, limiter } from "./support.mjs";

/** A server that ends with the test; its port. */
async function listening(test, listener) {
  const server = createServer(listener).listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return server;
}

/** An application that streams until the test ends its responses; how many places are taken. */
async function streaming(test, options, rule = {}) {
  const places = holds(test, { client: await connect(test), prefix: `${key()}:`, limit: 1 });
  const open = [];
  const app = express();
  const limit = concurrencyLimit({ limiter: places, key: () => "k", ...rule }, options);
  app.get("/", limit, (_, response) => {
    response.write("first");
    open.push(response);
  });
  app.use((error, _request, response, _next) => response.status(500).send(error.message));
  const server = await listening(test, app);
  const ask = async () => {
    const request = get({ port: server.address().port, host: "127.0.0.1", agent: false });
    request.on("error", () => {});
    const [response] = await once(request, "response");
    response.resume();
    response.on("error", () => {});
    return { request, response };
  };
  return { places, open, ask, server, taken: async () => (await places.holders("k")).length };
}

test("a place is held until a response has ended", async (test) => {
  const { open, ask, taken } = await streaming(test);
  const { response } = await ask();
  assert.deepEqual([response.statusCode, await taken(), open[0].locals.hold.isLive], [200, 1, true]);
  const { response: denied } = await ask();
  assert.deepEqual([denied.statusCode, denied.headers["retry-after"], open.length], [429, undefined, 1]);
  open[0].end();
  await eventually(async () => (await taken()) === 0, "its end");
  assert.equal((await ask()).response.statusCode, 200);
});

test("a client that leaves in the middle gives its place back", async (test) => {
  const { open, ask, taken } = await streaming(test, { wait: "20s" });
  const { request } = await ask();
  const waiting = ask();
  request.destroy();
  assert.equal((await waiting).response.statusCode, 200);
  assert.deepEqual([open.length, await taken()], [2, 1]);
});

test("a client that leaves while it waits takes no place", async (test) => {
  const { open, ask, taken, server } = await streaming(test, { wait: "1h" });
  await ask();
  const waiting = get({ port: server.address().port, host: "127.0.0.1", agent: false });
  waiting.on("error", () => {});
  const [, response] = await once(server, "request");
  waiting.destroy();
  await once(response, "close");
  open[0].end();
  await eventually(async () => (await taken()) === 0, "its end");
  assert.equal((await ask()).response.statusCode, 200);
  assert.equal(open.length, 2);
});

test("a client that has left before it is asked takes no place", async (test) => {
  const places = holds(test, { client: await connect(test), prefix: `${key()}:`, limit: 1 });
  let asked = 0;
  const limit = concurrencyLimit({ limiter: places, key: () => `${Math.min(++asked, 1)}` });
  const app = express();
  app.get("/late", (_request, response, next) => response.once("close", () => setImmediate(next)), limit);
  app.get("/", limit, (_, response) => response.end());
  const server = await listening(test, app);
  const url = `http://127.0.0.1:${server.address().port}`;
  const request = get(`${url}/late`, { agent: false });
  request.on("error", () => {});
  await once(server, "request");
  request.destroy();
  await eventually(() => asked === 1);
  assert.equal((await fetch(url)).status, 200);
});

test("an answer of one's own, errors, and requests without a key", async (test) => {
  const onDenied = (_, response, _next, { limit }) => response.status(503).end(`${limit}`);
  const none = await streaming(test, { onDenied }, { limiter: holds(test, { limit: 0 }) });
  assert.equal((await none.ask()).response.statusCode, 503);
  const failing = await streaming(test, {}, { key: () => Promise.reject(new Error("no key")) });
  assert.equal((await failing.ask()).response.statusCode, 500);
  const free = await streaming(test, {}, { key: () => undefined, limiter: holds(test, { limit: 0 }) });
  assert.equal((await free.ask()).response.statusCode, 200);
});

/** A server of WebSockets that echoes; a function that connects a client to it. */
async function echoing(test, rules) {
  const server = await listening(test);
  const sockets = new WebSocketServer({ server });
  test.after(() => {
    for (const client of sockets.clients) client.terminate();
    sockets.close();
  });
  const limited = webSocketLimit(rules, (socket) => {
    socket.on("message", (data) => socket.send(`${data}`));
    socket.on("close", (code) => server.emit("left", code));
  });
  sockets.on("connection", limited);
  return async (sends = []) => {
    const client = new WebSocket(`ws://127.0.0.1:${server.address().port}`);
    const got = [];
    client.on("message", (data) => got.push(`${data}`));
    client.on("error", () => {});
    const closed = once(client, "close").then(([code, reason]) => [code, `${reason}`]);
    await once(client, "open");
    for (const text of sends) client.send(text);
    return { client, got, closed, server };
  };
}

test("a WebSocket holds a place until it is closed, or its client leaves", async (test) => {
  const places = holds(test, { client: await connect(test), prefix: `${key()}:`, limit: 2 });
  const open = await echoing(test, { connections: { limiter: places } });
  const taken = async () => (await places.holders("127.0.0.1")).length;
  const first = await open(["a", "b", "c"]); // before it is decided
  await eventually(() => first.got.length === 3);
  assert.deepEqual(first.got, ["a", "b", "c"]);
  const second = await open();
  await eventually(async () => (await taken()) === 2);
  assert.deepEqual(await (await open(["d"])).closed, [1013, "too many connections"]);
  first.client.close(1000);
  await eventually(async () => (await taken()) === 1, "its end");
  second.client.terminate();
  await eventually(async () => (await taken()) === 0, "its end");
  const third = await open(["e"]);
  await eventually(() => third.got.length === 1);
});

test("a client that leaves before it is decided holds no place", async (test) => {
  const places = holds(test, { client: await connect(test), prefix: `${key()}:` });
  let hasLeft = false;
  const slow = () => eventually(() => hasLeft && "k");
  const open = await echoing(test, { connections: { limiter: places, key: slow } });
  const { client, closed } = await open();
  client.terminate();
  await closed;
  hasLeft = true;
  await eventually(() => places.statistics.server === 1, "its decision");
  assert.equal(places.denied.server, 0);
  await eventually(async () => (await places.holders("k")).length === 0, "its end");
});

test("a WebSocket that was closed before the listener got it holds no place", async (test) => {
  const places = holds(test, { client: await connect(test), prefix: `${key()}:` });
  const sockets = new WebSocketServer({ server: await listening(test) });
  const limited = webSocketLimit({ connections: { limiter: places, key: () => "k" } }, () => {});
  sockets.on("connection", (socket, request) => socket.on("close", () => setImmediate(limited, socket, request)));
  const client = new WebSocket(`ws://127.0.0.1:${sockets.address().port}`);
  client.on("open", () => client.terminate());
  await eventually(() => places.statistics.server === 1, "its decision");
  await eventually(async () => (await places.holders("k")).length === 0, "its end");
});

test("a message beyond the limit closes its connection", async (test) => {
  const three = limiter(test, { client: await connect(test), prefix: `${key()}:`, window: "1m", resolution: "5s" });
  const open = await echoing(test, { messages: { limiter: three, key: () => "k" } });
  const { got, closed, server } = await open(["a", "b", "c", "d", "e"]);
  const left = once(server, "left");
  const [code, reason] = await closed;
  assert.equal(code, 1008);
  assert.match(reason, /^too many messages, retry after [56]\d s$/);
  assert.deepEqual(got, ["a", "b", "c"]);
  assert.deepEqual(await left, [1008]);
  assert.equal((await three.peek("k")).remaining, 0);
});

test("a limit that fails refuses the connection, and its socket's errors end nothing", async (test) => {
  const refusing = new Limiter({ limit: 1, window: "1m", client: () => Promise.reject(new Error("ERR no")) });
  const warned = once(process, "warning");
  const open = await echoing(test, { messages: { limiter: refusing } });
  assert.deepEqual(await (await open(["a"])).closed, [1011, "the limits failed"]);
  assert.match(String((await warned)[0]), /ERR no/);
  const none = await echoing(test, { connections: { limiter: holds(test, { limit: 0 }) } });
  const { client, closed } = await none();
  client._socket.write(Buffer.from([0xff, 0xff, 0xff, 0xff])); // no frame
  assert.ok([1013, 1002, 1006].includes((await closed)[0]));
  assert.throws(() => webSocketLimit({}, () => {}), /needs connections, messages, or both/);
});
