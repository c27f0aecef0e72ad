/** ACQUIRE: one request of this process at a time waits for the units of a key. */

import type { Decision } from "../core/decision.js";
import { ModuleMissingError, RefusedError, UnavailableError } from "../core/errors.js";
import type { Settings } from "../core/options.js";
import type { Demand, Reply } from "../core/window.js";
import { type Command, instantOf, replyOf, serverCommand, type Undo, undoOf, wordsOf } from "../protocol/commands.js";
import { type BlockingConnections, type EndWait, POLL } from "../transport/blocking-connections.js";
import type { Core } from "../transport/core.js";
import type { Connection } from "../transport/transport.js";
import type { FairQueue } from "../util/fair-queue.js";
import { LONGEST_TIMER, pause, within } from "../util/timeout.js";

/** A request that waits, and what its limiter does for it. */
export interface WaitingRequest {
  /** The key at the server. */
  readonly name: string;
  readonly demand: Demand;
  readonly core: Core | null;
  readonly settings: Settings;
  readonly signal: AbortSignal | undefined;
  /** ms until the wait ends. */
  left(): number;
  /** The reply to a command. */
  ask(command: Command): Promise<unknown>;
  /** Decide the same request at once, and count the decision. */
  allow(): Promise<Decision>;
  /** The decision for a reply of the server. */
  decided(reply: Reply): Decision;
  counted(decision: Decision): Decision;
  /** Whether it would be granted now without the server. */
  grantsWithout(): boolean;
  /** The decision after the server failed; it throws other errors. */
  failed(error: Error): Decision;
}

/**
 * The decision once units are granted, or when the wait would be too short. A request asks first, and joins the line of
 * its key behind a denial, or where others wait already.
 */
export async function acquire(queue: FairQueue, request: WaitingRequest): Promise<Decision> {
  const { name, left, signal } = request;
  const wait = new Wait(request);
  const first = queue.isWaitedFor(name) ? null : await wait.once();
  if (first) return first;
  return queue.take(
    name,
    left(),
    signal,
    (hasWaited) => wait.inTurn(hasWaited),
    async () => (await wait.once()) ?? (wait.denied as Decision), // its turn has not come, and its time is over
  );
}

class Wait {
  /** The server's last denial. */
  denied: Decision | null = null;
  /** Whether the server keeps the queue. */
  private isQueued: boolean;

  constructor(private readonly request: WaitingRequest) {
    this.isQueued = request.core?.blocking != null;
  }

  /** Ask without a wait: null where it is denied, and may be granted in time. */
  async once(): Promise<Decision | null> {
    const { request } = this;
    const { core, left, signal } = request;
    try {
      const found = await this.ask();
      const { granted, retryAfter, source } = found;
      if (source === "failure" && granted === 0 && this.denied) return this.isLast ? this.denied : null;
      if (granted > 0 || source === "failure" || retryAfter === undefined) return this.final(found);
      this.denied = found;
      return retryAfter > left() || core?.isLeft ? this.final(found) : null;
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!(error instanceof UnavailableError)) throw error;
      if (this.denied && this.isLast) return this.final(this.denied);
      if (this.denied && !request.grantsWithout()) return null; // a wait survives restarts and failovers
      return request.failed(error);
    }
  }

  /** Wait until it is granted, in the server's queue where there is one. */
  async inTurn(hasWaited: boolean): Promise<Decision> {
    const { core, left, signal } = this.request;
    for (let isDenied = this.denied !== null && !hasWaited; ; isDenied = false) {
      const found = isDenied ? null : await this.once();
      if (found) return found;
      const reply = core?.blocking && this.isQueued && !core.isLeft ? await this.inQueue(core, core.blocking) : null;
      if (reply) return reply;
      const ms = Math.min(this.denied?.retryAfter ?? POLL, this.isQueued ? POLL : LONGEST_TIMER, left());
      if (core) await core.pause(Math.max(1, ms), signal);
      else await pause(Math.max(1, ms), signal);
    }
  }

  private get isLast(): boolean {
    return this.request.left() === 0 || this.request.core?.isLeft === true;
  }

  /** What is decided at once is counted already. */
  private final(decision: Decision): Decision {
    return this.isQueued ? this.request.counted(decision) : decision;
  }

  private async ask(): Promise<Decision> {
    const { request } = this;
    if (!this.isQueued) return request.allow();
    try {
      return request.decided(replyOf(await request.ask(command(request, 0))));
    } catch (error) {
      if (!(error instanceof ModuleMissingError)) throw error;
      this.isQueued = false;
      return request.allow();
    }
  }

  /** The decision after waiting in the server's queue; null when the request must be sent again. */
  private async inQueue(core: Core, blocking: BlockingConnections): Promise<Decision | null> {
    const { request } = this;
    const { name, left, signal, settings } = request;
    const { timeout, maxWaiting } = settings;
    try {
      const reply = await blocking.ask({
        ...{ key: name, left, grace: timeout, maxWaiting, signal },
        command: (ms) => command(request, ms),
        starts: (connection) => waitEnder(core, request, connection),
      });
      return reply === null ? null : request.counted(request.decided(replyOf(reply)));
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error instanceof RefusedError && !(error instanceof ModuleMissingError)) throw error;
      return null;
    }
  }
}

function command({ name, demand }: WaitingRequest, timeout: number): Command {
  return { name: "ACQUIRE", key: name, demand, timeout };
}

/**
 * When the caller gives up, the server is asked to end its wait, and the connection stays open: a grant that was
 * already under way still arrives, and is given back on the connection on which it was counted.
 */
function waitEnder(core: Core, request: WaitingRequest, connection: Connection): EndWait {
  const { name } = request;
  const { timeout } = request.settings;
  const ask = (...words: string[]) => handled(connection.send(words));
  const [id, time] = [ask("CLIENT", "ID"), ask("TIME")];
  const giveBack = async (reply: Promise<unknown>) => {
    const { after } = undoOf(command(request, 0)) as Undo;
    for (const refund of after(await reply, instantOf(await time))) {
      core.forget(name);
      await connection.send(wordsOf(refund));
      core.forget(name);
    }
  };
  return async (reply) => {
    const over = handled(giveBack(reply));
    const number = String(await within(id, timeout));
    await core.ask(serverCommand(name, "CLIENT", "UNBLOCK", number), { timeout });
    await within(over, timeout);
  };
}

/** The same promise; its rejection does not end the process. */
function handled<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {});
  return promise;
}
