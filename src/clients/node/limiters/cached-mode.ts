/**
 * The mode "cached": known denials are repeated without asking the server. Where the server can send invalidations, a key
 * that is often denied is registered for one after a denial, and the reply to that is cached.
 */

import type { ModuleUse } from "../core/options.js";
import type { Demand, Reply } from "../core/window.js";
import { replyOf } from "../protocol/commands.js";
import type { Core } from "../transport/core.js";
import type { InvalidationConnection } from "../transport/invalidation.js";
import type { DenialCache, Snapshot } from "./denial-cache.js";

/** What was known when a request was sent. */
export interface TrackedSnapshot extends Snapshot {
  /** Whether invalidations could be received. */
  readonly isTracked: boolean;
}

/** Denials that end within so many ms, or so many round trips, are not worth two commands. */
export const SHORT_MS = 20;
export const SHORT_TRIPS = 4;

export class CachedMode {
  private readonly registering = new Set<string>();

  constructor(
    private readonly core: Core,
    private readonly denials: DenialCache,
    private readonly module: ModuleUse,
    private readonly maxUntrackedAge: number,
  ) {}

  /** The reply if it is known; undefined where the server must be asked. */
  find(name: string, demand: Demand, block: number) {
    return this.denials.find(name, demand, block > 0);
  }

  /** Take it before a request, and pass it to `denied`. */
  snapshot(name: string): TrackedSnapshot {
    const isTracked = this.core.server(name).invalidations?.isOpen === true;
    return { ...this.denials.snapshot(name), isTracked };
  }

  /** Cache the server's denial of a request that would have begun a block of so many ms. */
  denied(name: string, demand: Demand, reply: Reply, before: TrackedSnapshot, block: number): void {
    const { invalidations, roundTrip } = this.core.server(name);
    const { limit, window, resolution, cost, partial, strict, warmUp } = demand;
    const rising = [warmUp?.duration, warmUp?.cold];
    const id = [name, limit, window, resolution, cost, partial, strict, ...rising, block > 0].join(" ");
    const retryAfter = reply[3];
    if (this.registering.has(id) || retryAfter < 0) return;
    // A short denial can be cached only if invalidations could be received before it.
    const isShort = retryAfter <= Math.max(SHORT_MS, SHORT_TRIPS * roundTrip) && before.isTracked;
    if (!invalidations || invalidations.isRefused || isShort)
      this.denials.remember(name, demand, before, reply, block, this.maxUntrackedAge);
    else if (this.denials.paysToLook(name, performance.now(), retryAfter)) {
      this.registering.add(id);
      void this.register(invalidations, name, demand, block).finally(() => this.registering.delete(id));
    }
  }

  private async register(
    invalidations: InvalidationConnection,
    name: string,
    demand: Demand,
    block: number,
  ): Promise<void> {
    try {
      await invalidations.open();
      const before = this.denials.snapshot(name);
      const [reply, expiry] = await invalidations.register({ name: "PEEK", key: name, demand }, this.module);
      const ms = Number(expiry);
      if (ms === -2) return; // expired, unnoticed: the server sends no invalidation
      const longest = ms < 0 ? Number.POSITIVE_INFINITY : ms;
      this.denials.remember(name, demand, before, replyOf(reply), block, longest);
    } catch {
      // Nothing is cached, and the next request asks the server.
    }
  }
}
