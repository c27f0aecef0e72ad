/**
 * The sliding window of one key, with the arithmetic of the module.
 *
 * Time is cut into subintervals of the resolution R, aligned to the Unix epoch; a window is N of them. At an instant in
 * subinterval c, e ms after its start:
 *
 *     full     = units of subintervals c−N+1 … c
 *     trailing = units of subinterval c−N, the one that is sliding out
 *     estimate = full + trailing · (R − e) / R        or, strictly, full + trailing
 *
 * A cost k is granted while ⌈estimate⌉ + k ≤ limit. With a warm-up, the limit is the one in force: it rises while the key
 * is in use. All numbers are whole and exact; products above 2^53 use BigInt. A decision is a function of the state and
 * an instant: no clock, no network.
 */

import { MAX_EXACT } from "./duration.js";
import { scale } from "./scale.js";
import { risen, type WarmUp } from "./warm-up.js";

/** A quota: units per window; durations in ms. */
export interface Quota {
  readonly limit: number;
  readonly window: number;
  readonly resolution: number;
  /** Count the trailing subinterval whole, so that no span of the window ever sees more than the limit. */
  readonly strict: boolean;
}

/** What a request demands of a window. */
export interface Demand extends Quota {
  readonly cost: number;
  /** Grant as much of the cost as fits. */
  readonly partial: boolean;
  /** How the limit rises after idleness. */
  readonly warmUp?: WarmUp | undefined;
}

/** The five integers of a reply: granted, limit, remaining, retry_after (ms; −1: never), reset_after (ms). */
export type Reply = [granted: number, limit: number, remaining: number, retryAfter: number, resetAfter: number];

/** Counting would hold more than 2^53 − 1 units. */
export class CountOverflow extends Error {
  constructor() {
    super("ERR count would overflow");
  }
}

/** Units of one subinterval. */
type Count = [subinterval: number, units: number];

/** The counts at one geometry: the subintervals from `newest` − N on with a count, oldest first. */
class Counts {
  constructor(
    readonly window: number,
    readonly resolution: number,
    readonly list: Count[] = [],
  ) {}

  get subintervals(): number {
    return this.window / this.resolution;
  }

  get newest(): number {
    return this.list.at(-1)?.[0] ?? 0;
  }

  /** The first instant at which a subinterval has slid out completely. */
  endOf(subinterval: number): number {
    return (subinterval + this.subintervals + 1) * this.resolution;
  }

  /** The first instant at which all counts have expired; 0 when there are none. */
  get end(): number {
    return this.list.length === 0 ? 0 : this.endOf(this.newest);
  }

  /**
   * The first instant at which all counts have expired for requests at a geometry: later requests see the newest units
   * later, at most at the end of their subinterval.
   */
  endAt(window: number, resolution: number): number {
    if (window === this.window && resolution === this.resolution) return this.end;
    const seen = new Counts(window, resolution);
    return Math.min(this.end, seen.endOf(seen.at((this.newest + 1) * this.resolution - 1)));
  }

  at(instant: number): number {
    return Math.floor(instant / this.resolution);
  }

  /** The instant at which a decision is made: time never runs backwards for a key. */
  decisionInstant(now: number): number {
    return Math.max(now, this.newest * this.resolution);
  }

  /** `full` and `trailing`, and the estimate rounded up to whole units. */
  load(now: number, strict: boolean): { full: number; trailing: number; estimate: number } {
    const instant = this.decisionInstant(now);
    const current = this.at(instant);
    const oldest = current - this.subintervals;
    let [full, trailing] = [0, 0];
    for (let i = this.list.length - 1; i >= 0; i--) {
      const [subinterval, units] = this.list[i] as Count;
      if (subinterval === oldest) trailing = units;
      if (subinterval <= oldest) break;
      full += units;
    }
    const left = this.resolution - (instant - current * this.resolution);
    const weighted = strict ? trailing : scale(trailing, left, this.resolution, "up");
    return { full, trailing, estimate: full + weighted };
  }

  add(subinterval: number, units: number): void {
    let place = this.list.length;
    while (place > 0 && (this.list[place - 1] as Count)[0] > subinterval) place--;
    const before = this.list[place - 1];
    if (before?.[0] === subinterval) before[1] += units;
    else this.list.splice(place, 0, [subinterval, units]);
    const oldest = this.newest - this.subintervals;
    let slidOut = 0;
    while ((this.list[slidOut] as Count)[0] < oldest) slidOut++;
    if (slidOut > 0) this.list.splice(0, slidOut);
  }

  /**
   * The counts as a request with another geometry sees them at `now`: the units of each subinterval at their latest
   * possible instant, without those that have expired in either window.
   */
  seenAt(window: number, resolution: number, now: number): Counts {
    if (window === this.window && resolution === this.resolution && now < this.end) return this;
    const seen = new Counts(window, resolution);
    if (now >= this.end) return seen;
    const decided = this.decisionInstant(now);
    for (const [subinterval, units] of this.list) {
      const latest = seen.at(Math.min((subinterval + 1) * this.resolution - 1, decided));
      if (Math.min(this.endOf(subinterval), seen.endOf(latest)) <= decided) continue;
      const last = seen.list.at(-1);
      if (last?.[0] === latest) last[1] += units;
      else seen.list.push([latest, units]);
    }
    return seen;
  }

  /**
   * The instant from which on the estimate is at most `room`; 0 when it always was.
   *
   * The estimate sinks only as subintervals slide out, oldest first. So it depends on the newest subinterval whose
   * units do not fit into `room` together with all younger ones. While it is trailing, its units weigh (R − e) / R:
   * they fit as soon as (R − e) · units ≤ (room − younger) · R.
   */
  fitsAt(room: number, strict: boolean): number {
    let younger = 0;
    for (let i = this.list.length - 1; i >= 0; i--) {
      const [subinterval, units] = this.list[i] as Count;
      if (younger + units > room) {
        const early = strict ? 0 : scale(room - younger, this.resolution, units, "down");
        return this.endOf(subinterval) - early;
      }
      younger += units;
    }
    return 0;
  }
}

/** The state of a key: counts, a block, or both. */
export class Entry {
  private counts: Counts | null = null;
  private blockedUntil = 0;
  /** Since when the key is in use, for limits that rise; 0 where that is unknown. */
  private since = 0;

  isBlocked(now: number): boolean {
    return now < this.blockedUntil;
  }

  /** The first instant at which everything has expired. */
  get end(): number {
    return Math.max(this.blockedUntil, this.counts?.end ?? 0, this.sinceEnd);
  }

  /** Decide, and count granted units; after a denial, begin a block of `block` ms. */
  allow(demand: Demand, now: number, block = 0): Reply {
    const seen = this.seen(demand, now);
    const { granted, limit, remaining } = this.decide(demand, now, seen);
    if (granted === 0) {
      this.beginBlock(block, now);
      return this.peek(demand, now);
    }
    this.count(demand, granted, seen, seen.decisionInstant(now), now);
    return [granted, limit, remaining - granted, 0, this.resetAfter(demand, now)];
  }

  /** Decide without counting. */
  peek(demand: Demand, now: number): Reply {
    const { granted, limit, remaining } = this.decide(demand, now, this.seen(demand, now));
    const retryAfter = granted > 0 ? 0 : this.retryAfter(demand, now);
    return [granted, limit, remaining, retryAfter, this.resetAfter(demand, now)];
  }

  /** Count the cost whatever the limit is, at the instant `dated` unless that has expired. */
  record(demand: Demand, now: number, dated?: number, block = 0): Reply {
    const seen = this.seen(demand, now);
    const instant = dated ?? seen.decisionInstant(now);
    const subinterval = seen.at(instant);
    const tooLate = seen.list.length > 0 && subinterval < seen.newest - seen.subintervals;
    if (dated !== undefined && (tooLate || seen.endOf(subinterval) <= now)) return this.peek(demand, now);
    const { granted, limit } = this.decide(demand, now, seen);
    const { full, trailing } = seen.load(dated ?? now, true);
    if (demand.cost > MAX_EXACT - full - trailing) throw new CountOverflow();
    this.count(demand, demand.cost, seen, instant, now);
    if (granted === 0) this.beginBlock(block, now);
    const room = Math.max(0, limit - seen.load(now, demand.strict).estimate);
    const remaining = now < this.blockedUntil ? 0 : room;
    const retryAfter = granted > 0 ? 0 : this.retryAfter(demand, now);
    return [granted, limit, remaining, retryAfter, this.resetAfter(demand, now)];
  }

  /** Give back up to `units`, newest first; with `age`, first those counted about that long ago, then younger ones. */
  refund(units: number, now: number, age?: number): number {
    const counts = this.counts;
    if (!counts || now >= counts.end) return 0;
    const first = age === undefined ? 0 : counts.at(Math.max(0, now - age));
    if (age !== undefined && counts.endOf(first) <= counts.decisionInstant(now)) return 0;
    const refundable = counts.list.filter(([subinterval]) => subinterval >= first);
    let left = units;
    for (const count of age === undefined ? refundable.reverse() : refundable) {
      const taken = Math.min(left, count[1]);
      left -= taken;
      count[1] -= taken;
    }
    const kept = counts.list.filter((count) => count[1] > 0);
    this.counts = kept.length > 0 ? new Counts(counts.window, counts.resolution, kept) : null;
    if (!this.counts) this.since = 0;
    if (left < units) this.forget(now);
    return units - left;
  }

  /** Reset a changed key when everything has expired. */
  private forget(now: number): void {
    if (this.end > now) return;
    this.counts = null;
    this.blockedUntil = 0;
    this.since = 0;
  }

  /** Block from now on for so long; the instant at which the block ends. */
  block(duration: number, now: number, unlessBlocked = false): number {
    if (!(unlessBlocked && now < this.blockedUntil)) this.blockedUntil = now + duration;
    return this.blockedUntil;
  }

  /** Lift the block; whether there was one. */
  unblock(now: number): boolean {
    const was = now < this.blockedUntil;
    if (was) {
      this.blockedUntil = 0;
      this.forget(now);
    }
    return was;
  }

  private beginBlock(block: number, now: number): void {
    if (block > 0 && now >= this.blockedUntil) this.blockedUntil = now + block;
  }

  private seen(quota: Quota, now: number): Counts {
    return this.counts?.seenAt(quota.window, quota.resolution, now) ?? new Counts(quota.window, quota.resolution);
  }

  private decide(demand: Demand, now: number, seen: Counts): { granted: number; limit: number; remaining: number } {
    const limit = this.limit(demand, now, seen);
    if (now < this.blockedUntil) return { granted: 0, limit, remaining: 0 };
    const { full, trailing, estimate } = seen.load(now, demand.strict);
    const remaining = Math.max(0, limit - estimate);
    const granted = demand.cost <= remaining ? demand.cost : demand.partial ? remaining : 0;
    if (granted > MAX_EXACT - full - trailing) throw new CountOverflow();
    return { granted, limit, remaining };
  }

  /** The limit in force. */
  private limit(demand: Demand, now: number, seen: Counts): number {
    const { limit, cost, partial, warmUp } = demand;
    if (!warmUp) return limit;
    const countsNothing = this.countsNothing(demand, now);
    const isKnown = now < this.sinceEnd;
    if (!isKnown && !countsNothing) return limit; // who brought the key into use had no warm-up
    const warm = risen(limit, warmUp, isKnown ? Math.max(0, seen.decisionInstant(now) - this.since) : 0);
    // So that a cost above the cold limit is granted at all.
    return countsNothing && !partial && cost <= limit ? Math.max(warm, cost) : warm;
  }

  /** Count units at an instant. A key in which nothing counted comes into use with them. */
  private count(demand: Demand, units: number, seen: Counts, instant: number, now: number): void {
    if (now >= this.sinceEnd && this.countsNothing(demand, now)) this.since = demand.warmUp ? Math.max(1, instant) : 0;
    seen.add(seen.at(instant), units);
    this.counts = seen;
  }

  /** When `since` is forgotten: once nothing has counted for a window. */
  private get sinceEnd(): number {
    const { counts, since } = this;
    return counts && since > 0 ? counts.end + counts.window : 0;
  }

  private countsNothing({ window, resolution }: Quota, now: number): boolean {
    return now >= (this.counts?.endAt(window, resolution) ?? 0);
  }

  private resetAfter(quota: Quota, now: number): number {
    const end = this.counts?.endAt(quota.window, quota.resolution) ?? 0;
    return Math.max(0, end - now, this.blockedUntil - now);
  }

  private retryAfter(demand: Demand, now: number): number {
    const least = demand.partial ? 1 : demand.cost;
    if (least > demand.limit) return -1;
    return Math.max(0, this.fitsAt(demand, least, now) - now, this.blockedUntil - now);
  }

  private fitsAt(demand: Demand, least: number, now: number): number {
    const counts = this.counts;
    if (!counts) return now;
    const { limit, strict, warmUp } = demand;
    if (!warmUp && this.seen(demand, now) === counts) return counts.fitsAt(limit - least, strict);
    // At another geometry later requests may see the newest units later, and a limit may rise. What fits once fits from
    // then on.
    let [low, high] = [now, Math.max(now, counts.end)];
    while (low < high) {
      const middle = low + Math.floor((high - low) / 2);
      const seen = this.seen(demand, middle);
      if (seen.load(middle, strict).estimate <= this.limit(demand, middle, seen) - least) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
