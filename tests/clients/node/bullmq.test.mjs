/** A worker of BullMQ that waits for its turn. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { Queue, Worker } from "bullmq";
import { NotAdmittedError } from "swlimit";
import { inTurn } from "swlimit/bullmq";
import { connect, eventually, holds, key, limiter, port, sleep } from "./support.mjs";

/** A queue, and when its jobs were done. */
async function queue(test, options, doing = async () => {}, more = {}) {
  const connection = { host: "127.0.0.1", port: port() };
  const name = key().replace(":", "-");
  const jobs = new Queue(name, { connection });
  const done = [];
  const failed = [];
  const work = async (job, ...more) => {
    await doing(job, ...more);
    done.push({ job: job.name, at: performance.now() });
  };
  const worker = new Worker(name, inTurn(options, work), { connection, concurrency: 10, ...more });
  worker.on("failed", (_, error) => failed.push(error));
  worker.on("error", () => {});
  test.after(async () => {
    await worker.close(true);
    await jobs.close();
  });
  return { jobs, worker, done, failed };
}

for (const [what, timeout] of [
  ["the worker waits", "5s"],
  ["jobs go back into the queue", 0],
]) {
  test(`jobs in turn: ${what}`, async (test) => {
    const two = limiter(test, { client: await connect(test), limit: 2, window: 300, resolution: 10 });
    const { jobs, done, failed } = await queue(test, { limiter: two, timeout });
    await jobs.addBulk(Array.from({ length: 6 }, () => ({ name: "call", data: {} })));
    await eventually(() => done.length === 6, "all jobs");
    assert.deepEqual(failed, []);
    const times = done.map(({ at }) => at).sort((a, b) => a - b);
    assert.ok(times[5] - times[0] >= 400, `${times}`);
  });
}

test("a job that can never be done fails at once", async (test) => {
  const two = limiter(test, { client: await connect(test), limit: 2 });
  const { jobs, failed } = await queue(test, { limiter: two, cost: () => 3, key: () => "k" });
  await jobs.add("call", {}, { attempts: 5 });
  await eventually(() => failed.length > 0);
  assert.match(failed[0].message, /never comes/);
});

for (const [what, timeout] of [
  ["the worker waits", "5s"],
  ["jobs go back into the queue", 0],
]) {
  test(`jobs that hold places, and are settled by what they used: ${what}`, async (test) => {
    const client = await connect(test);
    const places = holds(test, { client, limit: 2, prefix: "places:" });
    const tokens = limiter(test, { client, limit: 1000, window: "1h", timeout: 20_000 });
    const k = `{${key()}}`;
    const parts = () => [
      { limiter: places, key: k },
      { limiter: tokens, key: k, name: "tokens", cost: 30 },
    ];
    let [now, most] = [0, 0];
    const { jobs, done, failed } = await queue(test, { parts, timeout }, async (_job, _token, spent) => {
      most = Math.max(most, ++now);
      await sleep(20);
      spent.saw({ tokens: 10 });
      now--;
    });
    await jobs.addBulk(Array.from({ length: 6 }, () => ({ name: "call", data: {} })));
    await eventually(() => done.length === 6, "all jobs");
    await eventually(async () => (await tokens.peek(k)).remaining === 940, "their settlement");
    assert.deepEqual([most, failed, await places.holders(k)], [2, [], []]);
  });
}

test("an attempt that fails gives back what it did not use, and the next one is admitted", async (test) => {
  const client = await connect(test);
  const tokens = limiter(test, { client, limit: 100, window: "1h", timeout: 20_000 });
  const k = key();
  const parts = (job) => [{ limiter: tokens, key: k, name: "tokens", cost: job.data.cost }];
  const options = { parts, onError: "giveBack", timeout: 0 };
  const { jobs, done, failed } = await queue(test, options, async (job, _token, spent) => {
    if (job.attemptsMade === 0) throw new NotAdmittedError(spent.admission); // as of limits of its own
    spent.saw({ tokens: 70 });
  });
  await jobs.add("call", { cost: 60 }, { attempts: 2 });
  await eventually(() => done.length === 1, "its second attempt");
  assert.deepEqual([failed.length, (await tokens.peek(k)).remaining], [1, 30]);
  await jobs.add("call", { cost: 101 }, { attempts: 5 });
  await eventually(() => failed.length > 1);
  assert.match(failed[1].message, /never comes/);
});

test("a job whose worker is killed is done by another one, once its place is free", async (test) => {
  const client = await connect(test);
  const places = holds(test, { client, limit: 1, ttl: "3s", prefix: "places:" });
  const k = `{${key()}}`;
  const parts = () => [{ limiter: places, key: k }];
  const options = { autorun: false, lockDuration: 1000, stalledInterval: 500 };
  const { jobs, worker, done, failed } = await queue(test, { parts, timeout: 500 }, undefined, options);
  const program = `
    import { Worker } from "bullmq";
    import { createClient } from "redis";
    import { HoldLimiter } from "swlimit";
    import { inTurn } from "swlimit/bullmq";
    const connection = { host: "127.0.0.1", port: ${port()} };
    const client = await createClient({ socket: connection }).connect();
    const places = new HoldLimiter({ client, limit: 1, ttl: "3s", prefix: "places:", timeout: 20_000 });
    const work = () => {
      console.log("working");
      return new Promise(() => {});
    };
    const parts = () => [{ limiter: places, key: "${k}" }];
    new Worker("${jobs.name}", inTurn({ parts }, work), { connection, lockDuration: 1000 });`;
  const other = spawn(process.execPath, ["--input-type=module", "--eval", program]);
  test.after(() => other.kill("SIGKILL"));
  await jobs.add("call", {});
  await once(other.stdout, "data");
  other.kill("SIGKILL");
  await once(other, "exit");
  assert.equal((await places.holders(k)).length, 1);
  worker.run();
  await eventually(() => done.length === 1, "the job", 60_000);
  assert.deepEqual([failed, await places.holders(k)], [[], []]);
});
