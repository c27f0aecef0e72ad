/** What all kinds of limiters have in common: whom they ask, and how. */

import { instantOf, replyOf } from "./commands.js";
import type { Source } from "./decision.js";
import { type Duration, milliseconds, patience } from "./duration.js";
import { NotAskedError, UnavailableError } from "./errors.js";
import type { ServerState } from "./health.js";
import { nameOf } from "./keys.js";
import type { Settings } from "./options.js";
import type { AskOptions } from "./primary.js";
import { Server } from "./server.js";
import type { Client } from "./transport.js";

/** How long a request may take. */
export interface WaitOptions {
  /** The caller waits so much longer, from now on: decided by `onFailure` a little before that. */
  readonly deadline?: Duration;
  /** Ends the wait without a decision; what the server still grants is given back. */
  readonly signal?: AbortSignal | undefined;
}

/** How many decisions were made by whom. */
export interface Counts extends Record<Source, number> {
  /** Records that were kept and could not be sent. */
  lost: number;
}

export abstract class Asker {
  /** How many decisions were made by whom. */
  readonly counts: Counts = { server: 0, cache: 0, failure: 0, local: 0, lost: 0 };

  /** @internal Null where nobody is asked. */ readonly server: Server | null;

  constructor(
    readonly settings: Settings,
    client: Client | undefined,
  ) {
    this.server = client !== undefined && settings.mode !== "local" ? Server.of(client) : null;
  }

  /** How the servers are that were asked so far: one, or the primaries of a cluster. All limiters of a client share them. */
  servers(): ServerState[] {
    return this.server?.states ?? [];
  }

  /** Forget all that a key holds. */
  async reset(key: string): Promise<void> {
    const name = this.name(key);
    if (this.server) await this.change(["UNLINK", name], name);
  }

  /** @internal The name of a key at the server. */
  name(key: string): string {
    return nameOf(this.settings.prefix, key);
  }

  /** @internal The reply to a question. What is granted to a caller that has given up is given back. */
  ask(words: string[], name: string, options: WaitOptions): Promise<unknown> {
    const { signal } = options;
    if (!signal) return this.askWith(words, name, options);
    signal.throwIfAborted();
    const { server, settings } = this as { server: Server; settings: Settings };
    // An instant before the grant by the server's own clock: a refund that names it takes nobody else's units.
    const time = server.isOrdered ? server.ask(["TIME"], name, { timeout: settings.timeout }) : Promise.reject();
    time.catch(() => {});
    const late = (reply: Promise<unknown>) => void this.giveBack(name, reply, time).catch(() => {});
    return this.askWith(words, name, options, (reply) => signal.aborted && late(reply));
  }

  /** @internal The reply to a question; `late` is told of what still comes when the caller has been sent away. */
  askWith(words: string[], name: string, { deadline, signal }: WaitOptions, late?: AskOptions["late"]) {
    signal?.throwIfAborted();
    const { server, settings } = this as { server: Server; settings: Settings };
    return server.ask(words, name, {
      timeout: settings.timeout,
      patience: deadline === undefined ? undefined : patience(milliseconds(deadline, "deadline", 0)),
      signal,
      module: settings.module,
      late,
    });
  }

  /** @internal The reply to a question; where nobody will hear it, what it may have granted is undone. */
  async askUndoing(words: string[], name: string, options: WaitOptions, undo: () => void): Promise<unknown> {
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      reply.then(undo, undo); // nobody wants it any more
    };
    try {
      return await this.askWith(words, name, options, late);
    } catch (error) {
      if (error instanceof UnavailableError && !(error instanceof NotAskedError) && !isComing) undo();
      throw error;
    }
  }

  /** @internal */
  async giveBack(name: string, reply: Promise<unknown>, time: Promise<unknown>): Promise<void> {
    const [granted] = replyOf(await reply);
    const since = instantOf(await time);
    if (granted === 0) return;
    await this.change(["SWLIMIT.REFUND", name, String(granted), "SINCE", String(since)], name);
  }

  /** @internal A change that gives something back: with it, what was known is known no longer. */
  async change(words: string[], name: string): Promise<unknown> {
    const server = this.server as Server;
    server.forget(name);
    try {
      return await server.ask(words, name, { timeout: this.settings.timeout, module: this.settings.module });
    } finally {
      server.forget(name);
    }
  }
}
