/** Waiting for one's turn, with nobody of this process before one. */

import type { Decision } from "../core/decision.js";
import { ModuleMissingError, RefusedError, understood } from "../core/errors.js";
import type { Settings } from "../core/options.js";
import type { Demand, Reply } from "../core/window.js";
import { acquire, type Command, instantOf, replyOf } from "../protocol/commands.js";
import { type Lanes, type Leave, POLL } from "../transport/blocking-pool.js";
import type { Server } from "../transport/client-state.js";
import type { Connection } from "../transport/transport.js";
import { pause, within } from "../util/timeout.js";

/** One request that waits for its turn, and what its limiter does for it. */
export interface Wait {
  readonly name: string;
  readonly demand: Demand;
  readonly server: Server | null;
  readonly settings: Settings;
  readonly signal: AbortSignal | undefined;
  /** ms until it ends. */
  left(): number;
  /** The reply to a command. */
  ask(command: Command): Promise<unknown>;
  /** The same request, decided at once. */
  allow(): Promise<Decision>;
  /** The decision that the server's reply is. */
  decided(reply: Reply): Decision;
  /** Whether it would be granted now, were the server away. */
  grantsWithout(): boolean;
  /** The decision when the server failed; other errors are the caller's. */
  failed(error: Error): Decision;
}

/** The decision once it is granted, or when the wait would not be long enough. */
export async function waitInTurn(wait: Wait): Promise<Decision> {
  const { server, left, signal } = wait;
  if (!server?.lanes) return sleep(wait);
  const { lanes } = server;
  for (let hasWaited = false; ; hasWaited = true) {
    let ms = POLL;
    try {
      // What is granted at once needs no connection of its own, nor does what there is no hope for.
      const now = replyOf(await wait.ask(acquire(wait, 0)));
      const [granted, , , retryAfter] = now;
      const reply =
        granted > 0 || retryAfter < 0 || retryAfter > left() || server.isLeft
          ? now
          : await inQueue(wait, server, lanes);
      if (reply) return wait.decided(replyOf(reply));
      ms = Math.min(POLL, retryAfter);
    } catch (cause) {
      if (signal?.aborted) throw signal.reason;
      const error = understood(cause);
      if (error instanceof ModuleMissingError) return sleep(wait);
      if (error instanceof RefusedError) throw error;
      // Whoever waits already goes on waiting, unless a request that came now would be granted.
      if (!hasWaited || left() === 0 || server.isLeft || wait.grantsWithout()) {
        return wait.failed(error);
      }
    }
    if (!server.isLeft) await pause(Math.max(1, Math.min(ms, left())), signal);
  }
}

/** What the server's queue comes to; null when it is to be asked anew. */
function inQueue(wait: Wait, server: Server, lanes: Lanes): Promise<unknown> {
  const { name, left, signal, settings } = wait;
  const { timeout, maxWaiting } = settings;
  return lanes.ask(name, left, (ms) => acquire(wait, ms).words, {
    grace: timeout,
    most: maxWaiting,
    signal,
    leave: (connection) => leaver(server, name, connection, timeout),
  });
}

/**
 * What is done when the caller has given up: the server is told to end its wait, and closes nothing, so that a grant that
 * is on its way just then still arrives, and can be given back over the connection on which it was counted.
 */
function leaver(server: Server, name: string, connection: Connection, timeout: number): Leave {
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
async function sleep({ allow, left, signal }: Wait): Promise<Decision> {
  for (let hasWaited = false; ; hasWaited = true) {
    let ms = POLL;
    try {
      const decision = await allow();
      const { granted, retryAfter, source } = decision;
      const mayBeBack = source === "failure" && hasWaited && retryAfter !== -1 && left() > 0;
      if (granted > 0 || (!mayBeBack && (retryAfter ?? -1) < 0)) return decision;
      if (!mayBeBack) {
        ms = retryAfter as number;
        if (ms > left()) return decision;
      }
    } catch (error) {
      if (signal?.aborted || !hasWaited || left() === 0 || understood(error) instanceof RefusedError) throw error;
    }
    await pause(Math.max(1, ms), signal);
  }
}
