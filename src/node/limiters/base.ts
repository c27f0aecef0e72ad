/** What all kinds of limiters have in common: whom they ask, and how. */

import { type Client, transportOf } from "../clients/client.js";
import type { Source } from "../core/decision.js";
import { milliseconds, patience } from "../core/duration.js";
import { NotAskedError, UnavailableError } from "../core/errors.js";
import { nameOf } from "../core/keys.js";
import type { CommonOptions, Settings, WaitOptions } from "../core/options.js";
import { type Command, type Counted, type Ending, instantOf } from "../protocol/commands.js";
import { Server } from "../transport/client-state.js";
import type { AskOptions } from "../transport/server.js";
import type { ServerState } from "../transport/server-health.js";

/** What all kinds of limiters can be told. */
export interface AskerOptions extends CommonOptions {
  /**
   * A client of the packages redis or ioredis, or a function that sends a command with any other. Without one, this
   * process decides.
   */
  readonly client?: Client | undefined;
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
    this.server =
      client !== undefined && settings.mode !== "local" ? Server.of(client, () => transportOf(client)) : null;
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

  /** @internal The reply to a command. What it grants to a caller that has gone is taken back. */
  ask({ words, undo }: Command, name: string, options: WaitOptions): Promise<unknown> {
    if (typeof undo === "object") return this.askOnce(words, name, options, undo);
    const { signal } = options;
    if (!undo || !signal) return this.send(words, name, options);
    signal.throwIfAborted();
    const { server, settings } = this as { server: Server; settings: Settings };
    const primary = server.primary(name);
    const { connection } = primary;
    // An instant before the grant by the server's own clock: a refund that names it takes nobody else's units.
    const time = server.isOrdered ? primary.ask(["TIME"], name, { timeout: settings.timeout }) : Promise.reject();
    time.catch(() => {});
    const sent = performance.now();
    const late = async (reply: Promise<unknown>) => {
      if (!signal.aborted) return;
      const refunds = await refundsOf(undo(await reply), time, sent);
      await Promise.all(refunds.map(({ key, refund }) => this.change(refund, key, connection ?? null)));
    };
    return this.send(words, name, options, (reply) => void late(reply).catch(() => {}));
  }

  /** The reply to a command that begins something with an id of its own, which ends where nobody hears of it. */
  private async askOnce(words: string[], name: string, options: WaitOptions, undo: Ending): Promise<unknown> {
    let isComing = false;
    const over = () => void this.insist(undo, name);
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      reply.then(over, over);
    };
    try {
      return await this.send(words, name, options, late);
    } catch (error) {
      if (error instanceof UnavailableError && !(error instanceof NotAskedError) && !isComing) over();
      throw error;
    }
  }

  /** @internal Have done what is done once, however often it is asked for, also while the server is away. */
  insist(ending: Ending, name: string): Promise<void> {
    return (this.server as Server).insist(ending, name, this.settings.timeout);
  }

  /** The reply to a command; `late` is told of what still comes when the caller has been sent away. */
  private send(words: string[], name: string, { deadline, signal }: WaitOptions, late?: AskOptions["late"]) {
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

  /** @internal A change that gives something back: with it, what was known is known no longer. `over`: see AskOptions. */
  async change(words: string[], name: string, over?: unknown): Promise<unknown> {
    const server = this.server as Server;
    const { timeout, module } = this.settings;
    server.forget(name);
    try {
      return await server.ask(words, name, { timeout, module, over });
    } finally {
      server.forget(name);
    }
  }
}

/** The refunds of what was counted, where it can be told from what others have used. */
async function refundsOf(counted: Counted[], time: Promise<unknown>, sent: number) {
  const refunds: { readonly key: string; readonly refund: string[] }[] = [];
  for (const { name: key, units, period } of counted) {
    const words = ["SWLIMIT.REFUND", key, String(units)];
    if (units === 0) continue;
    if (period === undefined) refunds.push({ key, refund: [...words, "SINCE", String(instantOf(await time))] });
    else if (performance.now() < sent + period) refunds.push({ key, refund: words });
  }
  return refunds;
}
