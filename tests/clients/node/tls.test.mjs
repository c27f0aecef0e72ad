/** A server that speaks TLS only: the connections beside the client's own do, too. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { eventually, key, limiter, port } from "./support.mjs";

const ca = readFileSync(process.env.SWLIMIT_CA);

async function nodeRedis(test) {
  const client = createClient({ socket: { port: port(), host: "127.0.0.1", tls: true, ca } });
  client.on("error", () => {});
  await client.connect();
  test.after(() => client.destroy());
  return client;
}

async function ioredis(test) {
  const client = new Redis(port(), "127.0.0.1", { tls: { ca } });
  test.after(() => client.disconnect());
  await eventually(() => client.status === "ready");
  return client;
}

for (const [name, open] of Object.entries({ redis: nodeRedis, ioredis })) {
  test(`over TLS, with ${name}`, async (test) => {
    const client = await open(test);
    const three = limiter(test, { client, window: "1m", resolution: "100ms" });
    const k = key();
    await three.record(k, { cost: 3, age: "59s" });
    await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
    assert.equal(three.core.server(k).invalidations?.isOpen, true);
    assert.equal((await three.acquire(k, "20s")).granted, 1);
    // Its client is connected, and nobody answers on that connection: the one that takes its place speaks TLS.
    const silent = () => new Promise(() => {});
    client[client.call ? "call" : "sendCommand"] = silent;
    const direct = limiter(test, { client, timeout: 100, mode: "direct" });
    await eventually(async () => (await direct.allow(k)).source === "server", "its return");
  });
}
