/** What all kinds of limiters have in common: their keys, and how they send commands. */

import { type Client, transportOf } from "../clients/client.js";
import type { Decision, Source } from "../core/decision.js";
import { callerDeadline, milliseconds } from "../core/duration.js";
import { classify, isReply, NotAskedError, RefusedError, UnavailableError } from "../core/errors.js";
import { keyWithPrefix } from "../core/keys.js";
import { clock } from "../core/local-windows.js";
import type { CommonOptions, Settings, WaitOptions } from "../core/options.js";
import {
  type AnyCommand,
  type Command,
  instantOf,
  keyOf,
  serverCommand,
  takesHold,
  type Undo,
  undoOf,
} from "../protocol/commands.js";
import { ClientState } from "../transport/client-state.js";
import type { RequestOptions } from "../transport/server.js";
import type { ServerState } from "../transport/server-health.js";

/** The options of all kinds of limiters. */
export interface BaseOptions extends CommonOptions {
  /**
   * A client of the packages redis or ioredis, or a function that sends a command with any other. Without one, this
   * process decides.
   */
  readonly client?: Client | undefined;
}

/** The number of decisions by their source. */
export interface Counts extends Record<Source, number> {
  /** Records that were kept and could not be sent. */
  lost: number;
}

/** Makes the spans of a limiter's decisions. */
export interface Tracing {
  /** The name of the limiter in spans. */
  readonly name: string;
  span<Outcome extends { readonly granted: number | boolean }>(
    method: string,
    limiters: readonly BaseLimiter[],
    decide: () => Promise<Outcome>,
  ): Promise<Outcome>;
}

export abstract class BaseLimiter {
  /** The number of decisions by their source. */
  readonly counts: Counts = { server: 0, cache: 0, failure: 0, local: 0, lost: 0 };

  /** The number of denials among them. */
  readonly denied: Record<Source, number> = { server: 0, cache: 0, failure: 0, local: 0 };

  /** @internal Null where nothing is traced. */ tracing: Tracing | null = null;
  /** @internal Null where this process decides alone. */ readonly clientState: ClientState | null;

  constructor(
    readonly settings: Settings,
    client: Client | undefined,
  ) {
    const isLocal = client === undefined || settings.mode === "local";
    this.clientState = isLocal ? null : ClientState.of(client, () => transportOf(client));
  }

  /** @internal Whether this process counts what it decides in place of a server. */
  get countsHere(): boolean {
    return this.clientState === null || this.settings.onFailure === "local";
  }

  /** The state of each server asked so far: one, or the primaries of a cluster. All limiters of a client share them. */
  servers(): ServerState[] {
    return this.clientState?.states ?? [];
  }

  /** Forget everything about a key. */
  async reset(key: string): Promise<void> {
    const name = this.name(key);
    if (this.clientState) await this.change(serverCommand(name, "UNLINK", name));
  }

  /** When no limiter uses the client any more, all connections but the client's own are closed. */
  async close(): Promise<void> {
    await this.clientState?.leave(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal Unix time in ms by the monotonic clock. A test may replace it. */
  now(): number {
    return clock();
  }

  /** @internal Unix time in ms as the system shows it. A test may replace it. */
  date(): number {
    return Date.now();
  }

  /** @internal The same decision, which is counted now. */
  counted<Made extends Decision>(decision: Made): Made {
    this.counts[decision.source]++;
    if (decision.granted === 0) this.denied[decision.source]++;
    return decision;
  }

  /** @internal The key at the server. */
  name(key: string): string {
    return keyWithPrefix(this.settings.prefix, key);
  }

  /** @internal The reply to a command. What it grants to a caller that has left is given back. */
  ask(command: Command, options: WaitOptions = {}): Promise<unknown> {
    if (takesHold(command)) return this.askForHold(command, options);
    const { signal } = options;
    const undo = signal && undoOf(command);
    if (!undo) return this.send(command, options);
    signal.throwIfAborted();
    const { clientState, settings } = this as { clientState: ClientState; settings: Settings };
    const key = keyOf(command);
    const server = clientState.server(key);
    const { connection } = server;
    // An instant of the server's clock before the grant: a refund since then takes nobody else's units.
    const asked = clientState.isOrdered && server.ask(serverCommand(key, "TIME"), { timeout: settings.timeout });
    const since = asked ? asked.then(instantOf).catch(() => null) : null;
    const late = async (reply: Promise<unknown>) => {
      if (!signal.aborted) return;
      const undos = undo.after(await reply, await since);
      await Promise.all(undos.map((refund) => this.change(refund, connection ?? null)));
    };
    return this.send(command, options, (reply) => void late(reply).catch(() => {}));
  }

  /** The reply to a command that takes a hold: one that nobody gets is released, even when no reply comes. */
  private async askForHold(command: Command, options: WaitOptions): Promise<unknown> {
    const undo = undoOf(command) as Undo;
    const undoAfter = (reply: unknown) => {
      for (const one of undo.after(reply, null)) void this.askUntilAnswered(one, undo.repeatFor);
    };
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      reply.then(undoAfter, (error) => undoAfter(classify(error) instanceof RefusedError ? error : null));
    };
    try {
      return await this.send(command, options, late);
    } catch (error) {
      const isKnown = !(error instanceof UnavailableError) || error instanceof NotAskedError || isReply(error);
      if (!isKnown && !isComing) undoAfter(null);
      throw error;
    }
  }

  /** @internal Send a command that may be repeated until it is answered, for at most `repeatFor` ms. */
  askUntilAnswered(command: Command, repeatFor: number): Promise<void> {
    return (this.clientState as ClientState).askUntilAnswered(command, repeatFor, this.settings);
  }

  private send(command: Command, { deadline, signal }: WaitOptions, late?: RequestOptions["late"]): Promise<unknown> {
    signal?.throwIfAborted();
    const { clientState, settings } = this as { clientState: ClientState; settings: Settings };
    return clientState.ask(command, {
      timeout: settings.timeout,
      deadline: deadline === undefined ? undefined : callerDeadline(milliseconds(deadline, "deadline", 0)),
      signal,
      module: settings.module,
      late,
    });
  }

  /** @internal The reply to a command that gives something back, so that cached denials of its key end. */
  async change(command: AnyCommand, over?: unknown): Promise<unknown> {
    const clientState = this.clientState as ClientState;
    const { timeout, module } = this.settings;
    clientState.forget(keyOf(command));
    try {
      return await clientState.ask(command, { timeout, module, over });
    } finally {
      clientState.forget(keyOf(command));
    }
  }
}
