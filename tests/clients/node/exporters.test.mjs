/** Metrics for Prometheus and OpenTelemetry, and traces. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { trace as traces } from "@opentelemetry/api";
import { MeterProvider, MetricReader } from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { AggregatorRegistry, Registry } from "prom-client";
import { allowAll, BudgetLimiter, HoldLimiter, Limiter, Limits } from "swlimit";
import { observe as observeByOpenTelemetry, trace } from "swlimit/opentelemetry";
import { observe } from "swlimit/prometheus";
import { connect, eventually, holds, key, limiter, port } from "./support.mjs";

/** The samples of a metric in Prometheus' format that are not 0: what is in braces, and the value. */
async function samples(registry, name) {
  const lines = (await registry.metrics()).split("\n").filter((line) => line.startsWith(name));
  return Object.fromEntries(lines.map((line) => line.split(/ (?=[^ ]+$)/)).filter(([, value]) => value !== "0"));
}

const decided = (limit, source, granted) =>
  `swlimit_client_decisions_total{limit="${limit}",source="${source}",granted="${granted}"}`;

test("decisions of all kinds of limiters, for Prometheus", async (test) => {
  const client = await connect(test);
  const prefix = `${key()}:`;
  const one = limiter(test, { client, limit: 1, mode: "direct", prefix });
  const limits = new Limits({ client, rates: "9/h; 1/m", timeout: 2000, prefix, mode: "direct" });
  const month = new BudgetLimiter({ limit: 1, period: "month" });
  const places = new HoldLimiter({ limit: 1 });
  const known = { one, limits, month };
  const registry = new Registry();
  observe(known, registry);
  known.places = places; // it is read each time
  for (const each of [one, one, one, limits, limits, month, month]) await each.allow("k");
  await places.hold("k");
  await places.hold("k");
  assert.deepEqual(await samples(registry, "swlimit_client_decisions_total"), {
    [decided("one", "server", "yes")]: "1",
    [decided("one", "server", "no")]: "2",
    [decided("limits:3600000", "server", "yes")]: "2",
    [decided("limits:60000", "server", "yes")]: "1",
    [decided("limits:60000", "server", "no")]: "1",
    [decided("month", "local", "yes")]: "1",
    [decided("month", "local", "no")]: "1",
    [decided("places", "local", "yes")]: "1",
    [decided("places", "local", "no")]: "1",
  });
  const again = await samples(registry, "swlimit_client_decisions_total");
  assert.equal(again[decided("one", "server", "no")], "2", "it is read, not added up");
  const text = await registry.metrics();
  assert.match(text, new RegExp(`swlimit_client_server_unavailable{server="127.0.0.1:${port()}"} 0`));
  assert.match(text, /swlimit_client_server_round_trip_seconds{server="[^"]+"} 0\.\d+/);
  assert.match(text, /# TYPE swlimit_client_failovers_total counter/);
  assert.match(text, /swlimit_client_taken_over_total 0/);
  assert.throws(() => observe({ one: {} }, new Registry()), /one must be a limiter/);
});

test("a server that does not answer, once for all limiters", async () => {
  const away = () => Promise.reject(new Error("connect ECONNREFUSED"));
  const made = [away, away].map((client) => new Limiter({ client, limit: 1, window: "1m", timeout: 20 }));
  const registry = new Registry();
  observe({ first: made[0], second: made[1] }, registry);
  await eventually(async () => {
    for (const one of made) await one.allow("k");
    return made[0].servers()[0].state === "unavailable";
  });
  assert.deepEqual(await samples(registry, "swlimit_client_server_unavailable"), {
    'swlimit_client_server_unavailable{server="the server"}': "1",
  });
});

test("counters do not fall, whichever client of a server has more trouble with it", async () => {
  const registry = new Registry();
  const limits = {};
  observe(limits, registry);
  const seeing = (seen) => {
    const limiter = new Limiter({ client: async () => [1, 1, 0, 0, 0], limit: 1, window: "1m" });
    limiter.servers = () => [
      { address: "db", lacks: [], evicts: null, roundTrip: 5, backend: "script", failovers: 0, ...seen },
    ];
    return limiter;
  };
  const [old, young] = [
    seeing({ state: "up", failovers: 3, takenOver: 4 }),
    seeing({ state: "unavailable", failovers: 1, takenOver: 2 }),
  ];
  for (const order of [
    { old, young },
    { young, old },
  ]) {
    for (const name of Object.keys(limits)) delete limits[name];
    Object.assign(limits, order);
    assert.deepEqual(await samples(registry, "swlimit_client_failovers_total"), {
      'swlimit_client_failovers_total{server="db"}': "3",
    });
    assert.deepEqual(await samples(registry, "swlimit_client_server_unavailable"), {
      'swlimit_client_server_unavailable{server="db"}': "1",
    });
    assert.deepEqual(await samples(registry, "swlimit_client_taken_over_total"), {
      swlimit_client_taken_over_total: "6",
    });
  }
});

test("a cluster of processes shows its worst server, and adds up what it counts", async () => {
  const processes = await Promise.all(
    [5, 7].map(async (roundTrip) => {
      const registry = new Registry();
      const limiter = new Limiter({ limit: 1, window: "1m" });
      await limiter.allow("k");
      limiter.servers = () => [
        { address: "db", state: "unavailable", lacks: [], evicts: null, roundTrip, backend: "script", failovers: 0 },
      ];
      observe({ limiter }, registry);
      return registry.getMetricsAsJSON();
    }),
  );
  const whole = AggregatorRegistry.aggregate(processes);
  assert.deepEqual(await samples(whole, "swlimit_client_server_"), {
    'swlimit_client_server_unavailable{server="db"}': "1",
    'swlimit_client_server_script{server="db"}': "1",
    'swlimit_client_server_round_trip_seconds{server="db"}': "0.007",
  });
  assert.deepEqual(await samples(whole, "swlimit_client_decisions_total"), {
    [decided("limiter", "local", "yes")]: "2",
  });
});

test("the same by OpenTelemetry", async (test) => {
  const reader = new (class extends MetricReader {
    async onForceFlush() {}
    async onShutdown() {}
  })();
  const one = limiter(test, { client: await connect(test), limit: 1, mode: "direct", prefix: `${key()}:` });
  observeByOpenTelemetry({ one }, new MeterProvider({ readers: [reader] }));
  await one.allow("k");
  await one.allow("k");
  const { metrics } = (await reader.collect()).resourceMetrics.scopeMetrics[0];
  const found = Object.fromEntries(metrics.map(({ descriptor, dataPoints }) => [descriptor.name, dataPoints]));
  const counts = found.swlimit_client_decisions.filter(({ value }) => value > 0);
  assert.deepEqual(
    counts.map(({ attributes, value }) => [attributes, value]),
    ["yes", "no"].map((granted) => [{ limit: "one", source: "server", granted }, 1]),
  );
  assert.equal(found.swlimit_client_server_round_trip_seconds[0].attributes.server, `127.0.0.1:${port()}`);
});

/** A provider of tracers, and the spans that have ended: their names and attributes. */
function tracing() {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
  const spans = () => {
    const found = exporter
      .getFinishedSpans()
      .map(({ name, attributes, status }) => [name, { ...attributes }, status.code]);
    exporter.reset();
    return found;
  };
  return { provider, spans };
}

test("one span a decision", async (test) => {
  const client = await connect(test);
  const { provider, spans } = tracing();
  const one = limiter(test, { client, limit: 1, mode: "direct", prefix: `${key()}:` });
  const other = limiter(test, { client, limit: 9, mode: "direct", prefix: `${key()}:` });
  const untraced = limiter(test, { client, limit: 1 });
  const places = holds(test, { client, prefix: `${key()}:` });
  trace({ one, other, places }, provider);
  const ok = (rules) => ({ rules, result: "ok", source: "server" });
  const denied = (rules, by = rules) => ({ rules, result: "over_limit", source: "server", denied_by: by });
  await one.allow("k");
  await one.with({ limit: 0 }).allow("k");
  await one.peek("k");
  await untraced.allow("k");
  assert.deepEqual(spans(), [
    ["swlimit allow", ok("one"), 0],
    ["swlimit allow", { ...denied("one"), source: "server" }, 0],
    ["swlimit peek", denied("one"), 0],
  ]);
  await allowAll([
    { limiter: other, key: "k" },
    { limiter: one, key: "k" },
  ]);
  await places.hold("k", {}, async () => {});
  await one.record("k", { cost: 3 });
  assert.deepEqual(spans(), [
    ["swlimit allow_all", denied("other one", "one"), 0],
    ["swlimit hold", ok("places"), 0],
    ["swlimit record", denied("one"), 0],
  ]);
  const pool = limiter(test, {
    client: (args) => client.sendCommand(args),
    limit: 1,
    window: 200,
    resolution: 100,
    prefix: `${key()}:`,
  });
  trace({ pool }, provider);
  trace({ pool }, provider); // not twice
  await pool.allow("k");
  assert.equal((await pool.acquire("k", "10s")).granted, 1); // it asks again and again
  assert.deepEqual(
    spans().map(([name]) => name),
    ["swlimit allow", "swlimit acquire"],
  );
  await assert.rejects(one.allow("k", { cost: 0 }), /cost must be/);
  assert.deepEqual(spans(), [["swlimit allow", { rules: "one", result: "error" }, 2]]);
});

test("a traced limiter keeps what it has found out", async (test) => {
  const client = await connect(test);
  const month = new BudgetLimiter({ client, limit: 5, period: "month", prefix: `${key()}:`, timeout: 2000 });
  test.after(() => month.close());
  trace({ month }, tracing().provider);
  const at = test.mock.method(month.calendar, "at");
  for (let request = 0; request < 3; request++) assert.equal((await month.allow("k")).source, "server");
  assert.equal(at.mock.callCount(), 1, "the period");
});

test("the global provider, where no other is given", async () => {
  const { provider, spans } = tracing();
  traces.setGlobalTracerProvider(provider);
  const one = new Limiter({ limit: 1, window: "1m" });
  trace({ one });
  traces.disable();
  await one.allow("k");
  assert.deepEqual(spans(), [["swlimit allow", { rules: "one", result: "ok", source: "local" }, 0]]);
});
