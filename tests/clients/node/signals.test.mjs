/** A caller that gives up: it learns that at once, and what the server still grants goes back. */

import assert from "node:assert/strict";
import { createServer, connect as dial } from "node:net";
import { test } from "node:test";
import { Redis } from "ioredis";
import { allowAll } from "swlimit";
import { connect, eventually, key, limiter, port, sleep } from "./support.mjs";

/** A client whose replies to one command are held up until it goes on, and what it has been asked. */
async function slow(test, command) {
  const client = await connect(test);
  const sent = [];
  let goOn = () => {};
  const gate = new Promise((resolve) => {
    goOn = resolve;
  });
  const { sendCommand } = client;
  client.sendCommand = async (words) => {
    sent.push(words);
    const reply = await sendCommand.call(client, words);
    if (words[0] === command) await gate;
    return reply;
  };
  return { client, sent, goOn };
}

test("a caller that gives up learns that at once, and its grant is given back by the server's clock", async (test) => {
  const { client, sent, goOn } = await slow(test, "SWLIMIT.ALLOW");
  const three = limiter(test, { client, timeout: 20_000 });
  const k = key();
  const controller = new AbortController();
  const asking = three.allow(k, { cost: 2, signal: controller.signal });
  await sleep(50);
  controller.abort(new Error("gone"));
  await assert.rejects(asking, /gone/);
  assert.ok(!sent.some(([command]) => command === "SWLIMIT.REFUND"), "the reply is still on its way");
  goOn();
  await eventually(() => sent.some(([command]) => command === "SWLIMIT.REFUND"), "the refund");
  const refund = sent.find(([command]) => command === "SWLIMIT.REFUND");
  assert.deepEqual(refund.slice(0, 4), ["SWLIMIT.REFUND", k, "2", "SINCE"]);
  const age = Date.now() - Number(refund[4]);
  assert.ok(age >= 30 && age < 8000, `${age}`);
  await eventually(async () => (await three.peek(k)).remaining === 3, "the units");
});

test("a signal that is not used changes nothing", async (test) => {
  const { client, sent } = await slow(test);
  const three = limiter(test, { client });
  const { signal } = new AbortController();
  assert.equal((await three.allow(key(), { signal })).granted, 1);
  assert.equal((await three.acquire(key(), "1s", { signal })).granted, 1);
  await sleep(20);
  assert.ok(sent.every(([command]) => command !== "SWLIMIT.REFUND"));
});

test("who has given up is not asked for", async (test) => {
  const { client, sent } = await slow(test);
  const three = limiter(test, { client });
  const signal = AbortSignal.abort(new Error("gone"));
  for (const call of [three.allow("k", { signal }), three.peek("k", { signal }), three.acquire("k", 0, { signal })]) {
    await assert.rejects(call, /gone/);
  }
  assert.deepEqual(sent, []);
});

test("waits that are given up leave no connection behind", async (test) => {
  const client = await connect(test, { name: key() });
  const one = limiter(test, { client, limit: 1, window: "1h", maxWaiting: 3 });
  const keys = Array.from({ length: 6 }, key);
  for (const k of keys) await one.record(k);
  const count = async () =>
    (await client.sendCommand(["CLIENT", "LIST"]))
      .split("\n")
      .filter((line) => line.includes(`name=${client.options.name} `)).length;
  const before = await count();
  const controller = new AbortController();
  const { signal } = controller;
  const waiting = keys.map((k) => one.acquire(k, "20d", { signal }));
  await eventually(async () => (await count()) === before + 3, "three waiting");
  controller.abort(new Error("gone"));
  for (const wait of waiting) await assert.rejects(wait, /gone/);
  await eventually(async () => (await count()) === before, "their end");
});

/** What comes from the server is held back while `held` is true; the port to go through. */
async function valve(test) {
  const flow = { held: false, waiting: [], port: 0 };
  const server = createServer((near) => {
    const far = dial(port(), "127.0.0.1");
    near.pipe(far);
    far.on("data", (data) => {
      if (flow.held) flow.waiting.push(() => near.write(data));
      else near.write(data);
    });
    far.on("end", () => near.end());
    for (const socket of [near, far]) socket.on("error", () => {});
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => server.close());
  flow.port = server.address().port;
  flow.release = () => {
    flow.held = false;
    for (const write of flow.waiting.splice(0)) write();
  };
  return flow;
}

for (const [name, open] of Object.entries({
  redis: (test, at) => connect(test, { socket: { port: at, host: "127.0.0.1" } }),
  ioredis: (test, at) => {
    const client = new Redis(at);
    test.after(() => client.disconnect());
    return client;
  },
})) {
  test(`a wait that is given up just when it is granted gives the unit back, with ${name}`, async (test) => {
    const flow = await valve(test);
    const client = await open(test, flow.port);
    const one = limiter(test, { client, limit: 1, window: "1m", resolution: "100ms", timeout: "8s" });
    const direct = await connect(test);
    const k = key();
    await one.record(k, { age: "59500ms" });
    const newest = async () => (await direct.sendCommand(["SWLIMIT.INFO", k]).catch(() => ({}))).newest;
    const before = await newest();
    const controller = new AbortController();
    const waiting = one.acquire(k, "20s", { signal: controller.signal });
    const info = () => direct.sendCommand(["INFO", "swlimit"]);
    await eventually(async () => /swlimit_waiting:1\b/.test(await info()), "its wait");
    flow.held = true;
    await eventually(async () => (await newest()) > before, "its grant");
    controller.abort(new Error("gone"));
    await assert.rejects(waiting, /gone/);
    flow.release();
    await eventually(async () => (await direct.sendCommand(["EXISTS", k])) === 0, "the unit");
  });
}

test("several limits have a deadline, too", async (test) => {
  const { client, goOn } = await slow(test, "SWLIMIT.MALLOW");
  const three = limiter(test, { client, timeout: 20_000 });
  const decide = (deadline) => allowAll([{ limiter: three, key: key() }], { deadline });
  assert.equal((await decide(20)).each[0].source, "failure");
  goOn();
  assert.equal((await decide("20s")).each[0].source, "server");
});
