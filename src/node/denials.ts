/**
 * What is known to be denied: after a denial, nothing as large can be granted before the server said so, unless
 * something is given back.
 */

import type { Memory } from "./tracking.js";
import type { Demand, Quota, Reply } from "./window.js";

/** The generations, by hash of the key, so that keys hardly disturb one another. */
const SHARDS = 256;

/** More different denials of one key are not worth remembering. */
const A_KEY = 4;

interface Denial {
  readonly quota: Quota;
  /** What is denied, and all that costs more. */
  readonly least: number;
  /** Whether it was denied to a request that begins a block. */
  readonly blocks: boolean;
  /** Until when, on the monotonic clock. */
  readonly until: number;
  readonly sent: number;
  readonly reply: Reply;
}

export class Denials implements Memory {
  private readonly denials = new Map<string, Denial[]>();
  private readonly generations = new Uint32Array(SHARDS);

  /** `most` keys are remembered, the oldest forgotten first; each for `longest` ms at most. */
  constructor(
    private readonly most: number,
    private readonly longest = Number.POSITIVE_INFINITY,
  ) {}

  get size(): number {
    return this.denials.size;
  }

  /**
   * Moves on whenever something about a key has to be forgotten. Read it before you ask, and give it to `remember`: an
   * invalidation may be handled before the reply that it belongs behind.
   */
  generation(key: string): number {
    return this.generations[shard(key)] as number;
  }

  /** The decision about a request that is known to be denied; undefined where the server has to be asked. */
  find(key: string, demand: Demand, blocks: boolean): Reply | undefined {
    const least = demand.partial ? 1 : demand.cost;
    if (least > demand.limit && !blocks) return [0, demand.limit, 0, -1, 0];
    const denials = this.denials.get(key);
    if (!denials) return undefined;
    const now = performance.now();
    for (const denial of denials) {
      if (now >= denial.until || least < denial.least || !isSame(denial.quota, demand)) continue;
      if (blocks && !denial.blocks) continue;
      const passed = now - denial.sent;
      const [, limit, remaining, retryAfter, resetAfter] = denial.reply;
      const left = (ms: number) => Math.max(1, Math.ceil(ms - passed));
      return [0, limit, remaining, left(retryAfter), left(resetAfter)];
    }
    if (denials.every((denial) => now >= denial.until)) this.denials.delete(key);
    return undefined;
  }

  /** Remember a denial, unless its key has moved on since its generation was read. */
  remember(
    key: string,
    demand: Demand,
    block: number,
    asked: { generation: number; sent: number },
    reply: Reply,
  ): void {
    const [granted, , , retryAfter] = reply;
    if (granted > 0 || retryAfter <= 0 || this.generation(key) !== asked.generation) return;
    // A millisecond because the server's clock is cut down to one; a thousandth because clocks are slewed. A block that
    // this request began has ended after its own length: then such a request begins another one.
    const known = Math.min(
      retryAfter - 1 - retryAfter / 1000,
      this.longest,
      block > 0 ? block : Number.POSITIVE_INFINITY,
    );
    const least = demand.partial ? 1 : demand.cost;
    const denial: Denial = {
      quota: demand,
      least,
      blocks: block > 0,
      until: asked.sent + known,
      sent: asked.sent,
      reply,
    };
    const now = performance.now();
    if (denial.until <= now) return;
    const others = (this.denials.get(key) ?? []).filter((other) => now < other.until && !covers(denial, other));
    this.denials.delete(key); // so that it comes last
    this.denials.set(key, [denial, ...others].slice(0, A_KEY));
    if (this.denials.size > this.most) this.denials.delete(this.denials.keys().next().value as string);
  }

  forget(key: string): void {
    this.denials.delete(key);
    const at = shard(key);
    this.generations[at] = (this.generations[at] as number) + 1;
  }

  forgetAll(): void {
    this.denials.clear();
    for (let at = 0; at < SHARDS; at++) this.generations[at] = (this.generations[at] as number) + 1;
  }
}

/** Whether whatever the second denies the first denies, too. */
function covers(a: Denial, b: Denial): boolean {
  return isSame(a.quota, b.quota) && a.least <= b.least && a.blocks >= b.blocks && a.until >= b.until;
}

function isSame(a: Quota, b: Quota): boolean {
  return a.limit === b.limit && a.window === b.window && a.resolution === b.resolution && a.strict === b.strict;
}

function shard(key: string): number {
  let hash = key.length;
  for (let i = Math.max(0, key.length - 8); i < key.length; i++) hash = (hash * 31 + key.charCodeAt(i)) | 0;
  return hash & (SHARDS - 1);
}
