// Serves POST /login, GET /page and DELETE /item by each of Node's frameworks, with its own defaults, until stdin ends.
// Prints their ports.

import { once } from "node:events";
import { createServer } from "node:http";
import hapi from "@hapi/hapi";
import Router from "@koa/router";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";

const listen = async (handler) => {
  const server = createServer(handler).listen(0, "127.0.0.1");
  await once(server, "listening");
  return server.address().port;
};

const ok = (_, response) => response.send("ok");
const ofExpress = express().post("/login", ok).get("/page", ok).delete("/item", ok);

const ofFastify = async (routerOptions) => {
  const application = fastify({ routerOptions });
  application.post("/login", async () => "ok");
  application.get("/page", async () => "ok");
  application.delete("/item", async () => "ok");
  await application.listen({ port: 0, host: "127.0.0.1" });
  return application.server.address().port;
};

// As its adapter for Node does: a Request of the URL that was asked for.
const text = (context) => context.text("ok");
const ofHono = new Hono().post("/login", text).get("/page", text).delete("/item", text);
const hono = async (request, response) => {
  const { status } = await ofHono.fetch(new Request(`http://localhost${request.url}`, { method: request.method }));
  response.writeHead(status).end();
};

// It has no routes: applications compare method and path.
const ofKoa = new Koa();
ofKoa.use((context) => {
  if (["POST /login", "GET /page", "DELETE /item"].includes(`${context.method} ${context.path}`)) context.body = "ok";
});

const koaText = (context) => {
  context.body = "ok";
};
const router = new Router().post("/login", koaText).get("/page", koaText).delete("/item", koaText);
const ofRouter = new Koa().use(router.routes()).use(router.allowedMethods());

const ofHapi = async () => {
  const server = hapi.server({ port: 0, host: "127.0.0.1" });
  const routes = { POST: "/login", GET: "/page", DELETE: "/item" };
  for (const [method, path] of Object.entries(routes)) server.route({ method, path, handler: () => "ok" });
  await server.start();
  return server.info.port;
};

const ports = {
  Express: await listen(ofExpress),
  Fastify: await ofFastify({}),
  "Fastify, `caseSensitive: false`, `ignoreTrailingSlash`": await ofFastify({
    caseSensitive: false,
    ignoreTrailingSlash: true,
  }),
  Hono: await listen(hono),
  "Koa, comparing `ctx.path`": await listen(ofKoa.callback()),
  "@koa/router": await listen(ofRouter.callback()),
  hapi: await ofHapi(),
};
console.log(JSON.stringify(ports));
process.stdin.resume();
await once(process.stdin, "end");
process.exit();
