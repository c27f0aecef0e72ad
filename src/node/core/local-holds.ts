/** Holds of this process: for limiters without a server, and while it does not answer. */

import type { KnownReply } from "./decision.js";
import type { LimitDemand } from "./local-windows.js";

/** The units that are held of a key. */
interface HeldUnits {
  units: number;
  /** Callbacks for when units are given back. */
  readonly waiting: Set<() => void>;
}

export class LocalHolds {
  private readonly taken = new Map<string, HeldUnits>();

  /** Take units if they fit, or only check whether they do. */
  decide(name: string, { limit, cost }: LimitDemand, how: "look" | "take" = "take"): KnownReply {
    const held = this.taken.get(name);
    const units = held?.units ?? 0;
    const left = Math.max(0, limit - units);
    if (cost > left) return [0, limit, left, cost > limit ? -1 : undefined];
    if (how === "look") return [cost, limit, left, 0];
    if (held) held.units += cost;
    else this.taken.set(name, { units: cost, waiting: new Set() });
    return [cost, limit, left - cost, 0];
  }

  give(name: string, cost: number): void {
    const held = this.taken.get(name);
    if (!held) return;
    held.units -= cost;
    if (held.units === 0) this.taken.delete(name);
    for (const call of held.waiting) call();
  }

  /** Resolves when units are given back next. */
  freed(name: string): Promise<void> {
    const held = this.taken.get(name);
    if (!held) return Promise.resolve();
    return new Promise((resolve) => {
      const call = () => {
        held.waiting.delete(call);
        resolve();
      };
      held.waiting.add(call);
    });
  }

  delete(name: string): void {
    const held = this.taken.get(name);
    this.taken.delete(name);
    for (const call of held?.waiting ?? []) call();
  }
}
