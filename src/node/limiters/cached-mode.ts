/**
 * The mode "cached": what is known to be denied is not asked for. Where the server tells of changes, it is asked to tell
 * of a denied key's, and what it says of the key then is what is remembered.
 */

import type { ModuleUse } from "../core/options.js";
import type { Demand, Reply } from "../core/window.js";
import { peek, replyOf } from "../protocol/commands.js";
import type { Server } from "../transport/client-state.js";
import type { Tracked } from "../transport/invalidation.js";
import type { Asked, Denials } from "./denial-cache.js";

/** What was known when a request was sent. */
export interface Question extends Asked {
  /** Whether changes were heard of. */
  readonly isTracked: boolean;
}

/** What ends within so many ms, or so many round trips, is not worth two commands. */
const SHORT_MS = 20;
const SHORT_TRIPS = 4;

export class Cached {
  private readonly looking = new Set<string>();

  constructor(
    private readonly server: Server,
    private readonly denials: Denials,
    private readonly module: ModuleUse,
    private readonly maxUntrackedAge: number,
  ) {}

  /** What is known without the server; undefined where it has to be asked. */
  find(name: string, demand: Demand, block: number) {
    return this.denials.find(name, demand, block > 0);
  }

  /** Read it before you ask, and give it to `denied`. */
  asked(name: string): Question {
    return { ...this.denials.asked(name), isTracked: this.server.primary(name).tracked?.isOpen === true };
  }

  /** The server denied, to a request that would have begun a block of so many ms: remember that while it holds. */
  denied(name: string, demand: Demand, reply: Reply, asked: Question, block: number): void {
    const { tracked, roundTrip } = this.server.primary(name);
    const { words } = peek({ name, demand });
    const look = `${block > 0} ${words.join(" ")}`;
    if (this.looking.has(look)) return;
    // But nothing is remembered from before changes were heard of.
    const isShort = reply[3] <= Math.max(SHORT_MS, SHORT_TRIPS * roundTrip) && asked.isTracked;
    if (tracked && !tracked.isRefused && !isShort) void this.look(look, tracked, words, name, demand, block);
    else this.denials.remember(name, demand, asked, reply, block, this.maxUntrackedAge);
  }

  private async look(
    look: string,
    tracked: Tracked,
    words: string[],
    name: string,
    demand: Demand,
    block: number,
  ): Promise<void> {
    this.looking.add(look);
    try {
      await tracked.open();
      const asked = this.denials.asked(name);
      // A server that has not noticed that a key expired tells nobody.
      const [reply, expiry] = await tracked.register(words, name, this.module);
      const ms = Number(expiry);
      if (ms !== -2) {
        this.denials.remember(name, demand, asked, replyOf(reply), block, ms < 0 ? Number.POSITIVE_INFINITY : ms);
      }
    } catch {
      // Nothing is remembered, and the next request asks the server.
    } finally {
      this.looking.delete(look);
    }
  }
}
