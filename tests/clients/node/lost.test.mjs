/** Connections that are lost, and clients that are closed: nothing is counted twice, and nothing outlives them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import Redis5 from "ioredis-5";
import * as iovalkey from "iovalkey";
import * as iovalkey0 from "iovalkey-0.1";
import { connect, eventually, key, limiter, losesReply, port, sockets } from "./support.mjs";

const CLIENTS = {
  redis: (test, options) => connect(test, options),
  ioredis: ofIoredis(Redis),
  "ioredis 5": ofIoredis(Redis5),
  "ioredis that sends nothing again": ofIoredis(Redis, { autoResendUnfulfilledCommands: false }),
  iovalkey: ofIoredis(iovalkey.Redis),
  "iovalkey 0.1": ofIoredis(iovalkey0.Redis),
};

function ofIoredis(Client, options = {}) {
  return (test) => {
    const client = new Client({ port: port(), host: "127.0.0.1", ...options });
    client.on("error", () => {});
    test.after(() => client.disconnect());
    return client;
  };
}

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
