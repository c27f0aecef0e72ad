/** Rates as text, and the class Limits. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Limiter, Limits } from "swlimit";
import { policyNames } from "../../../src/clients/node/dist/esm/core/headers.js";
import { keyOfRate, parseRate, parseRates } from "../../../src/clients/node/dist/esm/core/rates.js";
import { connect, eventually, key, port, sent, told, vectors } from "./support.mjs";

test("rates as vectors say", () => {
  const { texts, single, names, policies } = vectors("rates");
  for (const { policies: asked, shown } of policies) {
    assert.deepEqual(policyNames(asked.map(([name, window]) => ({ name, window }))), shown);
  }
  for (const { text, rates, error } of texts) {
    if (error) assert.throws(() => parseRates(text), { name: "RangeError", message: error });
    else
      assert.deepEqual(
        parseRates(text),
        rates.map(([limit, window]) => ({ limit, window })),
        text,
      );
  }
  for (const { text, rate, error } of single) {
    if (error) assert.throws(() => parseRate(text), { name: "RangeError", message: error });
    else assert.deepEqual(parseRate(text), { limit: rate[0], window: rate[1] });
  }
  for (const { prefix, key, window_ms, name, error } of names) {
    if (error) assert.throws(() => keyOfRate(prefix, key, window_ms), { name: "RangeError", message: error });
    else assert.equal(keyOfRate(prefix, key, window_ms), name);
  }
});

/** Limits that end with the test: 10 an hour and 2 in 10 seconds, unless other things are asked for. */
function limits(test, options) {
  const made = new Limits({ rates: "10/hour; 2/10s", timeout: 2000, ...options });
  test.after(() => made.close());
  return made;
}

const remaining = ({ each }) => each.map(({ remaining }) => remaining);

test("all or nothing, by one command", async (test) => {
  const client = await connect(test);
  const both = limits(test, { client, prefix: "p:", mode: "direct" });
  const k = key();
  await both.allow(key()); // a server without the module learns the script
  const commands = sent(client);
  const granted = await both.allow(k, { cost: 2 });
  assert.deepEqual([granted.granted, remaining(granted)], [true, [8, 0]]);
  assert.equal(commands.length, 1);
  const denied = await both.allow(k);
  assert.deepEqual([denied.granted, remaining(denied), denied.each[0].source], [false, [8, 0], "server"]);
  assert.ok(denied.retryAfter > 5000 && denied.retryAfter <= 12_000);
  assert.equal(denied.headers()["RateLimit-Policy"], '"default-1h";q=10;w=3600, "default-10s";q=2;w=10');
  assert.equal(await client.exists([`p:{${k}}:3600000`, `p:{${k}}:10000`]), 2);
  assert.deepEqual(remaining(await both.peek(k)), [8, 0]);
  assert.deepEqual(remaining(await both.record(k, { cost: 3 })), [5, 0]);
  assert.deepEqual(await both.refund(k, 4), [4, 4]);
  assert.deepEqual(remaining(await both.peek(k)), [9, 1]);
  await both.reset(k);
  assert.equal(await client.exists([`p:{${k}}:3600000`, `p:{${k}}:10000`]), 0);
  assert.deepEqual(both.limiters[1].statistics, { server: 6, cache: 0, failure: 0, local: 0, lost: 0, evicted: 0 });
});

test("what is known to be denied is not asked, and what is given back is", async (test) => {
  const both = limits(test, { client: await connect(test) });
  const k = key();
  await both.allow(k, { cost: 2 });
  const known = await eventually(async () => {
    const decisions = await both.allow(k);
    return decisions.each[1].source === "cache" && decisions;
  });
  assert.deepEqual([known.granted, known.each[0].remaining], [false, undefined]);
  await both.refund(k);
  assert.equal((await both.allow(k)).granted, true);
});

test("while the server does not answer, and without one", async (test) => {
  const away = () => Promise.reject(new Error("connect ECONNREFUSED"));
  const granted = async (options) => (await limits(test, options).allow("k")).granted;
  assert.equal(await granted({ client: away }), true); // a tenth of each limit, rounded up
  assert.equal(await granted({ client: away, onFailure: "deny" }), false);
  await assert.rejects(granted({ client: away, onFailure: "error" }), { name: "UnavailableError" });
  const local = limits(test, { mode: "local" });
  const decisions = [await local.allow("k"), await local.allow("k"), await local.allow("k")];
  assert.deepEqual(decisions.map(remaining), [
    [9, 1],
    [8, 0],
    [8, 0],
  ]);
  assert.deepEqual(remaining(await local.peek("k")), [8, 0]);
});

test("one rate has its own name, and other arguments are refused", async (test) => {
  const client = await connect(test);
  const one = limits(test, { client, rates: "1/minute", name: "mine" });
  const k = key();
  const { granted, each } = await one.allow(k);
  assert.deepEqual([granted, each.length, each[0].policy.name], [true, 1, "mine"]);
  assert.equal((await one.allow(k)).granted, false);
  await assert.rejects(one.allow(""), { name: "RangeError", message: "key must not be empty" });
  await assert.rejects(one.allow("k", { partial: true }), /there is no option partial/);
  await assert.rejects(one.record("k", { block: "1h" }), /there is no option block/);
  assert.throws(() => new Limits({ rates: "1/minute" }), /needs a client, or mode: "local"/);
  assert.throws(() => new Limits({ client, rates: "1/minute", window: "1m" }), /there is no option window/);
  assert.throws(() => new Limits({ client, rates: "1/month" }), /has no fixed length/);
  assert.throws(
    () => new Limits({ client, rates: "1/minute", warmUp: "9m" }),
    /warmUp must be at least ten times the window/,
  );
  assert.throws(() => new Limits({ client }), /rates must be a text such as "100\/minute"/);
});

test("a client of its own, from a URL, which the last limiter closes", async (test) => {
  const watching = await connect(test);
  const connections = async () => (await watching.sendCommand(["CLIENT", "LIST"])).match(/\bid=\d+/g);
  const before = await connections();
  const url = `redis://127.0.0.1:${port()}`;
  const one = await Limiter.fromUrl(url, "3/10s", { prefix: "own:", timeout: 2000 });
  assert.deepEqual(told(await one.allow(key())), { granted: 1, limit: 3, remaining: 2, source: "server" });
  const own = (await connections()).filter((id) => !before.includes(id));
  assert.ok(own.length > 0);
  await one.close();
  await eventually(async () => (await connections()).every((id) => !own.includes(id)), "its end");
  await using both = await Limits.fromUrl(url, "1/s; 2/m", { timeout: 2000 });
  assert.equal((await both.allow(key())).granted, true);
});

test("a socket of this machine, with a user, a password and a database", async (test) => {
  const folder = mkdtempSync(join(tmpdir(), "swlimit-"));
  const seen = [];
  const server = createServer((socket) =>
    socket.on("data", (data) => {
      seen.push(String(data));
      socket.write("+OK\r\n".repeat(String(data).match(/^\*/gm).length));
    }),
  );
  test.after(() => {
    server.close();
    rmSync(folder, { recursive: true });
  });
  await once(server.listen(join(folder, "a socket")), "listening");
  const url = `unix://ann:a%2Fb@${folder}/a%20socket?db=3`;
  const one = await Limiter.fromUrl(url, "3/minute", { timeout: 20 });
  await one.close();
  assert.match(seen.join(""), /ann\r\n\$3\r\na\/b\r\n/);
  assert.match(seen.join(""), /SELECT\r\n\$1\r\n3\r\n/);
});

test("a URL without a server behind it, and arguments that are refused", async (test) => {
  const away = "redis://127.0.0.1:1";
  const one = await Limiter.fromUrl(away, "30/minute", { timeout: 20 });
  test.after(() => one.close());
  assert.deepEqual(told(await one.allow("k")), { granted: 1, limit: 3, remaining: 2, source: "failure" });
  await assert.rejects(Limiter.fromUrl(away, "1/s; 2/m"), /has 2 rates, and a limiter takes one: use Limits/);
  await assert.rejects(Limiter.fromUrl("localhost:6379", "1/s"), /url must be a text such as "redis:/);
  await assert.rejects(Limiter.fromUrl(away, "1/s", { mode: "local" }), /mode "local" asks no server/);
  await assert.rejects(Limiter.fromUrl(away, "1/s", { window: 5 }), /there is no option window/);
  await assert.rejects(Limits.fromUrl(away, "1/s", { client: null }), /there is no option client/);
  await assert.rejects(Limits.fromUrl(away, "1/s", { rates: "2/s" }), /there is no option rates/);
  const refused = `redis://nobody:wrong@127.0.0.1:${port()}`;
  await assert.rejects(Limiter.fromUrl(refused, "1/s"), /WRONGPASS/);
});

/** What a program of an application prints, with these packages installed beside swlimit. */
function installed(test, packages, program, kind) {
  const folder = mkdtempSync(join(tmpdir(), "swlimit-"));
  test.after(() => rmSync(folder, { recursive: true }));
  const modules = join(folder, "node_modules");
  const own = fileURLToPath(new URL("../../../src/clients/node/", import.meta.url));
  mkdirSync(modules);
  for (const part of ["dist", "package.json"]) {
    cpSync(join(own, part), join(modules, "swlimit", part), { recursive: true });
  }
  for (const name of ["cluster-key-slot", ...packages]) {
    symlinkSync(fileURLToPath(new URL(`node_modules/${name}`, import.meta.url)), join(modules, name));
  }
  return execFileSync(process.execPath, [`--input-type=${kind}`, "--eval", program], { cwd: folder, encoding: "utf8" });
}

for (const kind of ["module", "commonjs"]) {
  const load = kind === "module" ? 'import { Limiter } from "swlimit"' : 'const { Limiter } = require("swlimit")';

  test(`the packages that a URL needs: ${kind}`, (test) => {
    const found = ["redis", "ioredis", null].map((name) => {
      const program = `${load};
        Limiter.fromUrl("redis://127.0.0.1:${port()}", "5/m", { timeout: "5s" }).then(async (limiter) => {
          const { source } = await limiter.allow("${key()}");
          const { call } = Object.getPrototypeOf(limiter.core.transport.node(""));
          console.log(source, call ? "ioredis" : "redis");
          await limiter.close();
        }).catch((error) => console.log(error.message));`;
      return installed(test, name ? [name] : [], program, kind);
    });
    const remedy = "fromUrl needs the package redis or ioredis: run `npm install redis`\n";
    assert.deepEqual(found, ["server redis\n", "server ioredis\n", remedy]);
  });
}
