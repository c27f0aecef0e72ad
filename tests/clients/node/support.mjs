/** Clients of the servers that test_node.py has started, and the patience that tests need. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Socket } from "node:net";
import { Cluster, Redis } from "ioredis";
import Redis5 from "ioredis-5";
import * as iovalkey from "iovalkey";
import * as iovalkey0 from "iovalkey-0.1";
import { createClient, createClientPool, createCluster } from "redis";
import { createClient as createClient5, createCluster as createCluster5 } from "redis-5";
import { HoldLimiter, Limiter } from "swlimit";
import { SCRIPT } from "../../../src/clients/node/dist/esm/protocol/script-text.js";

/** The port of a server: of "main", or of another one that test_node.py names. */
export function port(of = "main") {
  const ports = JSON.parse(process.env.SWLIMIT_PORTS);
  assert.ok(ports[of], `no server ${of}`);
  return ports[of];
}

/** What tests/conformance/vectors say, where `{"hex": "…"}` stands for bytes. */
export function vectors(name) {
  const text = readFileSync(new URL(`../../conformance/vectors/${name}.json`, import.meta.url), "utf8");
  return JSON.parse(text, (_, value) => (typeof value?.hex === "string" ? Buffer.from(value.hex, "hex") : value));
}

/** A client of the package redis, which ends with the test. */
export async function connect(test, { of, ...options } = {}) {
  const client = createClient({ socket: { port: port(of), host: "127.0.0.1" }, RESP: 3, ...options });
  client.on("error", () => {});
  await client.connect();
  test.after(() => client.isOpen && client.destroy());
  return client;
}

/** One release of GLIDE in a process: several of them share what they have registered. */
const glide = await import(process.env.SWLIMIT_GLIDE ?? "@valkey/valkey-glide");

function ofIoredis(Client) {
  return (test) => {
    const client = new Client(port());
    test.after(() => client.disconnect());
    return client;
  };
}

function ofGlide(Client) {
  return async (test, of) => {
    const addresses = [{ host: "127.0.0.1", port: port(of) }];
    const client = await Client.createClient({ addresses, requestTimeout: 20_000 });
    test.after(() => client.close());
    return client;
  };
}

/** Each kind of client, which ends with the test. */
export const CLIENTS = {
  "redis 6": (test) => connect(test),
  "redis 6 with RESP2": (test) => connect(test, { RESP: 2 }),
  "redis 6, a pool": async (test) => {
    const pool = await createClientPool({ socket: { port: port() } }).connect();
    test.after(() => pool.destroy());
    return pool;
  },
  "redis 5": async (test) => {
    const client = await createClient5({ socket: { port: port() } }).connect();
    test.after(() => client.destroy());
    return client;
  },
  "redis, by its URL": async (test) => {
    const client = await createClient({ url: `redis://127.0.0.1:${port()}/0` }).connect();
    test.after(() => client.destroy());
    return client;
  },
  ioredis: ofIoredis(Redis),
  "ioredis 5": ofIoredis(Redis5),
  iovalkey: ofIoredis(iovalkey.Redis),
  "iovalkey 0.1": ofIoredis(iovalkey0.Redis),
  GLIDE: (test) => ofGlide(glide.GlideClient)(test),
  "ioredis that gives numbers as texts": (test) => {
    const client = new Redis(port(), { stringNumbers: true });
    test.after(() => client.disconnect());
    return client;
  },
  "a function": async (test) => {
    const client = await connect(test);
    return (args) => client.sendCommand(args);
  },
};

function nodeRedisCluster(create) {
  return async (test, of) => {
    const cluster = create({ rootNodes: [{ socket: { host: "127.0.0.1", port: port(of) } }] });
    cluster.on("error", () => {});
    await cluster.connect();
    test.after(() => cluster.destroy());
    return cluster;
  };
}

function ioredisCluster(Client) {
  return async (test, of) => {
    const cluster = new Client([{ host: "127.0.0.1", port: port(of) }]);
    test.after(() => cluster.disconnect());
    await eventually(() => cluster.status === "ready");
    return cluster;
  };
}

/** Each kind of client of a cluster, which ends with the test. */
export const CLUSTERS = {
  "redis 6": nodeRedisCluster(createCluster),
  "redis 5": nodeRedisCluster(createCluster5),
  ioredis: ioredisCluster(Cluster),
  iovalkey: ioredisCluster(iovalkey.Cluster),
  "iovalkey 0.1": ioredisCluster(iovalkey0.Cluster),
  GLIDE: ofGlide(glide.GlideClusterClient),
};

/** Sends commands to a server; by the script where it lacks the module. */
export function sender(client) {
  return (...words) => {
    const [command, ...rest] = words.map(String);
    return client.sendCommand([command, ...rest]).catch((error) => {
      if (!error.message.includes("unknown command")) throw error;
      const isOfSeveral = ["SWLIMIT.MALLOW", "SWLIMIT.ADMIT", "SWLIMIT.SETTLE"].includes(command);
      const keys = isOfSeveral ? rest.splice(0, 1 + Number(rest[0])) : ["1", rest.shift()];
      return client.sendCommand(["EVAL", SCRIPT, ...keys, command.replace("SWLIMIT.", ""), ...rest]);
    });
  };
}

/** The words of a sent command, as the module gets them; those that the script got are spelled so. */
export function asModule([name, ...words]) {
  if (!name.startsWith("EVALSHA")) return [name, ...words];
  const [, count, ...rest] = words;
  const keys = rest.splice(0, Number(count));
  return [`SWLIMIT.${rest.shift()}`, ...keys, ...rest];
}

/** What a client is given to send from now on, added to `found`. */
export function sent(client, found = []) {
  const { sendCommand } = client;
  client.sendCommand = (words, options) => {
    found.push(words);
    return sendCommand.call(client, words, options);
  };
  return found;
}

/** Call `opened` with each connection that a client opens beside its own from now on. */
export function onDuplicate(client, opened) {
  const { duplicate } = client;
  client.duplicate = (...options) => {
    const made = duplicate.apply(client, options);
    opened(made);
    return made;
  };
}

/** A limiter of holds that ends with the test. */
export function holds(test, options) {
  const made = new HoldLimiter({ limit: 1, ttl: "1m", timeout: 20_000, ...options });
  test.after(() => made.close());
  return made;
}

/** A limiter that ends with the test: 3 of 10 s, unless other things are asked for. */
export function limiter(test, options) {
  const made = new Limiter({ limit: 3, window: "10s", resolution: "1s", timeout: 2000, ...options });
  test.after(() => made.close());
  return made;
}

/** The sockets that are opened until the test ends, as they come. */
export function sockets(test) {
  const opened = new Set();
  const { connect } = Socket.prototype;
  test.mock.method(Socket.prototype, "connect", function (...words) {
    opened.add(this);
    return connect.apply(this, words);
  });
  return opened;
}

/**
 * Ask for one unit of three, and lose the reply: the connections of a limiter's client, among `opened`, are cut once the
 * server has counted, by what `left` says. It is counted once, and the next request is answered.
 */
export async function losesReply(three, opened, left) {
  const k = key();
  for (const socket of opened) socket.pause();
  const asking = three.allow(k);
  await eventually(async () => (await left(k)) === 2, "its count");
  for (const socket of opened) socket.destroy();
  assert.equal((await asking).source, "failure");
  await eventually(async () => (await three.allow(key())).source === "server", "its return");
  assert.equal(await left(k), 2);
}

let names = 0;

/** A key that nobody has used. */
export function key() {
  return `${process.pid}:${names++}`;
}

export function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Wait until `probe()` is true; what it is then. */
export async function eventually(probe, what = "it", ms = 10_000) {
  const deadline = performance.now() + ms;
  for (;;) {
    const found = await probe();
    if (found) return found;
    assert.ok(performance.now() < deadline, `${what} did not come to be`);
    await sleep(5);
  }
}

/** The fields of a decision, without what depends on the clock. */
export function told({ granted, limit, remaining, source }) {
  return { granted, limit, remaining, source };
}

/** Start an HTTP server on a free loopback port; a function that asks it for a path: status, headers, text. */
export async function serve(test, listener) {
  const server = typeof listener === "function" ? createServer(listener) : listener;
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return asking(server.address().port);
}

/** A function that asks a server on loopback for a path: status, headers, text, and when that began. */
export function asking(at) {
  return async (path = "/", options = {}) => {
    const began = performance.now();
    const response = await fetch(`http://127.0.0.1:${at}${path}`, options);
    const headers = Object.fromEntries(response.headers);
    return { status: response.status, headers, text: await response.text(), began };
  };
}

/** The statuses of some requests, one after another. */
export async function statuses(ask, times, ...request) {
  const found = [];
  for (let i = 0; i < times; i++) found.push((await ask(...request)).status);
  return found;
}

/** Retry-After of a response is right by a later decision: whole seconds, not too few, and not one too many. */
export function assertRetryAfter({ headers, began }, { retryAfter }) {
  const least = Math.ceil(retryAfter / 1000);
  const most = Math.ceil((retryAfter + performance.now() - began + 1) / 1000);
  const seconds = Number(headers["retry-after"]);
  assert.ok(seconds >= least && seconds <= most, `${seconds}, and not from ${least} to ${most}`);
}
