/**
 * What is known to be denied: after a denial, nothing as large can be granted before the server said so, unless
 * something is given back.
 */

import { copied, remembered } from "../core/keys.js";
import type { Demand, Quota, Reply } from "../core/window.js";
import type { Memory } from "../transport/invalidation.js";
import { Bounded } from "../util/bounded-map.js";

/** The generations, by hash of the key, so that keys hardly disturb one another. */
const SHARDS = 256;

/** More different denials of one key are not worth remembering. */
const A_KEY = 4;

/** Denials that have ended are looked for every so many ms. */
const SWEEP_MS = 1000;

interface Denial {
  readonly limit: number;
  readonly window: number;
  readonly resolution: number;
  readonly strict: boolean;
  /** What is denied, and all that costs more. */
  readonly least: number;
  /** Whether it was denied to a request that begins a block. */
  readonly blocks: boolean;
  /** Until when, on the monotonic clock. */
  readonly until: number;
  /** When the reply came: its wait began no later, so `retryAfter` is never too short. */
  readonly heard: number;
  readonly reply: Reply;
}

/** What was known when a request was sent. */
export interface Asked {
  readonly generation: number;
  readonly sent: number;
}

export class Denials implements Memory {
  private readonly denials: Bounded<Denial[]>;
  private readonly generations = new Uint32Array(SHARDS);
  private sweeping: NodeJS.Timeout | null = null;

  /** `most` keys are remembered, the oldest forgotten first. */
  constructor(most: number) {
    this.denials = new Bounded(most);
  }

  get size(): number {
    return this.denials.size;
  }

  /**
   * Moves on whenever something about a key has to be forgotten. Read it before you ask, and give it to `remember`: an
   * invalidation may be handled before the reply that it belongs behind.
   */
  asked(name: string): Asked {
    return { generation: this.generations[shard(name)] as number, sent: performance.now() };
  }

  /** The decision about a request that is known to be denied; undefined where the server has to be asked. */
  find(name: string, demand: Demand, blocks: boolean): Reply | readonly [0, number, undefined, -1] | undefined {
    const least = demand.partial ? 1 : demand.cost;
    if (least > demand.limit && !blocks) return [0, demand.limit, undefined, -1];
    if (this.denials.size === 0) return undefined;
    const key = remembered(name);
    const denials = this.denials.get(key);
    if (!denials) return undefined;
    const now = performance.now();
    for (const denial of denials) {
      if (now >= denial.until || least < denial.least || !isSame(denial, demand)) continue;
      if (blocks && !denial.blocks) continue;
      const passed = now - denial.heard;
      const [, limit, remaining, retryAfter, resetAfter] = denial.reply;
      const left = (ms: number) => Math.max(1, Math.ceil(ms - passed));
      return [0, limit, remaining, left(retryAfter), left(resetAfter)];
    }
    if (denials.every((denial) => now >= denial.until)) this.denials.delete(key);
    return undefined;
  }

  /**
   * Remember a denial for `longest` ms at most, unless its key has moved on since it was asked about. `block` is how
   * long the request would block the key: then it begins another block.
   */
  remember(name: string, demand: Demand, asked: Asked, reply: Reply, block: number, longest: number): void {
    const [granted, , , retryAfter] = reply;
    if (granted > 0 || retryAfter <= 0 || this.generations[shard(name)] !== asked.generation) return;
    const known = Math.min(deniedFor(retryAfter), longest, block > 0 ? block : Number.POSITIVE_INFINITY);
    const { limit, window, resolution, strict } = demand;
    const now = performance.now();
    const denial: Denial = {
      limit,
      window,
      resolution,
      strict,
      least: demand.partial ? 1 : demand.cost,
      blocks: block > 0,
      until: asked.sent + known,
      heard: now,
      reply,
    };
    if (denial.until <= now) return;
    const key = copied(remembered(name));
    const others = (this.denials.get(key) ?? []).filter((other) => now < other.until && !covers(denial, other));
    this.denials.delete(key); // so that it comes last
    this.denials.set(key, [denial, ...others].slice(0, A_KEY));
    this.sweeping ??= setInterval(() => this.sweep(), SWEEP_MS).unref();
  }

  forget(name: string): void {
    this.denials.delete(remembered(name));
    const at = shard(name);
    this.generations[at] = (this.generations[at] as number) + 1;
  }

  forgetAll(): void {
    this.denials.clear();
    this.stopSweeping();
    for (let at = 0; at < SHARDS; at++) this.generations[at] = (this.generations[at] as number) + 1;
  }

  /** Forget those that have ended. */
  private sweep(): void {
    const now = performance.now();
    for (const [key, denials] of this.denials) {
      if (denials.every(({ until }) => now >= until)) this.denials.delete(key);
    }
    if (this.denials.size === 0) this.stopSweeping();
  }

  private stopSweeping(): void {
    if (this.sweeping) clearInterval(this.sweeping);
    this.sweeping = null;
  }
}

/**
 * How long after it was asked for a denial holds, in ms: a millisecond less, because the server's clock is cut down to
 * one, and a thousandth, because clocks are slewed.
 */
export function deniedFor(retryAfter: number): number {
  return Math.max(0, retryAfter - 1 - retryAfter / 1000);
}

/** Whether whatever the second denies the first denies, too. */
function covers(a: Denial, b: Denial): boolean {
  return isSame(a, b) && a.least <= b.least && a.blocks >= b.blocks && a.until >= b.until;
}

function isSame(a: Quota, b: Quota): boolean {
  return a.limit === b.limit && a.window === b.window && a.resolution === b.resolution && a.strict === b.strict;
}

function shard(name: string): number {
  let hash = name.length;
  for (let i = Math.max(0, name.length - 8); i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return hash & (SHARDS - 1);
}
