/** A client that asks a sentinel where the server is. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import { createSentinel } from "redis";
import { connect, eventually, key, limiter, losesReply, port, sender, sockets } from "./support.mjs";

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

for (const [name, open] of Object.entries({ redis: nodeRedis, ioredis })) {
  test(`a request whose reply is lost is counted once, with ${name}`, async (test) => {
    const direct = sender(await connect(test));
    const opened = sockets(test);
    const three = limiter(test, { client: await open(test), mode: "direct", timeout: 2000, onFailure: "deny" });
    await eventually(async () => (await three.allow(key())).source === "server", "its connection");
    // Whether the server has the module is found out for each connection, by a reply.
    for (let asked = 0; asked < 5; asked++) await three.allow(key());
    await losesReply(three, opened, async (k) => (await direct("SWLIMIT.PEEK", k, 3, "10000ms", "1000ms"))[2]);
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
  assert.equal((await sender(master)("SWLIMIT.ALLOW", k, 3, "3600000ms", "1000ms", "COST", 2))[0], 2);
  assert.equal(await master.sendCommand(["WAIT", "1", "5000"]), 1);
  await eventually(() => told.sendCommand(["SENTINEL", "FAILOVER", "main"]).catch(() => false), "the failover");
  const role = async (client) => (await client.sendCommand(["ROLE"]).catch(() => [""]))[0];
  await eventually(async () => (await role(replica)) === "master", "the new master", 60_000);
  // For seconds the old one goes on as a master, and grants what nobody would count.
  const warned = limiters.map((three) =>
    eventually(
      async () => (await three.peek(k)) && three.servers().some(({ failovers }) => failovers === 1),
      "its noticing",
      60_000,
    ),
  );
  await Promise.all(warned);
  assert.match(limiters[1].servers()[0].address, new RegExp(`:${port("replica")}$`));
  const other = key();
  await eventually(async () => (await limiters[1].allow(other)).source === "server", "its new connection", 60_000);
  assert.equal((await sender(replica)("SWLIMIT.PEEK", other, 3, "3600000ms", "1000ms"))[2], 2);
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
