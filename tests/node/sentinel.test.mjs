/** A client that asks a sentinel where the server is. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import { createSentinel } from "redis";
import { asker, connect, eventually, key, limiter, port } from "./support.mjs";

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

test("through a failover: counts stay, and who was master grants nothing any more", async (test) => {
  const limiters = [];
  for (const open of [nodeRedis, ioredis]) {
    limiters.push(limiter(test, { client: await open(test), window: "1h", onFailure: "deny", timeout: 200 }));
  }
  const k = key();
  for (const three of limiters)
    await eventually(async () => (await three.peek(k)).source === "server", "its connection");
  const [master, replica, told] = await Promise.all(
    ["main", "replica", "sentinel"].map((of) => connect(test, { of, RESP: 2 })),
  );
  assert.equal((await asker(master)("SWLIMIT.ALLOW", k, 3, "3600000ms", "1000ms", "COST", 2))[0], 2);
  assert.equal(await master.sendCommand(["WAIT", "1", "5000"]), 1);
  await eventually(() => told.sendCommand(["SENTINEL", "FAILOVER", "main"]).catch(() => false), "the failover");
  const role = async (client) => (await client.sendCommand(["ROLE"]).catch(() => [""]))[0];
  await eventually(async () => (await role(replica)) === "master", "the new master", 60_000);
  await eventually(async () => (await role(master)) === "slave", "the old master's end", 60_000);
  for (const three of limiters) {
    await eventually(async () => (await three.peek(k)).source === "server", "its return", 60_000);
  }
  const decided = (three) =>
    eventually(
      async () => {
        const { granted, source } = await three.allow(k);
        return source === "server" && { granted };
      },
      "a decision",
      60_000,
    );
  assert.deepEqual([await decided(limiters[0]), await decided(limiters[1])], [{ granted: 1 }, { granted: 0 }]);
});
