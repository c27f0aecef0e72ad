/** A worker of BullMQ that waits for its turn. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Queue, Worker } from "bullmq";
import { inTurn } from "swlimit/bullmq";
import { connect, eventually, key, limiter, port } from "./support.mjs";

/** A queue, and when its jobs were done. */
async function queue(test, options) {
  const connection = { host: "127.0.0.1", port: port() };
  const name = key().replace(":", "-");
  const jobs = new Queue(name, { connection });
  const done = [];
  const failed = [];
  const work = async (job) => done.push({ job: job.name, at: performance.now() });
  const worker = new Worker(name, inTurn(options, work), { connection, concurrency: 10 });
  worker.on("failed", (_, error) => failed.push(error));
  worker.on("error", () => {});
  test.after(async () => {
    await worker.close(true);
    await jobs.close();
  });
  return { jobs, done, failed };
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
