/**
 * What users write, as the compiler reads it: the types fit those of the clients and the frameworks. Nothing runs
 * this.
 */

import fastifyRateLimit from "@fastify/rate-limit";
import { ThrottlerModule } from "@nestjs/throttler";
import { GlideClient, GlideClusterClient } from "@valkey/valkey-glide";
import { type Job, Worker } from "bullmq";
import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { Cluster, Redis } from "ioredis";
import { Redis as Valkey, Cluster as ValkeyCluster } from "iovalkey";
import Koa from "koa";
import { Registry } from "prom-client";
import type { RateLimiterAbstract, RateLimiterRes } from "rate-limiter-flexible";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { createClient as createClient5 } from "redis-5";
import {
  Adaptive,
  type Admission,
  admit,
  allowAll,
  BudgetLimiter,
  type Client,
  type Decision,
  type Hold,
  HoldLimiter,
  Limiter,
  Limits,
  type ServerState,
  type Spending,
  spending,
} from "swlimit";
import { inTurn } from "swlimit/bullmq";
import { HttpLimiter } from "swlimit/edge";
import { concurrencyLimit, rateLimit as expressLimit } from "swlimit/express";
import { SwlimitStore } from "swlimit/express-rate-limit";
import { rateLimit as fastifyLimit } from "swlimit/fastify";
import { swlimitStore } from "swlimit/fastify-rate-limit";
import { rateLimit as honoLimit } from "swlimit/hono";
import { rateLimit as koaLimit } from "swlimit/koa";
import { SwlimitThrottlerStorage } from "swlimit/nestjs";
import { observe as observeByOpenTelemetry, trace } from "swlimit/opentelemetry";
import { observe } from "swlimit/prometheus";
import { RateLimiterSwlimit } from "swlimit/rate-limiter-flexible";
import { FakeLimiter, TestClock } from "swlimit/testing";
import { webSocketLimit } from "swlimit/ws";
import { type WebSocket, WebSocketServer } from "ws";

const client = createClient();
const clients: Client[] = [
  client,
  createClient({ RESP: 2 }),
  createClientPool(),
  createCluster({ rootNodes: [] }),
  createSentinel({ name: "", sentinelRootNodes: [] }),
  createClient5(),
  new Redis(),
  new Cluster([]),
  new Valkey(),
  new ValkeyCluster([]),
  await GlideClient.createClient({ addresses: [] }),
  await GlideClusterClient.createClient({ addresses: [] }),
  (args) => client.sendCommand(args),
];
const limiter = new Limiter({ client: clients[0] as Client, limit: 100, window: "1m" });
const decision: Decision = await limiter.allow("k", { cost: 2, partial: true, block: 1000 });
const headers: Record<string, string> = decision.headers({ legacy: true });
const all: boolean = (await allowAll([{ limiter, key: "k" }])).granted;
// @ts-expect-error: a limit is needed
new Limiter({ window: "1m" });
// @ts-expect-error: decisions are not to be written to
decision.granted = 1;

const own: Limiter = await Limiter.fromUrl("redis://127.0.0.1", "3/m", { prefix: "p:", strict: true });
const limits: Limits = new Limits({ client, rates: "3/m; 9/h", onFailure: "deny" });
const each: readonly Decision[] = (await limits.allow("k", { cost: 2 })).each;
// @ts-expect-error: rates say the window
new Limits({ client, rates: "3/m", window: "1m" });
// @ts-expect-error: the rate says the limit
await Limiter.fromUrl("redis://127.0.0.1", "3/m", { limit: 3 });

new Limiter({ limit: 100, window: "1m", warmUp: "10m", cold: 2 });
// @ts-expect-error: one of two algorithms
new Adaptive({ algorithm: "vegas" });
const adaptive: Adaptive = new Adaptive({ min: 5, window: 500 });
const body: string = await adaptive.run(async (permit) => {
  permit.drop();
  return "body";
});
// @ts-expect-error: there may be none
adaptive.permit().done();

const app = express();
app.use(expressLimit({ limiter }));
app.use(
  "/a",
  expressLimit([{ limiter, key: (request) => request.get("x-key"), cost: async () => 2 }], {
    headers: { standard: "draft-6", legacy: true },
    onDenied: (_request, response) => response.status(503).json({}),
  }),
);
app.use(expressLimit({ limiter: (request) => limiter.with({ limit: Number(request.get("x-plan")) }) }));
app.use(expressLimit({ limiter: limits }));
app.use(expressRateLimit({ windowMs: 1000, limit: 5, store: new SwlimitStore({ client }) }));

app.use(expressLimit({ limiter: new FakeLimiter({ limit: 3 }) }));
const month: BudgetLimiter = new TestClock().drive(new BudgetLimiter({ limit: 3, period: "month" }));

observe({ limiter, limits, month });
observe({ limiter }, new Registry());
observeByOpenTelemetry({ limiter, limits });
trace({ month });
// @ts-expect-error: limiters have names
observe([limiter]);

const places = new HoldLimiter({ client, limit: 5 });
app.use(concurrencyLimit({ limiter: places, key: (request) => request.get("x-user") }, { wait: "2s" }));
// @ts-expect-error: a place is held by a limiter of holds
concurrencyLimit({ limiter });
const rules = { connections: { limiter: places }, messages: { limiter: limits, key: () => "k" } };
new WebSocketServer().on(
  "connection",
  webSocketLimit(rules, (socket: WebSocket, request) => socket.send(`${request.url}`)),
);

// @ts-expect-error: either a period or a window
new BudgetLimiter({ limit: 1, period: "month", window: "1m" });
// @ts-expect-error: one of both is needed
new BudgetLimiter({ limit: 1 });
// @ts-expect-error: fixed windows have no zone
new BudgetLimiter({ limit: 1, window: "1m", timeZone: "Europe/Berlin" });
new BudgetLimiter({ limit: 1, period: "month", window: undefined, anchor: 15 });
new BudgetLimiter({ limit: 1, window: "1m", period: undefined });

const server = fastify();
server.addHook("onRequest", fastifyLimit({ limiter }));
server.get(
  "/",
  { preHandler: fastifyLimit({ limiter, key: (request) => String(request.headers["x-key"]) }) },
  () => {},
);
server.register(fastifyRateLimit, { max: 5, store: swlimitStore({ client }) });

const hono = new Hono();
hono.use(honoLimit({ limiter }));
hono.use("/a", honoLimit({ limiter, key: (context) => context.req.header("x-key"), cost: 2 }, { headers: false }));
hono.use(rateLimiter({ windowMs: 1000, limit: 5, keyGenerator: () => "", store: new SwlimitStore({ client }) }));

const koa = new Koa();
koa.use(koaLimit({ limiter, key: (context) => context.get("x-key") }));

ThrottlerModule.forRoot({ throttlers: [], storage: new SwlimitThrottlerStorage({ client }) });

const flexible: Pick<RateLimiterAbstract, "consume" | "penalty" | "reward" | "get" | "block" | "delete"> =
  new RateLimiterSwlimit({ client, points: 5, duration: 60, blockDuration: 600, keyPrefix: "login" });
const { remainingPoints: left }: RateLimiterRes = await flexible.consume("k", 2);

new Worker(
  "calls",
  inTurn({ limiter, key: (job) => job.data.user }, async (job: Job<{ user: string }>) => job.id),
  { connection: {} },
);
new Worker<{ user: string }>(
  "calls",
  // @ts-expect-error: a user is no number
  inTurn({ limiter, key: ({ data }) => data.user }, async ({ data }) => data.user / 2),
  { connection: {} },
);

new Worker(
  "calls",
  inTurn(
    { parts: (job: Job) => [{ limiter, key: job.name, name: "calls" }], maxAge: "10m", onError: "giveBack" },
    async (job, _token, spent) => {
      spent.saw({ calls: 2 });
      // @ts-expect-error: no part is called call
      spent.saw({ call: 2 });
      return job.id;
    },
  ),
  { connection: {} },
);

const asked: { token: string | undefined; signal: AbortSignal | undefined } = { token: undefined, signal: undefined };
const edge = new HttpLimiter({ url: "http://127.0.0.1:8080", token: asked.token, limit: 3, window: "1m" });
await edge.allow("k", { signal: asked.signal });
const servers: ServerState[] = limiter.servers();

const remaining: number | undefined = decision.remaining;
const source: "server" | "cache" | "failure" | "local" = decision.source;

export { all, body, each, headers, left, month, own, remaining, servers, source };

export async function work(): Promise<[boolean, string, readonly number[] | null]> {
  const streams = new HoldLimiter({ client, limit: 5, ttl: "1m" });
  const tokens = new BudgetLimiter({ client, limit: 100_000, period: "month", timeZone: "Europe/Berlin", anchor: 15 });
  const hold: Hold = await streams.hold("k", { wait: "10s", signal: AbortSignal.timeout(1000) });
  const text: string = await streams.hold("k", {}, async ({ signal }) => String(signal.aborted));
  const admission: Admission = await admit([
    { limiter: streams, key: "k" },
    { limiter: tokens, key: "k", cost: 2000 },
  ]);
  return [hold.isLive, text, await admission.settle(1250)];
}

export async function spend(): Promise<[string, string | undefined, boolean]> {
  const streams = new HoldLimiter({ client, limit: 5 });
  const parts = [
    { limiter: streams, key: "k", name: "streams" },
    { limiter, key: "k", name: "tokens", cost: 500, limit: 60 },
  ] as const;
  const admission = await admit(parts, { maxAge: "10m", wait: "1s", deadline: 2000 });
  await admission.settle({ tokens: 850 });
  admission.settleSoon({ tokens: undefined });
  // @ts-expect-error: no part is called token
  await admission.settle({ token: 850 });
  // @ts-expect-error: a hold has no units to settle
  await admission.settle({ streams: 1 });
  const unnamed = await admit([{ limiter, key: "k" }]);
  // @ts-expect-error: no part has a name
  await unnamed.settle({ tokens: 850 });
  const text = await spending([{ limiter, key: "k", name: "tokens" }], { onError: "giveBack" }, async (spent) => {
    spent.saw({ tokens: 850 });
    // @ts-expect-error: no part is called token
    spent.saw({ token: 850 });
    return "text";
  });
  await using spent = await spending(parts, { maxAge: "10m" });
  const any: Spending = spent;
  return [text, admission.deniedBy?.name, any.admission.granted];
}
