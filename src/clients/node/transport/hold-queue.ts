/** Requests of this process that wait for holds: those of a key take turns, and the first one asks again and again. */

import { FairQueue } from "../util/fair-queue.js";
import { inTime } from "../util/timeout.js";
import type { KeyCache } from "./invalidation.js";

/** Where the server keeps no queue, it is asked again after so many ms, drawn between these, or sooner. */
export const MIN_HOLD_POLL = 20;
export const MAX_HOLD_POLL = 60;

export class HoldQueue extends FairQueue implements KeyCache {
  private readonly waiting = new Map<string, () => void>();
  private isLeftToOthers = true;

  /** While anybody waits, it is among `caches`, and is called when servers announce that keys have changed. */
  constructor(private readonly caches: Set<KeyCache> = new Set()) {
    super();
  }

  get size(): number {
    return this.waiting.size;
  }

  /** Whether the key may have changed within so many ms; for the request whose turn it is. */
  async changed(key: string, ms: number, signal: AbortSignal | undefined): Promise<boolean> {
    const change = new Promise<void>((resolve) => this.waiting.set(key, resolve));
    this.caches.add(this);
    try {
      return await inTime(change, ms, signal);
    } finally {
      this.waiting.delete(key);
      if (this.size === 0) this.caches.delete(this);
    }
  }

  /**
   * This process has released a hold. Of the releases that somebody here waits for, every second one is left to other
   * processes, whose polls would come too late.
   */
  released(key: string): void {
    if (!this.waiting.has(key)) return;
    this.isLeftToOthers = !this.isLeftToOthers;
    if (!this.isLeftToOthers) this.forget(key);
  }

  forget(key: string): void {
    this.waiting.get(key)?.();
  }

  forgetAll(): void {
    for (const wake of this.waiting.values()) wake();
  }
}

/** How long to wait until the server is asked again that denied with this `retryAfter`, in ms. */
export function holdPoll(retryAfter: number): number {
  return Math.min(retryAfter, MIN_HOLD_POLL + Math.random() * (MAX_HOLD_POLL - MIN_HOLD_POLL));
}
