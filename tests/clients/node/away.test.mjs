/** While the server is away: who decides, how long that takes, and how it is noticed that it is back. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { createClient } from "redis";
import { UnavailableError } from "swlimit";
import { connect, eventually, key, limiter, port, sleep } from "./support.mjs";

const admin = await createClient({ socket: { port: port("spare") } }).connect();
admin.on("error", () => {});
after(() => admin.destroy());

async function pid() {
  return Number(/process_id:(\d+)/.exec(await admin.sendCommand(["INFO", "server"]))[1]);
}

/** End the server; test_node.py starts it again. */
async function kill() {
  process.kill(await pid(), "SIGKILL");
}

/** Pause the server, until the test ends or says to go on. */
async function pause(test) {
  const server = await pid();
  process.kill(server, "SIGSTOP");
  const goOn = () => process.kill(server, "SIGCONT");
  test.after(goOn);
  return goOn;
}

/** Use a key up, whose limiter may have no patience with a busy machine, and have that remembered. */
async function fill(three, k) {
  await admin.sendCommand(["SWLIMIT.RECORD", k, "3", "10s", "1s", "COST", "3"]);
  await eventually(async () => (await three.allow(k)).source === "cache");
}

test("a record that nobody answers fails, or is kept and sent later", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, timeout: 20, limit: 100, window: "1h", resolution: "1m" });
  const [k, other] = [key(), key()];
  await three.allow(k);
  const goOn = await pause(test);
  await assert.rejects(three.record(other, { cost: 5 }), UnavailableError);
  for (let i = 0; i < 5; i++) assert.equal((await three.record(k, { cost: 7, keep: true })).source, "failure");
  goOn();
  await eventually(async () => (await admin.sendCommand(["SWLIMIT.PEEK", k, "100", "1h", "1m"]))[2] <= 100 - 36);
  await sleep(50);
  assert.equal((await admin.sendCommand(["SWLIMIT.PEEK", k, "100", "1h", "1m"]))[2], 100 - 36, "each of them once");
  assert.equal(three.statistics.lost, 0);
});

test("what was kept, and could not be sent until a limiter is closed, is said to be lost", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client, timeout: 20, limit: 100, window: "1h", resolution: "1m" });
  const k = key();
  await three.allow(k);
  const warning = test.mock.method(process, "emitWarning", () => {});
  const goOn = await pause(test);
  for (let i = 0; i < 5; i++) await three.record(k, { cost: 7, keep: true });
  await three.close();
  goOn();
  const lost = warning.mock.calls.map(({ arguments: [text, { code }] }) => [code, text]);
  const [, text] = lost.find(([code]) => code === "SWLIMIT_LOST");
  const units = Number(/^(\d+) units of 1 keys/.exec(text)[1]);
  assert.ok(units > 0 && units % 7 === 0, text);
  assert.equal(three.statistics.lost, units / 7);
});

test("a server that starts again is asked, and heard, again", async (test) => {
  const client = await connect(test, { of: "spare" });
  const three = limiter(test, { client });
  const k = key();
  await fill(three, k);
  await kill();
  await eventually(() => three.denials.size === 0, "forgetting");
  await eventually(async () => {
    const decision = await three.allow(k);
    return decision.granted > 0 && decision.source === "server";
  }, "its return");
  await three.reset(k);
  await fill(three, k);
  await admin.sendCommand(["SWLIMIT.REFUND", k, "1"]);
  assert.ok(await eventually(async () => (await three.allow(k)).granted));
});

test("a reply that has come counts, however late this process looks", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, timeout: 50 });
  const asking = three.allow(key());
  await new Promise((resolve) => setImmediate(resolve)); // it has been sent
  const began = performance.now();
  while (performance.now() < began + 400);
  assert.equal((await asking).source, "server");
});

test("time that this process takes before it writes is not the server's", async (test) => {
  const client = await connect(test);
  const three = limiter(test, { client, timeout: 300 });
  const asking = three.allow(key());
  const began = performance.now();
  while (performance.now() < began + 400); // nothing has been sent yet
  assert.equal((await asking).source, "server");
});
