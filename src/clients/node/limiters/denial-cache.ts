/**
 * Known denials: after a denial, the server grants nothing as large before the time it replied, unless something is
 * given back.
 */

import { independentCopy, shortKey } from "../core/keys.js";
import type { Demand, Quota, Reply } from "../core/window.js";
import type { KeyCache } from "../transport/invalidation.js";
import { BoundedMap } from "../util/bounded-map.js";

/** The number of generations. Keys share them by hash, and so hardly disturb one another. */
const SHARDS = 256;

/** The maximum number of different denials of one key. */
const MAX_DENIALS = 4;

/** A look at a key is two commands. It pays where so many requests are denied before one can be granted. */
export const LOOK_DENIALS = 4;

/** Expired denials are removed every so many ms. */
const SWEEP_MS = 1000;

/** What of a demand a known denial is for. */
type Asked = Pick<Demand, keyof Quota | "warmUp">;

interface KnownDenial extends Asked {
  /** Requests for so many units, or more, are denied. */
  readonly least: number;
  /** Whether the request would have begun a block. */
  readonly blocks: boolean;
  /** When it expires, on the monotonic clock. */
  readonly until: number;
  /** When the reply came: its wait began no later, so `retryAfter` is never too short. */
  readonly received: number;
  readonly reply: Reply;
}

/** How many requests for a key were denied. */
interface Denied {
  /** From then on one can be granted, on the monotonic clock. */
  before: number;
  /** Those denied before that, and in the same way the last time. */
  since: number;
  last: number;
}

/** What was known when a request was sent. */
export interface Snapshot {
  readonly generation: number;
  readonly sent: number;
}

export class DenialCache implements KeyCache {
  private readonly denials: BoundedMap<readonly KnownDenial[]>;
  private readonly denied: BoundedMap<Denied>;
  private readonly generations = new Uint32Array(SHARDS);
  private sweeping: NodeJS.Timeout | null = null;

  /** The oldest of more than `maxKeys` keys are forgotten. */
  constructor(maxKeys: number) {
    this.denials = new BoundedMap(maxKeys);
    this.denied = new BoundedMap(maxKeys);
  }

  get size(): number {
    return this.denials.size;
  }

  /**
   * Take it before a request, and pass it to `remember`. The generation changes whenever a key is forgotten: an
   * invalidation may be handled before a reply that was sent before it.
   */
  snapshot(name: string): Snapshot {
    return { generation: this.generations[shard(name)] as number, sent: performance.now() };
  }

  /** The reply to a request that is known to be denied; undefined where the server must be asked. */
  find(name: string, demand: Demand, blocks: boolean): Reply | readonly [0, number, undefined, -1] | undefined {
    const least = demand.partial ? 1 : demand.cost;
    if (least > demand.limit && !blocks) return [0, demand.limit, undefined, -1];
    if (this.denials.size === 0) return undefined;
    const key = shortKey(name);
    const denials = this.denials.get(key);
    if (!denials) return undefined;
    const now = performance.now();
    for (const denial of denials) {
      if (now >= denial.until || least < denial.least || !asksTheSame(denial, demand)) continue;
      if (blocks && !denial.blocks) continue;
      this.deniedOf(key).since++;
      const passed = now - denial.received;
      const [, limit, remaining, retryAfter, resetAfter] = denial.reply;
      return [0, limit, remaining, waitLeft(retryAfter, passed), waitLeft(resetAfter, passed)];
    }
    if (denials.every((denial) => now >= denial.until)) this.denials.delete(key);
    return undefined;
  }

  /**
   * Cache a denial for at most `longest` ms, unless its key was forgotten since the snapshot. A request with `block`
   * would begin another block once the first one, of so many ms, has ended.
   */
  remember(name: string, demand: Demand, before: Snapshot, reply: Reply, block: number, longest: number): void {
    const [granted, , , retryAfter] = reply;
    if (granted > 0 || retryAfter <= 0 || this.generations[shard(name)] !== before.generation) return;
    const known = Math.min(deniedFor(retryAfter), longest, block > 0 ? block : Number.POSITIVE_INFINITY);
    const { limit, window, resolution, strict, warmUp } = demand;
    const now = performance.now();
    const denial: KnownDenial = {
      limit,
      window,
      resolution,
      strict,
      warmUp,
      least: demand.partial ? 1 : demand.cost,
      blocks: block > 0,
      until: before.sent + known,
      received: now,
      reply,
    };
    if (denial.until <= now) return;
    const key = independentCopy(shortKey(name));
    const others = (this.denials.get(key) ?? []).filter((other) => now < other.until && !covers(denial, other));
    this.denials.delete(key); // so that it becomes the newest
    this.denials.set(key, [denial, ...others].slice(0, MAX_DENIALS));
    this.sweeping ??= setInterval(() => this.sweep(), SWEEP_MS).unref();
  }

  /** The server denied a request. Whether a look at its key pays: are so many denied, or were they the last time? */
  paysToLook(name: string, now: number, retryAfter: number): boolean {
    const denied = this.deniedOf(shortKey(name));
    if (denied.before <= now) {
      denied.before = now + retryAfter;
      denied.last = denied.since;
      denied.since = 0;
    }
    denied.since++;
    return Math.max(denied.since, denied.last) >= LOOK_DENIALS;
  }

  forget(name: string): void {
    this.denials.delete(shortKey(name));
    const at = shard(name);
    this.generations[at] = (this.generations[at] as number) + 1;
  }

  forgetAll(): void {
    this.denials.clear();
    this.stopSweeping();
    for (let at = 0; at < SHARDS; at++) this.generations[at] = (this.generations[at] as number) + 1;
  }

  private deniedOf(key: string): Denied {
    let denied = this.denied.get(key);
    if (!denied) {
      denied = { before: Number.NEGATIVE_INFINITY, since: 0, last: 0 };
      this.denied.set(independentCopy(key), denied);
    }
    return denied;
  }

  /** Remove expired denials. */
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
 * How long after its request a denial holds, in ms: a millisecond less, because the server's clock is cut to whole
 * ones, and a thousandth less, because clocks are slewed.
 */
export function deniedFor(retryAfter: number): number {
  return Math.max(0, retryAfter - 1 - retryAfter / 1000);
}

/** What is left of a wait in ms, of which so many have passed. */
function waitLeft(ms: number, passed: number): number {
  return Math.max(1, Math.ceil(ms - passed));
}

/** Whether the first denies everything that the second denies. */
function covers(a: KnownDenial, b: KnownDenial): boolean {
  return asksTheSame(a, b) && a.least <= b.least && a.blocks >= b.blocks && a.until >= b.until;
}

function asksTheSame(a: Asked, b: Asked): boolean {
  const isSameQuota =
    a.limit === b.limit && a.window === b.window && a.resolution === b.resolution && a.strict === b.strict;
  return isSameQuota && a.warmUp?.duration === b.warmUp?.duration && a.warmUp?.cold === b.warmUp?.cold;
}

function shard(name: string): number {
  let hash = name.length;
  for (let i = Math.max(0, name.length - 8); i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return hash & (SHARDS - 1);
}
