/** The AI SDK behind the middleware, asking a model whose answers a test decides. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenAICompatible as createOpenAICompatible7 } from "@ai-sdk/openai-compatible-7";
import { APICallError, generateText, streamText, wrapLanguageModel } from "ai";
import {
  APICallError as APICallError7,
  generateText as generateText7,
  streamText as streamText7,
  wrapLanguageModel as wrapLanguageModel7,
} from "ai-7";
import { createClient } from "redis";
import { admit, HoldLimiter, Limiter } from "swlimit";
import { rateLimit } from "swlimit/ai-sdk";
import { fakeModel } from "./fake-model.mjs";

const RELEASES = {
  6: { APICallError, createOpenAICompatible, generateText, streamText, wrapLanguageModel },
  7: {
    APICallError: APICallError7,
    createOpenAICompatible: createOpenAICompatible7,
    generateText: generateText7,
    streamText: streamText7,
    wrapLanguageModel: wrapLanguageModel7,
  },
};

let keys = 0;

async function eventually(probe, what) {
  for (const deadline = performance.now() + 20_000; ; await new Promise((resolve) => setTimeout(resolve, 10))) {
    const found = await probe();
    if (found) return found;
    assert.ok(performance.now() < deadline, `${what} did not come to be`);
  }
}

/** A model that is limited to 2 streams, 5 requests and 1000 tokens an hour; each request is estimated at 500 tokens. */
async function limited(test, answer, { release = 6, cost = 500, window = "1h", streams: limit = 2, ...options } = {}) {
  const { createOpenAICompatible, wrapLanguageModel, ...sdk } = RELEASES[release];
  const client = await createClient({ socket: { port: Number(process.env.SWLIMIT_PORT) } }).connect();
  test.after(() => client.destroy());
  const { baseURL, asked } = await fakeModel(test, answer);
  const all = { client, timeout: 20_000 };
  const streams = new HoldLimiter({ ...all, limit, ttl: "3s", prefix: "streams:" });
  const requests = new Limiter({ ...all, limit: 5, window: "1h", prefix: "requests:" });
  const tokens = new Limiter({ ...all, limit: 1000, window, prefix: "tokens:" });
  const key = `{${process.pid}:${keys++}}`;
  const parts = () => [
    { limiter: streams, key, name: "streams" },
    { limiter: requests, key, name: "requests" },
    { limiter: tokens, key, name: "tokens", cost },
  ];
  await requests.peek(key); // by then it knows whether there is a module
  const commands = [];
  const { sendCommand } = client;
  client.sendCommand = (words, ...rest) => {
    const [name, , count] = words;
    commands.push(name.startsWith("EVALSHA") ? words[3 + Number(count)] : name.replace("SWLIMIT.", ""));
    return sendCommand.call(client, words, ...rest);
  };
  const provider = createOpenAICompatible({ name: "fake", baseURL, includeUsage: true });
  const model = wrapLanguageModel({ model: provider("small"), middleware: rateLimit({ parts, ...options }) });
  const counted = async () => [5 - (await requests.peek(key)).remaining, 1000 - (await tokens.peek(key)).remaining];
  const places = async () => (await streams.holders(key)).length;
  return { ...sdk, model, key, parts, counted, places, asked, baseURL, commands };
}

const ASK = { prompt: "hello", maxRetries: 0 };

for (const release of [6, 7]) {
  describe(`release ${release}`, { concurrency: true }, () => {
    test("a request is admitted and settled by two commands", async (test) => {
      const { generateText, model, counted, places, commands } = await limited(test, ["850"], { release });
      const { text } = await generateText({ model, ...ASK });
      const decided = commands.filter((name) => name !== "RENEW"); // a busy machine takes as long as a renewal
      assert.deepEqual([text, decided], ["hello back", ["ADMIT", "SETTLE"]]);
      assert.deepEqual([await counted(), await places()], [[1, 850], 0]);
    });

    test("so is a stream, when it ends", async (test) => {
      const { streamText, model, counted, places, commands } = await limited(test, ["850"], { release });
      const { textStream } = streamText({ model, ...ASK });
      let text = "";
      for await (const part of textStream) text += part;
      assert.equal(text, "hello back");
      await eventually(async () => (await places()) === 0, "its end");
      assert.deepEqual([await counted(), commands.filter((name) => /ADMIT|SETTLE/.test(name)).length], [[1, 850], 2]);
    });

    test("through retries nothing is counted twice, nor is more granted than the limit", async (test) => {
      const { generateText, model, counted, asked, APICallError } = await limited(test, ["500 error", "850"], {
        release,
      });
      await generateText({ model, prompt: "hello" });
      assert.deepEqual([await counted(), asked.length], [[1, 850], 2]);
      const error = await generateText({ model, ...ASK }).catch((reason) => reason);
      assert.ok(APICallError.isInstance(error), error);
      assert.deepEqual([error.statusCode, error.isRetryable, asked.length], [429, true, 2]);
      assert.equal(error.responseHeaders["retry-after-ms"], String(error.admission.retryAfter));
      assert.equal(error.admission.deniedBy.name, "tokens");
    });

    test("the SDK waits as long as the middleware says, and tries again", async (test) => {
      const first = Promise.withResolvers();
      const answers = [first.promise, "10"];
      const { generateText, model, asked, counted } = await limited(test, answers, { release, streams: 1 });
      const one = generateText({ model, ...ASK });
      await eventually(() => asked.length === 1, "the first request");
      const other = generateText({ model, prompt: "hello", maxRetries: 2 });
      setTimeout(() => first.resolve("10"), 300);
      await Promise.all([one, other]);
      assert.deepEqual([asked.length, await counted()], [2, [2, 20]]);
    });

    test("an estimate above the limit is an error of the caller", async (test) => {
      const { generateText, model, asked, commands } = await limited(test, ["1"], { release, cost: 1001, wait: "1h" });
      const error = await generateText({ model, prompt: "hello" }).catch((reason) => reason);
      assert.deepEqual([error.statusCode, error.isRetryable, asked], [400, false, []]);
      assert.deepEqual(commands, ["ADMIT"]);
    });

    test("a model of another specification is refused at once", async (test) => {
      const { model } = await limited(test, [], { release });
      const { wrapLanguageModel } = RELEASES[release];
      const other = new Proxy(model, { get: (of, name) => (name === "specificationVersion" ? "v9" : of[name]) });
      const limits = { parts: () => [] };
      assert.equal(wrapLanguageModel({ model, middleware: rateLimit(limits) }).provider, model.provider);
      if (release === 7) return; // it makes each model one of its own
      assert.throws(() => wrapLanguageModel({ model: other, middleware: rateLimit(limits) }), /releases 6 and 7/);
    });
  });
}

describe("ends of requests", { concurrency: true }, () => {
  test("a connection that is cut leaves the estimate, and no place", async (test) => {
    const { model, counted, places } = await limited(test, ["cut"]);
    await assert.rejects(generateText({ model, ...ASK }));
    assert.deepEqual([await counted(), await places()], [[1, 500], 0]);
  });

  test("so does a break in a stream", async (test) => {
    const { model, counted, places } = await limited(test, ["850 break"]);
    const errors = [];
    const { textStream } = streamText({ model, ...ASK, onError: ({ error }) => errors.push(error) });
    await Array.fromAsync(textStream).catch((error) => errors.push(error));
    await eventually(async () => (await places()) === 0, "its end");
    assert.deepEqual([errors.length > 0, await counted()], [true, [1, 500]]);
  });

  test("and a reader who leaves", async (test) => {
    const { model, counted, places } = await limited(test, ["850 slow"]);
    const controller = new AbortController();
    const { textStream } = streamText({ model, ...ASK, abortSignal: controller.signal });
    for await (const _ of textStream) controller.abort();
    await eventually(async () => (await places()) === 0, "its end");
    assert.deepEqual(await counted(), [1, 500]);
  });

  test("the place of a stream that nobody reads ends after the longest age", async (test) => {
    const { model, counted, places } = await limited(test, ["850"], { maxAge: 1 });
    const { stream } = await model.doStream({ prompt: [{ role: "user", content: [{ type: "text", text: "hello" }] }] });
    assert.equal(await places(), 1);
    await eventually(async () => (await places()) === 0, "its end");
    assert.deepEqual([stream.locked, await counted()], [false, [1, 500]]);
  });

  test("over the edge of a window what was used beyond is counted, and nothing goes below 0", async (test) => {
    const edge = Promise.withResolvers();
    const answers = ["850", "100"].map((units) => edge.promise.then(() => units));
    const { model, counted, asked } = await limited(test, answers, { window: "5s" });
    const all = [1, 2].map(() => generateText({ model, ...ASK }));
    await eventually(() => asked.length === 2, "both requests");
    await eventually(async () => (await counted())[1] === 0, "the edge");
    edge.resolve();
    await Promise.all(all);
    assert.equal((await counted())[1], 350);
  });

  test("a process that is killed leaves the estimate, and its place after a ttl", async (test) => {
    const never = [new Promise(() => {})];
    const { key, parts, counted, places, asked, baseURL } = await limited(test, never, { streams: 1 });
    const program = `
      import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
      import { generateText, wrapLanguageModel } from "ai";
      import { createClient } from "redis";
      import { HoldLimiter, Limiter } from "swlimit";
      import { rateLimit } from "swlimit/ai-sdk";
      const client = await createClient({ socket: { port: ${process.env.SWLIMIT_PORT} } }).connect();
      const all = { client, timeout: 20_000 };
      const streams = new HoldLimiter({ ...all, limit: 1, ttl: "3s", prefix: "streams:" });
      const tokens = new Limiter({ ...all, limit: 1000, window: "1h", prefix: "tokens:" });
      const key = "${key}";
      const parts = () => [{ limiter: streams, key }, { limiter: tokens, key, name: "tokens", cost: 500 }];
      const provider = createOpenAICompatible({ name: "fake", baseURL: "${baseURL}" });
      const model = wrapLanguageModel({ model: provider("small"), middleware: rateLimit({ parts }) });
      await generateText({ model, prompt: "hello" });`;
    const holder = spawn(process.execPath, ["--input-type=module", "--eval", program], { stdio: "inherit" });
    test.after(() => holder.kill("SIGKILL"));
    await eventually(() => asked.length === 1, "its request");
    holder.kill("SIGKILL");
    await once(holder, "exit");
    assert.deepEqual([await places(), await counted()], [1, [0, 500]]);
    assert.equal((await admit(parts().slice(0, 1), { wait: "1m" })).granted, true);
    assert.deepEqual(await counted(), [0, 500]);
  });

  test("of requests with one id no more are granted than of others", async (test) => {
    const { model, asked, counted } = await limited(test, Array(20).fill("10"), { cost: 1, streams: 20 });
    const headers = { "x-request-id": "the same" };
    const all = await Promise.allSettled(Array.from({ length: 20 }, () => generateText({ model, ...ASK, headers })));
    assert.equal(all.filter(({ status }) => status === "fulfilled").length, 5);
    assert.deepEqual([asked.length, await counted()], [5, [5, 50]]);
  });

  test("a model that tells no usage leaves the estimate", async (test) => {
    const { model, counted, places } = await limited(test, ["unknown"]);
    await generateText({ model, ...ASK });
    assert.deepEqual([await counted(), await places()], [[1, 500], 0]);
  });
});
