/**
 * The Node client for scenarios, by `redis` or `ioredis`, or `fakes` for tests: does what the runner says, and judges
 * nothing.
 */

import diagnostics from "node:diagnostics_channel";
import { createInterface } from "node:readline";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster } from "redis";
import * as swlimit from "swlimit";
import { FakeLimiter } from "swlimit/testing";

const kind = process.argv[2];
const ABLE = [
  "cancel",
  "undo",
  "cluster",
  "tracking",
  "url",
  "statistics",
  "reasons",
  "logs",
  "brought",
  "cluster_on",
  "partial",
  "deadline",
  "timeouts",
  "burst",
  "guards",
  "local_blocks",
  "settle",
  "keep",
  "record",
  ...(kind === "fakes" ? ["deny"] : []),
];
const clients = new Map();
const calls = new Map();
const returned = new Map();
/** By limiter, what its requests block. */
const blocks = new Map();
const say = (words) => process.stdout.write(`${JSON.stringify(words)}\n`);
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
const camels = (options) => Object.fromEntries(Object.entries(options).map(([name, value]) => [camel(name), value]));
process.on("warning", (warning) => say({ log: warning.message }));
diagnostics.subscribe("swlimit:state", (state) => say({ log: state.message }));

function told(found) {
  if (typeof found !== "object" || found === null || Array.isArray(found)) return { value: found ?? null };
  const { granted, limit, remaining, retryAfter, never, resetAfter, source, each } = found.decision ?? found;
  const retry_after = never ? "never" : (retryAfter ?? null);
  if (each) return { granted: Boolean(granted), retry_after, each: each.map(told) };
  return {
    granted: Number(granted),
    limit,
    remaining: remaining ?? null,
    retry_after,
    reset_after: resetAfter ?? null,
    source,
  };
}

function failed(error) {
  const kinds = [
    [swlimit.UnavailableError, "unavailable"],
    [swlimit.ModuleMissingError, "module_missing"],
    [swlimit.DeniedError, "denied"],
    [swlimit.ClusterClientError, "wrong_client"],
    [swlimit.RefusedError, "refused"],
    [TypeError, "invalid"],
    [RangeError, "invalid"],
  ];
  const word =
    error?.name === "AbortError" ? "cancelled" : (kinds.find(([one]) => error instanceof one)?.[1] ?? "other");
  return {
    error: word,
    reason: error?.reason ?? null,
    message: `${error?.name}: ${error?.message}`,
    ...(error?.decision ? told(error.decision) : {}),
  };
}

async function opened({ addresses, topology, secret }) {
  const places = addresses.map((address) => ({ host: "127.0.0.1", port: Number(address.split(":")[1]) }));
  const login = secret ? { username: "ann", password: secret } : {};
  if (kind === "ioredis") {
    const client =
      topology === "sentinel"
        ? new Redis({ sentinels: places, name: "main", ...login })
        : topology === "cluster"
          ? new Cluster(places, { redisOptions: login })
          : new Redis({ ...places[0], ...login });
    client.on("error", () => {});
    return client;
  }
  const client =
    topology === "cluster"
      ? createCluster({
          rootNodes: places.map((socket) => ({ socket })),
          defaults: { ...login, RESP: 3 },
          minimizeConnections: true, // else it connects after its end to servers that it was looking for
        })
      : createClient({ socket: places[0], RESP: 3, ...login });
  client.on("error", () => {});
  await Promise.race([client.connect().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 300))]);
  return client;
}

async function make({ addresses, topology, secret, client: name, limiters }) {
  const kinds = { rate: swlimit.Limiter, hold: swlimit.HoldLimiter, budget: swlimit.BudgetLimiter };
  if (topology === "url") {
    const url = `redis://${secret ? `ann:${secret}@` : ""}${addresses[0]}`;
    const { kind: _, limit, window, ...options } = limiters[0];
    clients.set(name, [null, [await swlimit.Limiter.fromUrl(url, `${limit}/${window}`, camels(options))]]);
    return null;
  }
  if (kind === "fakes") {
    const fakes = limiters.map(({ limit, window }) => new FakeLimiter({ limit, window }));
    clients.set(name, [null, fakes]);
    return null;
  }
  const client = await opened({ addresses, topology, secret });
  clients.set(name, [client, []]); // it is closed with what follows, also when that is refused
  clients.get(name)[1] = limiters.map(
    ({ kind, block_for: _, ...options }) =>
      new kinds[kind]({ ...(options.mode === "local" ? {} : { client }), ...camels(options) }),
  );
  limiters.forEach((options, at) => {
    if (options.block_for) blocks.set(clients.get(name)[1][at], options.block_for);
  });
  return null;
}

async function call({ id, method, keys, limiter, options, client }) {
  const { of, times, timeout, units, used, wait, cancellable, ...rest } = camels(options);
  const controller = new AbortController();
  calls.set(id, controller);
  const signal = cancellable ? { signal: controller.signal } : {};
  const limiters = clients.get(client)[1];
  const one = limiters[limiter];
  const { cost, ...others } = rest;
  const each = () => keys.map((key, at) => ({ limiter: limiters[at], key, ...(cost === undefined ? {} : { cost }) }));
  switch (method) {
    case "release":
    case "settle":
      return returned.get(of)[method](...(used ?? []));
    case "is_live":
      return returned.get(of).isLive;
    case "acquire":
      return one.acquire(keys[0], timeout ?? "1m", { ...rest, ...signal });
    case "refund":
      return one.refund(keys[0], units, rest);
    case "block":
      return one.block(keys[0], rest.duration);
    case "hold":
      return one.hold(keys[0], { ...rest, ...(wait ? { wait } : {}), ...signal });
    case "allow_all":
      return swlimit.allowAll(each(), { ...others, ...signal });
    case "admit":
      return swlimit.admit(each(), { ...others, ...(wait ? { wait } : {}), ...signal });
    case "deny":
      return one.deny(rest.retryAfter === "never" ? Number.POSITIVE_INFINITY : rest.retryAfter, keys[0]);
    case "grant":
    case "unblock":
    case "reset":
      return one[method](keys[0]);
  }
  if (times) {
    const counts = {};
    for (const { source } of await Promise.all(Array.from({ length: times }, () => one[method](keys[0], rest))))
      counts[source] = (counts[source] ?? 0) + 1;
    return { counts };
  }
  // Here it is a request that blocks, and not a limiter.
  if (blocks.has(one)) return limiters[0].allow(keys[0], { ...rest, block: blocks.get(one), ...signal });
  return one[method](keys[0], { ...rest, ...signal });
}

async function run(asked) {
  const [client, limiters] = clients.get(asked.client) ?? [];
  switch (asked.do) {
    case "limiters":
      return make(asked);
    case "call": {
      const found = await call(asked);
      returned.set(asked.id, found);
      return found?.counts ?? told(found);
    }
    case "statistics": {
      const sums = {};
      for (const one of limiters)
        for (const [name, count] of Object.entries(one.statistics)) sums[name] = (sums[name] ?? 0) + count;
      return sums;
    }
    case "health": {
      const states = limiters[0].servers();
      const state = states.find((one) => one.state !== "up") ?? states[0];
      return { state: state?.state ?? null, reason: state?.reason ?? null };
    }
    default: {
      clients.delete(asked.client);
      for (const one of limiters ?? []) await one.close();
      if (kind === "ioredis") client?.disconnect();
      else client?.destroy();
      return null;
    }
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const asked = JSON.parse(line);
  if (asked.do === "hello") say({ id: asked.id, ok: [...ABLE, ...(kind === "ioredis" ? ["sentinel"] : [])] });
  else if (asked.do === "cancel") calls.get(asked.call)?.abort();
  else
    run(asked).then(
      (ok) => say({ id: asked.id, ok }),
      (error) => say({ id: asked.id, ...failed(error) }),
    );
});
