/** A client that asks a sentinel where the server is. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import { createSentinel } from "redis";
import { eventually, key, limiter, port } from "./support.mjs";

const sentinel = { host: "127.0.0.1", port: port("sentinel") };

async function nodeRedis(test) {
  const client = createSentinel({ name: "main", sentinelRootNodes: [sentinel] });
  client.on("error", () => {});
  await client.connect();
  test.after(() => client.destroy());
  return client;
}

async function ioredis(test) {
  const client = new Redis({ name: "main", sentinels: [sentinel] });
  test.after(() => client.disconnect());
  await eventually(() => client.status === "ready");
  return client;
}

for (const [name, open] of Object.entries({ redis: nodeRedis, ioredis })) {
  test(`through a sentinel, with ${name}`, async (test) => {
    const three = limiter(test, { client: await open(test), window: 300, resolution: 100 });
    const k = key();
    assert.equal((await three.allow(k, { cost: 3 })).remaining, 0);
    const denied = await three.allow(k);
    assert.deepEqual([denied.granted, denied.source], [0, "server"]);
    assert.equal((await three.acquire(k, "5s")).granted, 1);
  });
}
