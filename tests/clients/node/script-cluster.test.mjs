/** Clusters without the module: each node is given the script when it lacks it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { allowAll } from "swlimit";
import { CLUSTERS, connect, eventually, holds, key, limiter } from "./support.mjs";

/** A server tries for 5 s to take its master's place. */
const GIVES_UP = 6000;

/** Have the replica of a key's master take its place. */
async function failOver(test, k) {
  const any = await connect(test);
  const slot = await any.sendCommand(["CLUSTER", "KEYSLOT", k]);
  const has = (range) => {
    const [first, last = first] = range.split("-").map(Number);
    return first <= slot && slot <= last;
  };
  const known = async () => {
    const nodes = (await any.sendCommand(["CLUSTER", "NODES"])).split("\n").map((line) => line.split(" "));
    const [id] = nodes.find(([, , , , , , , , ...ranges]) => ranges.some(has));
    return nodes.find(([, , , of]) => of === id);
  };
  const [, address] = await eventually(known, "its replica", 60_000); // which may have been the master until just now
  const replica = await connect(test, { socket: { host: "127.0.0.1", port: Number(address.split(/[:@]/)[1]) } });
  const role = () => replica.sendCommand(["ROLE"]);
  await eventually(async () => (await role())[3] === "connected", "its replication", 60_000);
  let asked = Number.NEGATIVE_INFINITY;
  const isMaster = async () => {
    if (performance.now() - asked > GIVES_UP) {
      asked = performance.now();
      await replica.sendCommand(["CLUSTER", "FAILOVER"]).catch(() => {});
    }
    return (await role())[0] === "master";
  };
  await eventually(isMaster, "the new master", 60_000);
}

for (const [name, open] of Object.entries({ redis: CLUSTERS["redis 6"], ioredis: CLUSTERS.ioredis })) {
  test(`the script decides on each node, also on one that was a replica, with ${name}`, async (test) => {
    const client = await open(test);
    const five = limiter(test, { client, limit: 5, window: "1h", resolution: "1m", timeout: 20_000, mode: "direct" });
    const keys = Array.from({ length: 12 }, key);
    for (const k of keys) {
      const { remaining, source } = await five.allow(k, { cost: 4 });
      assert.deepEqual([remaining, source], [1, "server"]);
    }
    assert.deepEqual(
      five.servers().map(({ backend }) => backend),
      ["script", "script", "script"],
    );
    const tag = `{${key()}}`;
    const both = await allowAll([1, 2].map((cost) => ({ limiter: five, key: `${tag}${cost}`, cost })));
    assert.deepEqual(
      both.each.map(({ remaining }) => remaining),
      [4, 3],
    );
    const jobs = holds(test, { client, limit: 2 });
    const job = `jobs:{${keys[0]}}`; // at the same node
    const first = await jobs.hold(job);
    await failOver(test, keys[0]);
    const decided = () =>
      eventually(
        async () => {
          const { granted, source } = await five.allow(keys[0]);
          return source === "server" && [granted];
        },
        "a decision",
        60_000,
      );
    assert.deepEqual([await decided(), await decided()], [[1], [0]]);
    const second = await jobs.hold(job);
    assert.deepEqual([second.granted, second.remaining, second.token > first.token], [1, 0, true]);
    const waiting = jobs.hold(job, { wait: "5m" });
    await first.release();
    assert.equal((await waiting).granted, 1);
    assert.equal((await jobs.holders(job)).length, 2);
  });
}
