/** What a limiter says of how its server is: each change once. */

import assert from "node:assert/strict";
import diagnostics from "node:diagnostics_channel";
import { test } from "node:test";
import { Redis } from "ioredis";
import { BatchTimeouts } from "../../../src/clients/node/dist/esm/transport/batch-timeouts.js";
import { connect, eventually, key, limiter, port, sleep } from "./support.mjs";

/** The messages of a channel, from now on. */
function messages(test, name) {
  const found = [];
  const listen = (message) => found.push(message);
  diagnostics.subscribe(name, listen);
  test.after(() => diagnostics.unsubscribe(name, listen));
  return found;
}

test("a server is away, and back", async (test) => {
  const changes = messages(test, "swlimit:state");
  let reply = () => Promise.reject(new Error("OOM command not allowed"));
  const three = limiter(test, { client: () => reply() });
  assert.deepEqual(three.servers(), []);
  for (let i = 0; i < 5; i++) await three.allow("k");
  const address = "the server";
  const away = {
    address,
    state: "unavailable",
    reason: "OOM",
    message: "OOM command not allowed",
    lacks: [],
    evicts: null,
    failovers: 0,
    takenOver: 0,
  };
  const up = { address, state: "up", reason: null, message: "", lacks: [], evicts: null, failovers: 0, takenOver: 0 };
  const timeless = ({ since, roundTrip, backend, ...others }) => others;
  assert.deepEqual(three.servers().map(timeless), [away]);
  assert.equal(three.servers()[0].roundTrip, null);
  reply = async () => [1, 3, 2, 0, 1000];
  await eventually(async () => (await three.allow("k")).source === "server", "its return");
  assert.deepEqual(three.servers().map(timeless), [up]);
  assert.deepEqual(changes.map(timeless), [away, up]);
  const [{ since, roundTrip, backend }] = three.servers();
  assert.deepEqual([since, backend, roundTrip >= 0], [changes[1].since, "module", true]);
  assert.ok(changes[0].since <= since);
});

const OURS = ["allow", "peek", "record", "refund", "acquire"].map((word) => `+swlimit.${word}`);
const OTHERS = ["+hello", "+time", "+pttl", "+unlink", "+client", "+ping", "+info"];

for (const [lack, isTracked] of [
  ["-client|tracking", false],
  ["-client|trackinginfo", false],
  ["-pttl", false],
  ["-ping", true],
  ["-info", true],
]) {
  test(`without a right: ${lack}`, async (test) => {
    const admin = await connect(test);
    const user = key().replace(":", "-");
    await admin.sendCommand(["ACL", "SETUSER", user, "on", ">secret", "~*", "&*", ...OURS, ...OTHERS, lack]);
    test.after(() => admin.isOpen && admin.sendCommand(["ACL", "DELUSER", user]));
    const lacks = messages(test, "swlimit:lacks");
    const client = await connect(test, { username: user, password: "secret" });
    const three = limiter(test, { client });
    const k = key();
    await three.record(k, { cost: 3 });
    for (let round = 0; round < 3; round++) {
      await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
      await sleep(lack === "-ping" ? 400 : 120); // a tracking connection that is silent for a second is pinged
    }
    // Where changes are not announced, a denial is forgotten after a tenth of a second.
    assert.equal((await three.allow(k)).source, isTracked ? "cache" : "server");
    const right = lack.slice(1);
    await eventually(() => lacks.length > 0, "the message");
    assert.deepEqual(
      lacks.map((one) => [one.address, one.right, /^NOPERM/.test(one.message)]),
      [[`127.0.0.1:${port()}`, right, true]],
    );
    const [{ address, state, lacks: lacking }] = three.servers();
    assert.deepEqual([address, state, lacking], [`127.0.0.1:${port()}`, "up", [right]]);
  });
}

test("all rights that are documented suffice", async (test) => {
  const admin = await connect(test);
  const user = key().replace(":", "-");
  const rights =
    "+swlimit.allow +swlimit.acquire +swlimit.peek +swlimit.record +swlimit.refund +time +unlink +pttl " +
    "+client|tracking +client|trackinginfo +client|id +client|unblock +ping +subscribe +info";
  await admin.sendCommand(["ACL", "SETUSER", user, "on", ">secret", "~*", "&*", ...rights.split(" ")]);
  test.after(() => admin.isOpen && admin.sendCommand(["ACL", "DELUSER", user]));
  const ioredis = new Redis(port(), { username: user, password: "secret", enableReadyCheck: false });
  test.after(() => ioredis.disconnect());
  for (const client of [await connect(test, { username: user, password: "secret" }), ioredis]) {
    const three = limiter(test, { client, window: "2s", resolution: "100ms" });
    const k = key();
    assert.equal((await three.allow(k, { cost: 3, signal: new AbortController().signal })).granted, 3);
    await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
    const controller = new AbortController();
    const waiting = three.acquire(k, "20s", { signal: controller.signal });
    await eventually(async () => /swlimit_waiting:1\b/.test(await admin.sendCommand(["INFO", "swlimit"])), "its wait");
    controller.abort(new Error("gone"));
    await assert.rejects(waiting, /gone/);
    await eventually(async () => /swlimit_waiting:0\b/.test(await admin.sendCommand(["INFO", "swlimit"])), "its end");
    await three.reset(k);
    await sleep(20);
    assert.deepEqual(three.servers()[0].lacks, []);
  }
});

/** Work of the program's own. */
function busy(ms) {
  for (const ends = performance.now() + ms; performance.now() < ends; );
}

test("a stalled event loop is not the server's failure", async (test) => {
  let isOver = false;
  const stall = () => {
    busy(60);
    if (!isOver) setImmediate(stall);
  };
  // As a client that writes once this piece of work is done, is answered a moment later, and then reads.
  const client = async () => {
    for (let turns = 0; turns < 3; turns++) await new Promise(setImmediate);
    return [1, 3, 2, 0, 1000];
  };
  const asking = limiter(test, { client, mode: "direct", timeout: 50 });
  stall();
  const { source } = await asking.allow("k");
  isOver = true;
  assert.equal(source, "server");
});

test("time is up for whom it was before the event loop stalled, and not for those who asked since", async () => {
  const [timeouts, late] = [new BatchTimeouts(), []];
  const wait = (name) =>
    new Promise((resolve) => {
      timeouts.add({ isOver: false, overdue: () => resolve(late.push(name)) }, 50);
    });
  const before = wait("before");
  await new Promise(setImmediate); // by now it is written, and its timer set
  let since = null;
  setTimeout(() => {
    since = wait("since");
  }, 50);
  setTimeout(() => busy(60), 50);
  busy(60); // all timers are due at once
  await before;
  assert.deepEqual(late, ["before"]);
  await since;
});
