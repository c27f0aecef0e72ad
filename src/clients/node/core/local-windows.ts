/** Windows of this process: for limiters without a server, and while it does not answer. */

import { BoundedMap } from "../util/bounded-map.js";
import type { KnownReply } from "./decision.js";
import type { Settings } from "./options.js";
import { scale } from "./scale.js";
import { Entry } from "./window.js";

export class LocalWindows {
  private readonly entries: BoundedMap<Entry>;

  /**
   * Of more than `maxKeys` keys those are forgotten that were not used for the longest time; blocks last. `evicted` is
   * called for each that counted still.
   */
  constructor(maxKeys: number, now: () => number = clock, evicted: () => void = () => {}) {
    const isBlocked = (entry: Entry) => entry.isBlocked(now());
    this.entries = new BoundedMap(maxKeys, isBlocked, (entry) => now() < entry.end && evicted());
  }

  /** The window of a key: a new one if there is none. */
  entry(key: string): Entry {
    let entry = this.entries.used(key);
    if (!entry) {
      entry = new Entry();
      this.entries.set(key, entry);
    }
    return entry;
  }

  /** The window of a key, if there is one. */
  find(key: string): Entry | undefined {
    return this.entries.get(key);
  }

  delete(key: string): void {
    this.entries.delete(key);
  }
}

const ORIGIN = performance.timeOrigin; // which is slow to read

/** Unix time in ms by the monotonic clock: setting the system's clock does not change it. */
export function clock(): number {
  return Math.floor(ORIGIN + performance.now());
}

/** What a request demands of a limit of any kind. */
export interface LimitDemand {
  readonly limit: number;
  readonly cost: number;
}

/** The same demand of a share of its limit, rounded up: at least one unit, unless the limit is 0. */
export function shareOf<D extends LimitDemand>(demand: D, share: number): D {
  return { ...demand, limit: scale(demand.limit, Math.round(share * 1_000_000), 1_000_000, "up") };
}

/** Decide by `onFailure`; `decide` decides by what this process counts. */
export function withoutServer<D extends LimitDemand>(
  { onFailure, localShare }: Settings,
  demand: D,
  decide: (demand: D) => KnownReply,
): KnownReply {
  if (onFailure === "local") return decide(shareOf(demand, localShare));
  return onFailure === "allow" ? [demand.cost, demand.limit, undefined, 0] : [0, demand.limit];
}
