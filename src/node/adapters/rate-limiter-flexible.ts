/** A limiter with the methods of the package rate-limiter-flexible, for programs that call those. */

import type { Decision } from "../core/decision.js";
import { integer } from "../core/duration.js";
import type { BudgetLimiter } from "../limiters/budget.js";
import { Limiter, type LimiterOptions } from "../limiters/rate.js";
import { ALL, type FixedOptions, limiterOf } from "./fixed.js";

/** As a limiter's; the limit and the window have that package's names, and its unit: seconds. */
export interface FlexibleOptions extends Omit<LimiterOptions, "limit" | "window" | "name">, FixedOptions {
  /** The limit: points per duration, 0 … 2^53 − 1. */
  readonly points: number;
  /** The window, in seconds: 0.001 … 3650 days. */
  readonly duration: number;
  /** When denied, block the key for so many seconds; 0, as a rule: not at all. */
  readonly blockDuration?: number;
  /** Stands before every key, with a colon, behind `prefix`; "rlflx" as a rule. */
  readonly keyPrefix?: string;
}

/** What promises come to. A denial is rejected with it, too, as that package does. */
export class RateLimiterRes {
  constructor(
    /** Points that are left. */
    readonly remainingPoints: number,
    /** ms until the same request would be granted if it was denied, else until nothing counts any more. */
    readonly msBeforeNext: number,
    /** Points that count; more than there are, if it was denied. */
    readonly consumedPoints: number,
    /** Whether nothing else counts. */
    readonly isFirstInDuration = false,
  ) {}

  toJSON() {
    return { ...this };
  }

  toString(): string {
    return JSON.stringify(this);
  }
}

type Key = string | number;

export class RateLimiterSwlimit {
  readonly points: number;
  /** Seconds. */
  readonly duration: number;
  /** Seconds. */
  readonly blockDuration: number;
  readonly keyPrefix: string;
  private readonly limiter: Limiter | BudgetLimiter;
  /** Of the same keys; it denies only those that are blocked, and so tells how much counts, however much that is. */
  private readonly counter: Limiter | BudgetLimiter;
  private readonly blocks: { block?: number } = {};

  constructor({ points, duration, blockDuration = 0, keyPrefix = "rlflx", ...options }: FlexibleOptions) {
    const { prefix = "swlimit:" } = options;
    this.points = integer(points, "points", 0);
    this.limiter = limiterOf({ ...options, prefix, limit: points, window: ofSeconds(duration, "duration") });
    this.counter = this.limiter.with({ limit: ALL });
    this.duration = duration;
    this.blockDuration = blockDuration;
    this.keyPrefix = keyPrefix;
    if (blockDuration === 0) return;
    this.sliding();
    this.blocks.block = ofSeconds(blockDuration, "blockDuration");
  }

  /** Take so many points. A denial is rejected with a RateLimiterRes, and takes nothing. */
  async consume(key: Key, points = 1): Promise<RateLimiterRes> {
    const decision = await this.limiter.allow(this.getKey(key), { cost: points, ...this.blocks });
    const found = this.told(decision, points);
    return decision.granted > 0 ? found : Promise.reject(found);
  }

  /** Count so many points, whatever the limit says. */
  async penalty(key: Key, points = 1): Promise<RateLimiterRes> {
    return this.told(await this.counter.record(this.getKey(key), { cost: points }), points);
  }

  /** Give back up to so many points that count. */
  async reward(key: Key, points = 1): Promise<RateLimiterRes> {
    const name = this.getKey(key);
    await this.limiter.refund(name, points);
    return this.told(await this.counter.peek(name));
  }

  /**
   * What counts; null where nothing does. Without a `blockDuration`, a key that has no points left is told as denied:
   * programs that look, and then let somebody try, would otherwise let him try for ever.
   */
  async get(key: Key): Promise<RateLimiterRes | null> {
    const { limiter, counter, blockDuration } = this;
    const decision = await (blockDuration > 0 ? counter : limiter).peek(this.getKey(key));
    return decision.resetAfter === 0 ? null : this.told(decision);
  }

  /** Deny everything for so many seconds from now on. */
  async block(key: Key, secDuration: number): Promise<RateLimiterRes> {
    const msBeforeNext = ofSeconds(secDuration, "secDuration");
    await this.sliding().block(this.getKey(key), msBeforeNext);
    return new RateLimiterRes(0, msBeforeNext, this.points + 1);
  }

  /** Forget a key, and its block; whether there was anything to forget. */
  async delete(key: Key): Promise<boolean> {
    const name = this.getKey(key);
    const { resetAfter } = await this.limiter.peek(name);
    await this.limiter.reset(name);
    return resetAfter !== 0;
  }

  /** Connections beside the client's own are closed, once no limiter needs them. */
  close(): void {
    this.limiter.close();
  }

  /** A key as the server has it, but for `prefix`. */
  getKey(key: Key): string {
    if (typeof key !== "string" && typeof key !== "number") {
      throw new TypeError(`key must be a string or a number, not ${String(key)}`);
    }
    return this.keyPrefix === "" ? String(key) : `${this.keyPrefix}:${key}`;
  }

  /** What a decision about so many points says; of a denial no more is known than that there are too few. */
  private told({ granted, limit, remaining, retryAfter, resetAfter }: Decision, asked = 0): RateLimiterRes {
    const { points } = this;
    const isGranted = granted > 0;
    const known = remaining === undefined ? (isGranted ? asked : points) : limit - remaining;
    const used = isGranted ? known : Math.min(known, points);
    const consumed = isGranted ? used : Math.max(points + 1, used + asked);
    const wait = isGranted ? resetAfter : retryAfter;
    return new RateLimiterRes(
      Math.max(0, points - used),
      wait === undefined || wait < 0 ? ofSeconds(this.duration, "duration") : wait,
      consumed,
      isGranted && consumed === asked,
    );
  }

  /** What blocks keys. */
  private sliding(): Limiter {
    if (this.limiter instanceof Limiter) return this.limiter;
    throw new TypeError("fixed windows have no blocks");
  }
}

function ofSeconds(seconds: number, what: string): number {
  const ms = Math.round(seconds * 1000);
  if (typeof seconds === "number" && ms >= 1) return ms;
  throw new RangeError(`${what} must be seconds, at least 0.001, not ${String(seconds)}`);
}
