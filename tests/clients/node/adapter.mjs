/** The Node client for scenarios, by `redis` or `ioredis`. Does what the runner says, and judges nothing. */

import diagnostics from "node:diagnostics_channel";
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import { createClient } from "redis";
import * as swlimit from "swlimit";

const kind = process.argv[2];
const ABLE = ["cancel", "undo", "statistics", "reasons"];
const clients = new Map();
const calls = new Map();
const say = (words) => process.stdout.write(`${JSON.stringify(words)}\n`);
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
process.on("warning", (warning) => say({ log: warning.code ?? "warning", text: warning.message }));
diagnostics.subscribe("swlimit:state", (state) => say({ log: `state:${state.state}`, text: state.message }));

function told(found) {
  if (typeof found !== "object" || found === null) return { value: found };
  const { granted, limit, remaining, retryAfter, resetAfter, source } = found.decision ?? found;
  // The language's own value for "never" is Infinity (LOCAL §1); JSON has none.
  const ms = (value) => (value === Number.POSITIVE_INFINITY ? "never" : (value ?? null));
  return {
    granted: Number(granted),
    limit,
    remaining: remaining ?? null,
    retry_after: ms(retryAfter),
    reset_after: ms(resetAfter),
    source,
  };
}

function failed(error) {
  const kinds = [
    [swlimit.UnavailableError, "unavailable"],
    [swlimit.ModuleMissingError, "module_missing"],
    [swlimit.DeniedError, "denied"],
    [TypeError, "invalid"],
    [RangeError, "invalid"],
  ];
  const word =
    error?.name === "AbortError" ? "cancelled" : (kinds.find(([one]) => error instanceof one)?.[1] ?? "refused");
  return {
    error: word,
    message: `${error?.name}: ${error?.message}`,
    ...(error?.decision ? told(error.decision) : {}),
  };
}

async function opened({ addresses, topology }) {
  const ports = Object.values(addresses).map((address) => Number(address.split(":")[1]));
  if (topology === "sentinel") {
    const sentinels = Object.entries(addresses)
      .filter(([name]) => name.startsWith("N"))
      .map(([, address]) => ({ host: "127.0.0.1", port: Number(address.split(":")[1]) }));
    const client = new Redis({ sentinels, name: "main" });
    client.on("error", () => {});
    return client;
  }
  if (kind === "ioredis") {
    const client = new Redis(ports[0]);
    client.on("error", () => {});
    return client;
  }
  const client = createClient({ socket: { port: ports[0], host: "127.0.0.1" }, RESP: 3 });
  client.on("error", () => {});
  await Promise.race([client.connect().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 300))]);
  return client;
}

async function run(asked) {
  const made = clients.get(asked.client);
  switch (asked.do) {
    case "limiter": {
      const client = await opened(asked);
      const options = Object.fromEntries(Object.entries(asked.options).map(([name, value]) => [camel(name), value]));
      const kinds = { rate: swlimit.Limiter, hold: swlimit.HoldLimiter, budget: swlimit.BudgetLimiter };
      clients.set(asked.client, [client, new kinds[asked.kind]({ client, ...options })]);
      return null;
    }
    case "call": {
      const { id, do: _, client: __, method, key, timeout, cancellable, ...options } = asked;
      const controller = new AbortController();
      calls.set(id, controller);
      const words = method === "acquire" ? [key, timeout ?? "1m"] : [key];
      return told(
        await made[1][method](
          ...words,
          method === "refund" ? options.units : cancellable ? { ...options, signal: controller.signal } : options,
        ),
      );
    }
    case "statistics":
      return made[1].statistics ?? made[1].counts;
    case "health": {
      const state = made[1].servers().find((one) => one.state !== "up") ?? made[1].servers()[0];
      return { state: state?.state ?? null, reason: state?.reason ?? null };
    }
    case "close":
    case "drop": {
      if (!made) return null;
      clients.delete(asked.client);
      await made[1].close();
      if (made[0].disconnect && made[0].call) made[0].disconnect();
      else made[0].destroy();
      return null;
    }
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const asked = JSON.parse(line);
  if (asked.do === "hello") say({ id: asked.id, ok: [...ABLE, ...(kind === "ioredis" ? ["sentinel"] : [])] });
  else if (asked.do === "cancel") calls.get(asked.call)?.abort();
  else
    run(asked).then(
      (ok) => say({ id: asked.id, ok }),
      (error) => say({ id: asked.id, ...failed(error) }),
    );
});
