/** Waiting for one's turn, with nobody of this process before one. */

import { quotaWords, replyOf } from "./commands.js";
import type { Decision } from "./decision.js";
import { ModuleMissingError, RefusedError, understood } from "./errors.js";
import type { Limiter } from "./limiter.js";
import type { Server } from "./server.js";
import { pause, within } from "./timeout.js";
import type { Connection } from "./transport.js";
import type { Demand } from "./window.js";

/** The decision once it is granted, or when the wait of `left()` ms would not be long enough. */
export async function waitInTurn(
  limiter: Limiter,
  key: string,
  demand: Demand,
  left: () => number,
  signal: AbortSignal | undefined,
): Promise<Decision> {
  const { server } = limiter;
  if (!server?.lanes) return sleep(limiter, key, demand, left, signal);
  const name = limiter.name(key);
  try {
    const reply = await inQueue(limiter, server, name, demand, left, signal);
    limiter.counts.server++;
    return limiter.decision(replyOf(reply), "server");
  } catch (cause) {
    if (signal?.aborted) throw signal.reason;
    const error = understood(cause);
    if (error instanceof ModuleMissingError) return sleep(limiter, key, demand, left, signal);
    if (error instanceof RefusedError) throw error;
    return limiter.failed(error, demand, (asked, now) => limiter.window(name).allow(asked, now));
  }
}

/** The server's reply, after a wait in its queue where there is hope. */
async function inQueue(
  limiter: Limiter,
  server: Server,
  name: string,
  demand: Demand,
  left: () => number,
  signal: AbortSignal | undefined,
): Promise<unknown> {
  const { timeout, maxWaiting } = limiter.settings;
  const words = (ms: number) => {
    const [limit, window, resolution, ...options] = quotaWords(demand) as [string, string, string, ...string[]];
    return ["SWLIMIT.ACQUIRE", name, limit, window, resolution, `${ms}ms`, ...options];
  };
  const how = {
    grace: timeout,
    most: maxWaiting,
    signal,
    leave: (connection: Connection) => leaver(limiter, server, name, connection),
  };
  for (;;) {
    try {
      // What is granted at once needs no connection of its own, nor does what there is no hope for.
      const now = await limiter.ask(words(0), name, { signal });
      const [granted, , , retryAfter] = replyOf(now);
      if (granted > 0 || retryAfter < 0 || retryAfter > left()) return now;
      return (await server.lanes?.ask(name, left, words, how)) ?? now;
    } catch (cause) {
      if (signal?.aborted || !(cause instanceof Error && /^UNBLOCKED /.test(cause.message))) throw cause;
    }
  }
}

/**
 * What is done when the caller has given up: the server is told to end its wait, and closes nothing, so that a grant that
 * is on its way just then still arrives, and can be given back.
 */
function leaver(limiter: Limiter, server: Server, name: string, connection: Connection) {
  const { timeout } = limiter.settings;
  const [id, time] = [["CLIENT", "ID"], ["TIME"]].map((words) => known(connection.send(words)));
  return async (asking: Promise<unknown>) => {
    const over = known(limiter.giveBack(name, asking, time as Promise<unknown>));
    const number = String(await within(id as Promise<unknown>, timeout));
    await server.ask(["CLIENT", "UNBLOCK", number], name, { timeout });
    await within(over, timeout);
  };
}

/** The same promise, whose failure somebody knows of. */
function known<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {});
  return promise;
}

/** Ask again when it may fit, until it does. */
async function sleep(
  limiter: Limiter,
  key: string,
  { cost }: Demand,
  left: () => number,
  signal: AbortSignal | undefined,
): Promise<Decision> {
  for (;;) {
    const decision = await limiter.allow(key, { cost, signal });
    const { granted, retryAfter = -1 } = decision;
    if (granted > 0 || retryAfter < 0 || retryAfter > left()) return decision;
    await pause(Math.max(1, retryAfter), signal);
  }
}
