/**
 * Limits that rise after idleness, as Guava's do under saturation. A function of the state and an instant: no clock, no
 * network. All times are in whole ms.
 *
 * At `t` after its first units, a key of the limit L has L / √(c² − (c² − 1)·t/p), where p is the period of the warm-up
 * and c how much colder it begins; in steps of p/20. From p on it has L.
 */

import { BoundedMap } from "../util/bounded-map.js";
import { type Duration, milliseconds } from "./duration.js";
import { independentCopy, shortKey } from "./keys.js";
import type { Demand } from "./window.js";

export const STEPS = 20;

/** The fewest windows in a period: each window may begin with a burst of its limit. */
const WINDOWS = 10;

const COLD = 3;
const COLDEST = 1000;

/** How limits rise. */
export class WarmUp {
  private readonly square: number;

  constructor(
    readonly period: number,
    private readonly cold: number,
  ) {
    this.square = cold * cold;
  }

  /** The warm-up of a limiter with these options. */
  static of(period: Duration, cold: number | undefined, window: number): WarmUp {
    const ms = milliseconds(period, "warmUp");
    const times = cold ?? COLD;
    if (!(typeof times === "number" && times > 1 && times <= COLDEST)) {
      throw new RangeError(`cold must be above 1 and at most ${COLDEST}`);
    }
    return new WarmUp(ms, times).checked(window);
  }

  /** The same, if it goes with a window. */
  checked(window: number): this {
    if (this.period < WINDOWS * window) throw new RangeError("warmUp must be at least ten times the window");
    return this;
  }

  step(t: number): number {
    return Math.floor((STEPS * t) / this.period);
  }

  /** The `t` at which a step begins. */
  begins(step: number): number {
    return Math.ceil((step * this.period) / STEPS);
  }

  /** What the full limit is in a step. */
  limit(full: number, step: number): number {
    if (step >= STEPS) return full;
    const root = Math.sqrt(this.square - ((this.square - 1) * step) / STEPS);
    return Math.min(full, Math.max(1, Math.floor(full / root)));
  }

  /** The least `t` that so many used units show; 0 where they are at most the cold limit. */
  shown(full: number, used: number): number {
    if (used * this.cold <= full) return 0;
    const ratio = full / used;
    const t = Math.floor(this.period * ((this.square - ratio * ratio) / (this.square - 1)));
    return Math.min(this.period, Math.max(0, t));
  }

  /** How long after `t` the limit is as large as a cost, which the full limit is. */
  wait(t: number, full: number, cost: number): number {
    let step = this.step(t);
    while (this.limit(full, step) < cost) step++;
    return this.begins(step) - t;
  }
}

/** What a request demands of a key that may warm up. */
export interface WarmingDemand extends Demand {
  /** The limit that this one rises to. */
  readonly fullLimit?: number;
}

/** What is known of a key. */
interface Warmth {
  readonly t: number;
  /** The instant of the last decision about the key, at which it was warm by `t`. */
  readonly at: number;
  /** The last step in which a denial made this process look at all that is counted; −1: none. */
  readonly looked: number;
}

/**
 * How warm the newest `maxKeys` keys are. Other processes warm a key up, too: replies tell how far.
 *
 * `quiet`: so long after its last decision about a key, nothing that this process knows of counts any more.
 */
export class WarmingKeys {
  private readonly keys: BoundedMap<Warmth>;

  constructor(
    readonly warmUp: WarmUp,
    maxKeys: number,
  ) {
    this.keys = new BoundedMap(maxKeys);
  }

  get size(): number {
    return this.keys.size;
  }

  /** The limit for a request. */
  limit(key: string, full: number, quiet: number, now: number): number {
    return this.warmUp.limit(full, this.warmUp.step(this.age(key, quiet, now)));
  }

  /** How long until the limit is as large as a cost, which the full limit is. */
  wait(key: string, full: number, cost: number, quiet: number, now: number): number {
    return this.warmUp.wait(this.age(key, quiet, now), full, cost);
  }

  /** Learn from the decision about a request with this limit. Without `remaining`, nothing but this process made it. */
  heard(key: string, full: number, limit: number, granted: number, remaining: number | undefined, now: number): void {
    let { t, looked } = this.known(key, now);
    if (remaining !== undefined) {
      const used = limit - remaining;
      // Nothing else is counted.
      if (granted > 0 && used <= granted) [t, looked] = [0, -1];
      else t = Math.max(t, this.warmUp.shown(full, used));
    }
    const name = independentCopy(shortKey(key));
    this.keys.delete(name); // so that it becomes the newest
    this.keys.set(name, { t, at: now, looked });
  }

  /** Whether a denial is worth a look at all that is counted: once in each step. */
  looks(key: string): boolean {
    const warmth = this.state(key);
    const step = warmth ? this.warmUp.step(warmth.t) : 0;
    if (!warmth || step <= warmth.looked) return false;
    this.keys.set(shortKey(key), { ...warmth, looked: step });
    return true;
  }

  forget(key: string): void {
    this.keys.delete(shortKey(key));
  }

  state(key: string): Warmth | undefined {
    return this.keys.get(shortKey(key));
  }

  private age(key: string, quiet: number, now: number): number {
    const warmth = this.state(key);
    return !warmth || now - warmth.at >= quiet ? 0 : this.known(key, now).t;
  }

  /** What is known of a key at an instant: it has warmed up meanwhile. */
  private known(key: string, now: number): Warmth {
    const warmth = this.state(key);
    const { period } = this.warmUp;
    const passed = warmth ? Math.max(0, now - warmth.at) : period;
    if (!warmth || passed >= period) return { t: 0, at: now, looked: -1 };
    return { t: Math.min(period, warmth.t + passed), at: now, looked: warmth.looked };
  }
}
