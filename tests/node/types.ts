/**
 * What users write, as the compiler reads it: the types fit those of the clients and the frameworks. Nothing runs
 * this.
 */

import fastifyRateLimit from "@fastify/rate-limit";
import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { Cluster, Redis } from "ioredis";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { createClient as createClient5 } from "redis-5";
import { allowAll, type Client, type Decision, Limiter } from "swlimit";
import { rateLimit as expressLimit } from "swlimit/express";
import { SwlimitStore } from "swlimit/express-rate-limit";
import { rateLimit as fastifyLimit } from "swlimit/fastify";
import { swlimitStore } from "swlimit/fastify-rate-limit";
import { rateLimit as honoLimit } from "swlimit/hono";

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

const app = express();
app.use(expressLimit({ limiter }));
app.use(
  "/a",
  expressLimit([{ limiter, key: (request: express.Request) => request.get("x-key"), cost: async () => 2 }]),
);
app.use(
  expressLimit({ limiter: (request: express.Request) => limiter.with({ limit: Number(request.get("x-plan")) }) }),
);
app.use(expressRateLimit({ windowMs: 1000, limit: 5, store: new SwlimitStore({ client }) }));

const server = fastify();
server.addHook("onRequest", fastifyLimit({ limiter }));
server.get(
  "/",
  { preHandler: fastifyLimit({ limiter, key: (request: fastify.FastifyRequest) => request.ip }) },
  () => {},
);
server.register(fastifyRateLimit, { max: 5, store: swlimitStore({ client }) });

const hono = new Hono();
hono.use(honoLimit({ limiter }));
hono.use("/a", honoLimit({ limiter, key: (context) => context.header.name, cost: 2 }, { headers: false }));
hono.use(rateLimiter({ windowMs: 1000, limit: 5, keyGenerator: () => "", store: new SwlimitStore({ client }) }));

export { all, headers };
