/** Clusters: the key decides the node. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cluster } from "ioredis";
import { allowAll, Limits, spending } from "swlimit";
import { CLUSTERS, eventually, key, limiter, losesReply, port, sockets } from "./support.mjs";

const seed = { host: "127.0.0.1", port: port() };

const { "redis 6": nodeRedis, ioredis } = CLUSTERS;

/** What all masters say of themselves. */
async function infos(cluster) {
  if (cluster.customCommand) {
    return (await cluster.customCommand(["INFO", "all"], { route: "allPrimaries" })).map(({ value }) => value);
  }
  if (cluster.nodes) return Promise.all(cluster.nodes("master").map((node) => node.call("INFO", "all")));
  const nodes = await Promise.all(cluster.masters.map((one) => cluster.nodeClient(one)));
  return Promise.all(nodes.map((node) => node.sendCommand(["INFO", "all"])));
}

/** How many commands of this name all masters have seen, and how often they sent somebody on to another one. */
async function seen(cluster, name) {
  const found = await infos(cluster);
  const sum = (counter) => found.reduce((all, text) => all + Number(counter.exec(text)?.[1] ?? 0), 0);
  return {
    calls: sum(new RegExp(`cmdstat_${name}:calls=(\\d+)`, "i")),
    moved: sum(/errorstat_MOVED:count=(\d+)/),
  };
}

for (const [name, open] of Object.entries(CLUSTERS)) {
  test(`each request goes to the node of its key, with ${name}`, async (test) => {
    const cluster = await open(test);
    const three = limiter(test, { client: cluster, mode: "direct" });
    await eventually(async () => (await three.allow(key())).source === "server", "its connections");
    const before = await seen(cluster, "swlimit.allow");
    for (let i = 0; i < 30; i++) assert.equal((await three.allow(key())).granted, 1);
    const after = await seen(cluster, "swlimit.allow");
    assert.deepEqual([after.calls - before.calls, after.moved - before.moved], [30, 0]);
  });

  test(`several limits and waiting, with ${name}`, async (test) => {
    const cluster = await open(test);
    const three = limiter(test, { client: cluster, window: 300, resolution: 100 });
    for (let i = 0; i < 5; i++) {
      const tag = `{${key()}}`;
      const both = () =>
        allowAll([
          { limiter: three, key: `${tag}:a`, cost: 3 },
          { limiter: three, key: `${tag}:b` },
        ]);
      assert.equal((await both()).granted, true);
      assert.equal((await both()).granted, false);
      assert.equal((await three.acquire(`${tag}:a`, "5s")).granted, 1);
    }
    const hourly = three.with({ window: "1h" });
    for (const k of [key(), `{${key()}}`]) {
      await spending([{ limiter: hourly, key: k, name: "it", cost: 2 }], {}, async (spent) => spent.saw({ it: 1 }));
      assert.equal((await hourly.peek(k)).remaining, 2);
    }
    const limits = new Limits({ client: cluster, rates: "1/m; 2/h", timeout: 2000 });
    test.after(() => limits.close());
    const user = key();
    assert.deepEqual([(await limits.allow(user)).granted, (await limits.allow(user)).granted], [true, false]);
    const apart = ["x", "y"].map((k) => ({ limiter: three, key: k }));
    await assert.rejects(allowAll(apart), /CROSSSLOT .* same hash tag/);
  });
}

for (const [name, open] of Object.entries({ redis: nodeRedis, ioredis })) {
  test(`a request whose reply is lost is counted once, with ${name}`, async (test) => {
    const direct = await nodeRedis(test);
    const opened = sockets(test);
    const three = limiter(test, { client: await open(test), mode: "direct", timeout: 2000, onFailure: "deny" });
    const isConnected = async () => (await three.allow(key())).source === "server" && three.servers().length === 3;
    await eventually(isConnected, "its connections");
    await losesReply(three, opened, async (k) => {
      return (await direct.sendCommand(k, true, ["SWLIMIT.PEEK", k, "3", "10s", "1s"]))[2];
    });
  });
}

test("what an ioredis cluster is called before its nodes are known is not kept", async (test) => {
  const cluster = new Cluster([seed], { lazyConnect: true });
  test.after(() => cluster.disconnect());
  const three = limiter(test, { client: cluster, timeout: "8s" });
  assert.equal((await three.allow(key())).source, "server");
  const addresses = () => three.servers().map(({ address }) => address);
  assert.deepEqual(addresses(), [], "nobody knew which node it was");
  assert.equal((await three.allow(key())).source, "server");
  assert.match(addresses().join(), /^127\.0\.0\.1:\d+$/);
});

test("denials are known of every node, and undone by its pushes", async (test) => {
  const cluster = await nodeRedis(test);
  const three = limiter(test, { client: cluster });
  const keys = Array.from({ length: 20 }, key);
  for (const k of keys) {
    await three.record(k, { cost: 3 });
    await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
  }
  const tracked = await Promise.all(
    cluster.masters.map(async (n) => (await cluster.nodeClient(n)).sendCommand(["CLIENT", "LIST"])),
  );
  assert.deepEqual(
    tracked.map((list) => list.split("\n").filter((line) => / flags=t /.test(line)).length),
    [1, 1, 1],
  );
  for (const k of keys) await cluster.sendCommand(k, false, ["SWLIMIT.REFUND", k, "1"]);
  for (const k of keys) assert.ok(await eventually(async () => (await three.allow(k)).granted));
});

test("a denial does not outlive its slot's move to another node", async (test) => {
  const cluster = await nodeRedis(test);
  const three = limiter(test, { client: cluster, window: "1h" });
  const k = key();
  const known = () => eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
  const granted = () => eventually(async () => (await three.allow(k)).granted, "a grant");
  await three.record(k, { cost: 3 });
  await known();
  const at = await cluster.getNodeClientForKey(k);
  const masters = await Promise.all(cluster.masters.map((n) => cluster.nodeClient(n)));
  const to = masters.find((client) => client !== at);
  const slot = await at.sendCommand(["CLUSTER", "KEYSLOT", k]);
  const setSlot = (client, ...words) => client.sendCommand(["CLUSTER", "SETSLOT", String(slot), ...words]);
  await setSlot(to, "IMPORTING", await at.sendCommand(["CLUSTER", "MYID"]));
  await setSlot(at, "MIGRATING", await to.sendCommand(["CLUSTER", "MYID"]));
  const { port } = to.options.socket;
  assert.equal(await at.sendCommand(["MIGRATE", "127.0.0.1", String(port), k, "0", "5000"]), "OK");
  const refund = () => to.sendCommand(["SWLIMIT.REFUND", k, "1"]);
  assert.deepEqual(await Promise.all([to.sendCommand(["ASKING"]), refund()]), ["OK", 1]);
  await granted();
  assert.deepEqual([(await three.allow(k)).granted, (await three.allow(k)).source], [0, "server"]);
  for (const client of masters) await setSlot(client, "NODE", await to.sendCommand(["CLUSTER", "MYID"]));
  await known();
  assert.equal(await refund(), 1);
  await granted();
});

test("nothing is kept of a node that has left the cluster, though it lives on", async (test) => {
  const cluster = await nodeRedis(test);
  const three = limiter(test, { client: cluster, window: "1h" });
  const keys = Array.from({ length: 20 }, key);
  for (const k of keys) {
    await three.record(k, { cost: 3 });
    await eventually(async () => (await three.allow(k)).source === "cache", "a local denial");
  }
  const at = await cluster.getNodeClientForKey(keys[0]);
  const { node } = three.core.server(keys[0]);
  assert.equal(three.servers().length, 3);
  const isTracked = async () => / flags=t /.test(await at.sendCommand(["CLIENT", "LIST"]));
  assert.equal(await isTracked(), true);
  // As after the slots of that node have gone to others, and the client has noticed it.
  const others = cluster.masters.filter((one) => one !== node);
  Object.defineProperty(cluster, "masters", { get: () => others });
  await eventually(async () => !(await isTracked()), "the end of its tracking connection");
  assert.equal(three.denials.size, 0, "no message announces those any more");
  assert.equal(three.servers().length, 2);
});
