/** Windows of this process: for limits without a server, and for the time that one is away. */

import { type Demand, Entry } from "./window.js";

export class LocalWindows {
  private readonly entries = new Map<string, Entry>();

  /** `most` keys are held, those that were made first forgotten first. */
  constructor(private readonly most: number) {}

  /** What a key holds. */
  entry(key: string): Entry {
    let entry = this.entries.get(key);
    if (!entry) {
      entry = new Entry();
      this.entries.set(key, entry);
      if (this.entries.size > this.most) this.entries.delete(this.entries.keys().next().value as string);
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

/** The same demand of a share of its limit: at least one unit, unless the limit admits nothing. */
export function shareOf(demand: Demand, share: number): Demand {
  return { ...demand, limit: Math.min(demand.limit, Math.max(1, Math.floor(demand.limit * share))) };
}
