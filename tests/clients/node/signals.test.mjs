/** A caller that gives up: it learns that at once, and what the server still grants goes back. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { allowAll } from "swlimit";
import { connect, eventually, key, limiter, sleep } from "./support.mjs";

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

test("several limits have a deadline, too", async (test) => {
  const { client, goOn } = await slow(test, "SWLIMIT.MALLOW");
  const three = limiter(test, { client, timeout: 20_000 });
  const decide = (deadline) => allowAll([{ limiter: three, key: key() }], { deadline });
  assert.equal((await decide(20)).each[0].source, "failure");
  goOn();
  assert.equal((await decide("20s")).each[0].source, "server");
});
