/** Waiting for one's turn, with nobody of this process before one. */

import { acquire, instantOf, replyOf } from "./commands.js";
import type { Decision } from "./decision.js";
import { ModuleMissingError, RefusedError, understood } from "./errors.js";
import { type Lanes, type Leave, POLL } from "./lanes.js";
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
  const { lanes } = server;
  const name = limiter.name(key);
  const rate = { name, demand };
  for (let hasWaited = false; ; hasWaited = true) {
    let wait = POLL;
    try {
      // What is granted at once needs no connection of its own, nor does what there is no hope for.
      const now = replyOf(await limiter.ask(acquire(rate, 0), name, { signal }));
      const [granted, , , retryAfter] = now;
      const reply =
        granted > 0 || retryAfter < 0 || retryAfter > left() || server.isLeft
          ? now
          : await inQueue(limiter, server, lanes, rate, left, signal);
      if (reply) {
        limiter.counts.server++;
        return limiter.decision(replyOf(reply), "server");
      }
      wait = Math.min(POLL, retryAfter);
    } catch (cause) {
      if (signal?.aborted) throw signal.reason;
      const error = understood(cause);
      if (error instanceof ModuleMissingError) return sleep(limiter, key, demand, left, signal);
      if (error instanceof RefusedError) throw error;
      // Whoever waits already goes on waiting, unless a request that came now would be granted.
      if (!hasWaited || left() === 0 || server.isLeft || limiter.grantsWithout(name, demand)) {
        return limiter.failed(error, demand, (asked, at) => limiter.window(name).allow(asked, at));
      }
    }
    if (!server.isLeft) await pause(Math.max(1, Math.min(wait, left())), signal);
  }
}

/** What the server's queue comes to; null when it is to be asked anew. */
function inQueue(
  limiter: Limiter,
  server: Server,
  lanes: Lanes,
  rate: { readonly name: string; readonly demand: Demand },
  left: () => number,
  signal: AbortSignal | undefined,
): Promise<unknown> {
  const { timeout, maxWaiting } = limiter.settings;
  return lanes.ask(rate.name, left, (ms) => acquire(rate, ms).words, {
    grace: timeout,
    most: maxWaiting,
    signal,
    leave: (connection) => leaver(server, rate, connection, timeout),
  });
}

/**
 * What is done when the caller has given up: the server is told to end its wait, and closes nothing, so that a grant that
 * is on its way just then still arrives, and can be given back over the connection on which it was counted.
 */
function leaver(
  server: Server,
  rate: { readonly name: string; readonly demand: Demand },
  connection: Connection,
  timeout: number,
): Leave {
  const { name } = rate;
  const [id, time] = [["CLIENT", "ID"], ["TIME"]].map((words) => known(connection.send(words)));
  const giveBack = async (asking: Promise<unknown>) => {
    const [units] = replyOf(await asking);
    const since = instantOf(await time);
    if (units === 0) return;
    server.forget(name);
    await connection.send(["SWLIMIT.REFUND", name, String(units), "SINCE", String(since)]);
    server.forget(name);
  };
  return async (asking) => {
    const over = known(giveBack(asking));
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
  for (let hasWaited = false; ; hasWaited = true) {
    let wait = POLL;
    try {
      const decision = await limiter.allow(key, { cost, signal });
      const { granted, retryAfter, source } = decision;
      const mayBeBack = source === "failure" && hasWaited && retryAfter !== -1 && left() > 0;
      if (granted > 0 || (!mayBeBack && (retryAfter ?? -1) < 0)) return decision;
      if (!mayBeBack) {
        wait = retryAfter as number;
        if (wait > left()) return decision;
      }
    } catch (error) {
      if (signal?.aborted || !hasWaited || left() === 0 || understood(error) instanceof RefusedError) throw error;
    }
    await pause(Math.max(1, wait), signal);
  }
}
