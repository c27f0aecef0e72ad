/** ACQUIRE: one request of this process at a time waits for the units of a key. */

import type { Decision } from "../core/decision.js";
import { classify, ModuleMissingError, RefusedError } from "../core/errors.js";
import type { Settings } from "../core/options.js";
import type { Demand, Reply } from "../core/window.js";
import { type Command, instantOf, replyOf, serverCommand, type Undo, undoOf, wordsOf } from "../protocol/commands.js";
import { type BlockingConnections, type EndWait, POLL } from "../transport/blocking-connections.js";
import type { ClientState } from "../transport/client-state.js";
import type { Connection } from "../transport/transport.js";
import { pause, within } from "../util/timeout.js";

/** A request that waits, and what its limiter does for it. */
export interface WaitingRequest {
  /** The key at the server. */
  readonly name: string;
  readonly demand: Demand;
  readonly clientState: ClientState | null;
  readonly settings: Settings;
  readonly signal: AbortSignal | undefined;
  /** ms until the wait ends. */
  left(): number;
  /** The reply to a command. */
  ask(command: Command): Promise<unknown>;
  /** Decide the same request at once. */
  allow(): Promise<Decision>;
  /** The decision for a reply of the server. */
  decided(reply: Reply): Decision;
  /** Whether it would be granted now without the server. */
  grantsWithout(): boolean;
  /** The decision after the server failed; it throws other errors. */
  failed(error: Error): Decision;
}

/** The decision once units are granted, or when the wait would be too short. */
export async function waitInTurn(request: WaitingRequest): Promise<Decision> {
  const { clientState, left, signal } = request;
  if (!clientState?.blocking) return poll(request);
  const { blocking } = clientState;
  for (let hasWaited = false; ; hasWaited = true) {
    let ms = POLL;
    try {
      // Ask without waiting first: a grant, or a hopeless request, needs no connection of its own.
      const now = replyOf(await request.ask(acquire(request, 0)));
      const [granted, , , retryAfter] = now;
      const isFinal = granted > 0 || retryAfter < 0 || retryAfter > left() || clientState.isLeft;
      const reply = isFinal ? now : await inQueue(request, clientState, blocking);
      if (reply) return request.decided(replyOf(reply));
      ms = Math.min(POLL, retryAfter);
    } catch (cause) {
      if (signal?.aborted) throw signal.reason;
      const error = classify(cause);
      if (error instanceof ModuleMissingError) return poll(request);
      if (error instanceof RefusedError) throw error;
      // A request that has waited goes on waiting, unless a new one would be granted.
      if (!hasWaited || left() === 0 || clientState.isLeft || request.grantsWithout()) return request.failed(error);
    }
    if (!clientState.isLeft) await clientState.pause(Math.max(1, Math.min(ms, left())), signal);
  }
}

function acquire({ name, demand }: WaitingRequest, timeout: number): Command {
  return { name: "ACQUIRE", key: name, demand, timeout };
}

/** The reply after waiting in the server's queue; null when the request must be sent again. */
function inQueue(request: WaitingRequest, clientState: ClientState, blocking: BlockingConnections): Promise<unknown> {
  const { name, left, signal, settings } = request;
  const { timeout, maxWaiting } = settings;
  return blocking.ask({
    ...{ key: name, left, grace: timeout, maxWaiting, signal },
    command: (ms) => acquire(request, ms),
    starts: (connection) => waitEnder(clientState, request, connection),
  });
}

/**
 * When the caller gives up, the server is asked to end its wait, and the connection stays open: a grant that was
 * already under way still arrives, and is given back on the connection on which it was counted.
 */
function waitEnder(clientState: ClientState, request: WaitingRequest, connection: Connection): EndWait {
  const { name } = request;
  const { timeout } = request.settings;
  const ask = (...words: string[]) => handled(connection.send(words));
  const [id, time] = [ask("CLIENT", "ID"), ask("TIME")];
  const giveBack = async (reply: Promise<unknown>) => {
    const { after } = undoOf(acquire(request, 0)) as Undo;
    for (const refund of after(await reply, instantOf(await time))) {
      clientState.forget(name);
      await connection.send(wordsOf(refund));
      clientState.forget(name);
    }
  };
  return async (reply) => {
    const over = handled(giveBack(reply));
    const number = String(await within(id, timeout));
    await clientState.ask(serverCommand(name, "CLIENT", "UNBLOCK", number), { timeout });
    await within(over, timeout);
  };
}

/** The same promise; its rejection does not end the process. */
function handled<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {});
  return promise;
}

/** Ask again when it may fit, until it does, or the limiter is closed. */
async function poll({ allow, left, signal, clientState }: WaitingRequest): Promise<Decision> {
  const isLast = () => left() === 0 || clientState?.isLeft === true;
  for (let hasWaited = false; ; hasWaited = true) {
    let ms = POLL;
    try {
      const decision = await allow();
      const { granted, retryAfter, source } = decision;
      const mayBeBack = source === "failure" && hasWaited && retryAfter !== -1 && !isLast();
      if (granted > 0 || (!mayBeBack && (retryAfter ?? -1) < 0)) return decision;
      if (!mayBeBack) {
        ms = retryAfter as number;
        if (ms > left() || clientState?.isLeft) return decision;
      }
    } catch (error) {
      if (signal?.aborted || !hasWaited || isLast() || classify(error) instanceof RefusedError) throw error;
    }
    await (clientState ? clientState.pause(Math.max(1, ms), signal) : pause(Math.max(1, ms), signal));
  }
}
