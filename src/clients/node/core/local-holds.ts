/** Holds of this process: for limiters without a server, and while it does not answer. */

import type { KnownReply } from "./decision.js";
import type { LimitDemand } from "./local-windows.js";

export class LocalHolds {
  /** The units that are held of each key. */
  private readonly taken = new Map<string, number>();

  /** Take units if they fit, or only check whether they do. */
  decide(name: string, { limit, cost }: LimitDemand, how: "look" | "take" = "take"): KnownReply {
    const units = this.taken.get(name) ?? 0;
    const left = Math.max(0, limit - units);
    if (cost > left) return [0, limit, left, cost > limit ? -1 : undefined];
    if (how === "look") return [cost, limit, left, 0];
    this.taken.set(name, units + cost);
    return [cost, limit, left - cost, 0];
  }

  give(name: string, cost: number): void {
    const units = this.taken.get(name);
    if (units === undefined) return;
    if (units === cost) this.taken.delete(name);
    else this.taken.set(name, units - cost);
  }

  delete(name: string): void {
    this.taken.delete(name);
  }
}
