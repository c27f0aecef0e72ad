/** A server that speaks OpenAI's chat completions, and answers as a test says. */

import { createServer } from "node:http";

/**
 * Answers, one a request: a number of tokens, with "break" or "slow" for what happens in the middle of its stream; "500
 * error"; "cut": no answer; "unknown": no usage. What was asked, and the server's URL.
 */
export async function fakeModel(test, answers) {
  const asked = [];
  const left = [...answers];
  const server = createServer(async (request, response) => {
    const body = JSON.parse((await request.toArray()).join(""));
    asked.push(body);
    const [units, how] = String(await left.shift()).split(" ");
    if (units === "cut") return request.socket.destroy();
    if (how === "error") return response.writeHead(Number(units)).end("{}");
    const usage = units === "unknown" ? undefined : usageOf(Number(units));
    if (body.stream) return stream(response, how, usage);
    const message = { role: "assistant", content: "hello back" };
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ ...HEAD, choices: [{ index: 0, message, finish_reason: "stop" }], usage }));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { baseURL: `http://127.0.0.1:${server.address().port}/v1`, asked };
}

const HEAD = { id: "one", object: "chat.completion", created: 0, model: "small" };

function usageOf(units) {
  return {
    prompt_tokens: Math.floor(units / 10),
    completion_tokens: units - Math.floor(units / 10),
    total_tokens: units,
  };
}

async function stream(response, how, usage) {
  response.setHeader("content-type", "text/event-stream");
  const send = (more) =>
    new Promise((resolve) => response.write(`data: ${JSON.stringify({ ...HEAD, ...more })}\n\n`, resolve));
  const choice = (delta, reason = null) => ({ choices: [{ index: 0, delta, finish_reason: reason }] });
  await send(choice({ role: "assistant", content: "hello" }));
  if (how === "slow") return; // the rest never comes
  if (how === "break") return response.destroy();
  await send(choice({ content: " back" }));
  await send({ ...choice({}, "stop") });
  await send({ choices: [], usage });
  response.end("data: [DONE]\n\n");
}
