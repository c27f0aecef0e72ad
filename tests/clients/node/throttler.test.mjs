/** The storage of @nestjs/throttler, in an application of Nest. */

import "reflect-metadata";
import assert from "node:assert/strict";
import { test } from "node:test";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { SwlimitThrottlerStorage } from "swlimit/nestjs";
import { asking, connect, eventually, key, sleep, statuses } from "./support.mjs";

/** An application with one route, limited by these throttlers. */
async function application(test, throttlers, options = {}) {
  const storage = new SwlimitThrottlerStorage({
    client: await connect(test),
    prefix: `${key()}:`,
    timeout: 2000,
    ...options,
  });
  class Routes {
    welcome() {
      return "welcome";
    }
  }
  Get()(Routes.prototype, "welcome", Object.getOwnPropertyDescriptor(Routes.prototype, "welcome"));
  Controller()(Routes);
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers, storage })],
    controllers: [Routes],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App);
  const app = await NestFactory.create(App, { logger: false });
  app.enableShutdownHooks();
  await app.listen(0, "127.0.0.1");
  test.after(() => app.close());
  return asking(app.getHttpServer().address().port);
}

test("three and no more, and a Retry-After that is right", async (test) => {
  const ask = await application(test, [{ ttl: 1000, limit: 3 }]);
  assert.deepEqual(await statuses(ask, 3), [200, 200, 200]);
  const { status, headers } = await ask();
  assert.equal(status, 429);
  await sleep(headers["retry-after"] * 1000);
  assert.equal((await ask()).status, 200);
});

test("several throttlers, and a block of its own", async (test) => {
  const ask = await application(test, [
    { name: "short", ttl: 400, limit: 1, blockDuration: 2000 },
    { name: "long", ttl: 60_000, limit: 4 },
  ]);
  const first = await ask();
  assert.deepEqual([first.status, first.headers["x-ratelimit-remaining-long"]], [200, "3"]);
  const began = performance.now();
  assert.equal((await ask()).status, 429);
  await sleep(800); // its window has passed, and the block goes on
  assert.equal((await ask()).status, 429);
  await sleep(Math.max(0, began + 2100 - performance.now()));
  assert.equal((await ask()).status, 200);
});

test("fixed windows: all comes back at once", async (test) => {
  const prefix = `${key()}:`;
  const ask = await application(test, [{ ttl: 3000, limit: 2 }], { fixed: true, prefix });
  await eventually(async () => (await ask()).status === 429, "a denial");
  const client = await connect(test);
  const [name] = await client.keys(`${prefix}*`);
  assert.ok("until" in (await client.sendCommand(["SWLIMIT.INFO", name])), "a window that ends");
  await eventually(async () => (await ask()).status === 200, "the next one");
  const other = await application(test, [{ ttl: 60_000, limit: 1, blockDuration: 120_000 }], { fixed: true });
  assert.equal((await other()).status, 500, "a block is refused loudly");
  assert.throws(() => new SwlimitThrottlerStorage({ fixed: "yes" }), /fixed must be/);
});

test("a server that is away", async (test) => {
  const client = () => Promise.reject(new Error("connect ECONNREFUSED"));
  const ask = await application(test, [{ ttl: 1000, limit: 3 }], { client, onFailure: "allow" });
  assert.deepEqual(await statuses(ask, 5), Array(5).fill(200));
});
