/** What all kinds of limiters have in common: their keys, and how they send commands. */

import { type Client, transportOf } from "../clients/client.js";
import type { Decision, Source } from "../core/decision.js";
import { callerDeadline, milliseconds } from "../core/duration.js";
import { classify, isReply, NotAskedError, RefusedError, UnavailableError } from "../core/errors.js";
import { keyWithPrefix } from "../core/keys.js";
import { clock } from "../core/local-windows.js";
import type { CommonOptions, Settings, WaitOptions } from "../core/options.js";
import { type AnyCommand, type Command, keyOf, serverCommand, type Undo, undoOf } from "../protocol/commands.js";
import { Core } from "../transport/core.js";
import type { LateReply, RequestOptions } from "../transport/server.js";
import type { ServerState } from "../transport/server-health.js";

/** The options of all kinds of limiters. */
export interface BaseOptions extends CommonOptions {
  /**
   * A client of the packages redis, ioredis, iovalkey or @valkey/valkey-glide, or a function that sends a command with
   * any other. Without one, this process decides.
   */
  readonly client?: Client | undefined;
}

/** The number of decisions by their source. */
export interface Statistics extends Record<Source, number> {
  /** Records that were kept and could not be sent. */
  lost: number;
  /** Keys that this process has forgotten although they still counted, because there were more than `maxKeys`. */
  evicted: number;
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

/** Units that a caller was granted by `onFailure`, of each limit of its request, in order. */
export class Kept {
  units: readonly number[] = [];
}

export abstract class BaseLimiter {
  /** The number of decisions by their source. */
  readonly statistics: Statistics = { server: 0, cache: 0, failure: 0, local: 0, lost: 0, evicted: 0 };

  /** The number of denials among them. */
  readonly denied: Record<Source, number> = { server: 0, cache: 0, failure: 0, local: 0 };

  /** @internal Null where nothing is traced. */ tracing: Tracing | null = null;
  /** @internal Null where this process decides alone. */ readonly core: Core | null;

  constructor(
    readonly settings: Settings,
    client: Client | undefined,
  ) {
    const isLocal = client === undefined || settings.mode === "local";
    this.core = isLocal ? null : Core.of(client, () => transportOf(client));
    this.core?.checkTimeout(settings.timeout);
  }

  /** @internal Whether this process counts what it decides in place of a server. */
  get countsHere(): boolean {
    return this.core === null || this.settings.onFailure === "local";
  }

  /** The state of each server asked so far: one, or the primaries of a cluster. All limiters of a client share them. */
  servers(): ServerState[] {
    return this.core?.states ?? [];
  }

  /** Forget everything about a key. */
  async reset(key: string): Promise<void> {
    const name = this.name(key);
    if (this.core) await this.change(serverCommand(name, "UNLINK", name));
  }

  /** When no limiter uses the client any more, all connections but the client's own are closed. */
  async close(): Promise<void> {
    await this.core?.leave(this);
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
    this.statistics[decision.source]++;
    if (decision.granted === 0) this.denied[decision.source]++;
    return decision;
  }

  /** @internal The key at the server. */
  name(key: string): string {
    return keyWithPrefix(this.settings.prefix, key);
  }

  /**
   * @internal The reply to a command. What it grants after its caller has left is made equal to the caller's decision: it
   * goes back, except what `kept` says by then.
   */
  ask(command: Command, options: WaitOptions = {}, kept: Kept = new Kept()): Promise<unknown> {
    const undo = undoOf(command);
    if (!undo) return this.send(command, options);
    if (undo.repeatFor > 0) return this.askForHold(command, undo, options);
    const { isOrdered } = this.core as Core;
    if (!isOrdered) return this.send(command, options); // which server has counted is unknown
    const late = async (coming: Promise<LateReply>) => {
      const { reply, since, connection } = await coming;
      const undos = undo.after(reply, since, kept.units);
      await Promise.all(undos.map((refund) => this.change(refund, connection ?? null)));
    };
    return this.send(command, options, { isDated: true, late: (coming) => void late(coming).catch(() => {}) });
  }

  /** The reply to a command that takes a hold: one that nobody gets is released, even when no reply comes. */
  private async askForHold(command: Command, undo: Undo, options: WaitOptions): Promise<unknown> {
    const undoAfter = (reply: unknown) => {
      for (const one of undo.after(reply, null)) void this.askUntilAnswered(one, undo.repeatFor);
    };
    let isComing = false;
    const late = (coming: Promise<LateReply>) => {
      isComing = true;
      coming.then(
        ({ reply }) => undoAfter(reply),
        (error) => undoAfter(classify(error) instanceof RefusedError ? error : null),
      );
    };
    try {
      return await this.send(command, options, { late });
    } catch (error) {
      const isKnown = !(error instanceof UnavailableError) || error instanceof NotAskedError || isReply(error);
      if (!isKnown && !isComing) undoAfter(null);
      throw error;
    }
  }

  /** @internal Send a command that may be repeated until it is answered, for at most `repeatFor` ms. */
  askUntilAnswered(command: Command, repeatFor: number): Promise<void> {
    return (this.core as Core).askUntilAnswered(command, repeatFor, this.settings);
  }

  private send(
    command: Command,
    { deadline, signal }: WaitOptions,
    lateness: Pick<RequestOptions, "late" | "isDated"> = {},
  ): Promise<unknown> {
    signal?.throwIfAborted();
    const { core, settings } = this as { core: Core; settings: Settings };
    return core.ask(command, {
      timeout: settings.timeout,
      deadline: deadline === undefined ? undefined : callerDeadline(milliseconds(deadline, "deadline", 0)),
      signal,
      module: settings.module,
      ...lateness,
    });
  }

  /** @internal The reply to a command that gives something back, so that cached denials of its key end. */
  async change(command: AnyCommand, over?: unknown): Promise<unknown> {
    const core = this.core as Core;
    const { timeout, module } = this.settings;
    core.forget(keyOf(command));
    try {
      return await core.ask(command, { timeout, module, over });
    } finally {
      core.forget(keyOf(command));
    }
  }
}
