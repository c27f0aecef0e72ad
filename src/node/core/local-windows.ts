/** Windows of this process: for limits without a server, and for the time that it does not answer. */

import { Bounded } from "../util/bounded-map.js";
import type { Told } from "./decision.js";
import type { Settings } from "./options.js";
import { Entry, scale } from "./window.js";

export class LocalWindows {
  private readonly entries: Bounded<Entry>;

  /** `most` keys are held, those that were made first forgotten first. */
  constructor(most: number) {
    this.entries = new Bounded(most);
  }

  /** What a key holds. */
  entry(key: string): Entry {
    let entry = this.entries.get(key);
    if (!entry) {
      entry = new Entry();
      this.entries.set(key, entry);
    }
    return entry;
  }

  /** What a key holds, if it holds anything. */
  find(key: string): Entry | undefined {
    return this.entries.get(key);
  }

  delete(key: string): void {
    this.entries.delete(key);
  }
}

/** Unix time in ms as it was when this process began, and has gone on since: nobody can set it. */
export function clock(): number {
  return Math.floor(performance.timeOrigin + performance.now());
}

/** What a request asks of any limit. */
export interface Wanted {
  readonly limit: number;
  readonly cost: number;
}

/** The same demand of a share of its limit: rounded up, so at least one unit, unless the limit admits nothing. */
export function shareOf<Asked extends Wanted>(demand: Asked, share: number): Asked {
  return { ...demand, limit: scale(demand.limit, Math.round(share * 1_000_000), 1_000_000, "up") };
}

/** What `onFailure` decides of a demand, where `decide` asks what this process counts. */
export function instead<Asked extends Wanted>(
  { onFailure, localShare }: Settings,
  demand: Asked,
  decide: (asked: Asked) => Told,
): Told {
  if (onFailure === "local") return decide(shareOf(demand, localShare));
  return onFailure === "allow" ? [demand.cost, demand.limit, undefined, 0] : [0, demand.limit];
}
