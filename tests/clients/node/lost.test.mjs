/** Connections that are lost, and clients that are closed: nothing is counted twice, and nothing outlives them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import { HoldLimiter } from "swlimit";
import { connect, eventually, key, limiter, losesReply, port, sockets } from "./support.mjs";

const CLIENTS = {
  redis: (test, options) => connect(test, options),
  ioredis: (test, { name } = {}) => {
    const client = new Redis({ port: port(), host: "127.0.0.1", connectionName: name });
    client.on("error", () => {});
    test.after(() => client.disconnect());
    return client;
  },
  "ioredis that sends nothing again": (test) => {
    const client = new Redis({ port: port(), host: "127.0.0.1", autoResendUnfulfilledCommands: false });
    client.on("error", () => {});
    test.after(() => client.disconnect());
    return client;
  },
};

for (const [name, open] of Object.entries(CLIENTS)) {
  test(`a request whose reply is lost is counted once, with ${name}`, async (test) => {
    const direct = await connect(test);
    const opened = sockets(test);
    const client = await open(test);
    const three = limiter(test, { client, mode: "direct", timeout: 2000, onFailure: "deny" });
    await eventually(async () => (await three.allow(key())).source === "server", "its connection");
    const left = async (k) => (await direct.sendCommand(["SWLIMIT.PEEK", k, "3", "10s", "1s"]))[2];
    await losesReply(three, opened, left);
  });
}

test("a client that sends again, and cannot be stopped from it, is refused", (test) => {
  const call = () => Promise.resolve([1, 3, 2, 0, 1000]);
  assert.throws(
    () => limiter(test, { client: { call, options: {}, on() {} } }),
    /autoResendUnfulfilledCommands: false/,
  );
});

for (const name of ["redis", "ioredis"]) {
  for (const isWaiting of [false, true]) {
    test(`no connection outlives a client that is closed${isWaiting ? " while somebody waits" : ""}: ${name}`, async (test) => {
      const admin = await connect(test);
      const client = await CLIENTS[name](test, { name: key() });
      const called = client.options.name ?? client.options.connectionName;
      const own = async () => (await admin.sendCommand(["CLIENT", "LIST"])).split(`name=${called} `).length - 1;
      const three = limiter(test, { client, timeout: 2000, onFailure: "deny", window: "1h" });
      const holds = new HoldLimiter({ client, limit: 1, timeout: 2000, onFailure: "deny" });
      const k = key();
      await three.record(k, { cost: 3 });
      await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
      const held = key();
      await holds.hold(held);
      assert.equal((await holds.hold(held, { wait: 10 })).granted, 0);
      const waiting = isWaiting && Promise.all([holds.hold(held, { wait: "60s" }), three.acquire(k, "2h")]);
      if (isWaiting)
        await eventually(async () => /swlimit_waiting:2\b/.test(await admin.sendCommand(["INFO", "swlimit"])));
      assert.ok((await own()) > 1);
      await (client.quit?.() ?? client.close());
      await eventually(async () => (await own()) === 0, "their end");
      const answers = (await waiting) || [];
      assert.ok(answers.every(({ granted }) => granted === 0));
    });
  }
}

test("who waits is answered before the connections are closed", async (test) => {
  const client = await connect(test, { name: key() });
  const admin = await connect(test);
  const one = limiter(test, { client, limit: 1, window: "1h" });
  const holds = new HoldLimiter({ client, limit: 1, timeout: 2000, onFailure: "error" });
  const [k, other] = [key(), key()];
  await one.record(k);
  await admin.sendCommand(["SWLIMIT.HOLD", other, "1", "1m", "another"]);
  const waiting = [one.acquire(k, "2h"), one.acquire(k, "2h"), holds.hold(other, { wait: "30m" })];
  await eventually(async () => /swlimit_waiting:2\b/.test(await admin.sendCommand(["INFO", "swlimit"])), "their waits");
  await Promise.all([one.close(), holds.close()]);
  assert.deepEqual(
    (await Promise.all(waiting)).map(({ granted, source }) => [granted, source]),
    Array(3).fill([0, "server"]),
  );
  await eventually(
    async () => (await admin.sendCommand(["CLIENT", "LIST"])).split(`name=${client.options.name} `).length === 2,
  );
});
