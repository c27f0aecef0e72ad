/** A limiter with the methods of the package rate-limiter-flexible, for programs that call those. */

import type { Decision } from "../core/decision.js";
import { integer, shown } from "../core/duration.js";
import type { BudgetLimiter } from "../limiters/budget.js";
import { Limiter, type LimiterOptions } from "../limiters/rate.js";
import { ALL, type FixedOptions, limiterOf } from "./fixed.js";

/** A limiter's options. The limit and the window have that package's names, and its unit: seconds. */
export interface FlexibleOptions extends Omit<LimiterOptions, "limit" | "window" | "name">, FixedOptions {
  /** The limit: points per duration, 0 … 2^53 − 1. */
  readonly points: number;
  /** The window, in seconds: 0.001 … 3650 days. */
  readonly duration: number;
  /** When denied, block the key for so many seconds; 0, the default: do not. */
  readonly blockDuration?: number;
  /** Prepended to every key, with a colon, after `prefix`; "rlflx" by default. */
  readonly keyPrefix?: string;
}

/** The result of promises. A denial rejects with it, as in that package. */
export class RateLimiterRes {
  constructor(
    /** Remaining points. */
    readonly remainingPoints: number,
    /** ms until a denied request is granted, otherwise until no points are consumed any more. */
    readonly msBeforeNext: number,
    /** Consumed points; more than the limit if denied. */
    readonly consumedPoints: number,
    /** Whether no other points are consumed. */
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

/**
 * A limiter with that package's methods, on this package's limiter.
 *
 * @example
 * import { RateLimiterSwlimit } from "swlimit/rate-limiter-flexible";
 *
 * const logins = new RateLimiterSwlimit({ client, keyPrefix: "login", points: 3, duration: 60 });
 * const { remainingPoints } = await logins.consume("ann");
 */
export class RateLimiterSwlimit {
  readonly points: number;
  /** Seconds. */
  readonly duration: number;
  /** Seconds. */
  readonly blockDuration: number;
  readonly keyPrefix: string;
  private readonly limiter: Limiter | BudgetLimiter;
  /** A limiter of the same keys that denies only blocked ones, and so shows all consumed points. */
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

  /** Take so many points. A denial rejects with a RateLimiterRes, and takes none. */
  async consume(key: Key, points = 1): Promise<RateLimiterRes> {
    const decision = await this.limiter.allow(this.getKey(key), { cost: points, ...this.blocks });
    const found = this.result(decision, points);
    return decision.granted > 0 ? found : Promise.reject(found);
  }

  /** Count so many points, whatever the limit is. */
  async penalty(key: Key, points = 1): Promise<RateLimiterRes> {
    return this.result(await this.counter.record(this.getKey(key), { cost: points }), points);
  }

  /** Give back up to so many consumed points. */
  async reward(key: Key, points = 1): Promise<RateLimiterRes> {
    const name = this.getKey(key);
    await this.limiter.refund(name, points);
    return this.result(await this.counter.peek(name));
  }

  /**
   * The consumed points; null when there are none. Without a `blockDuration`, a key without remaining points is shown
   * as denied: programs that check before each try would otherwise allow tries without end.
   */
  async get(key: Key): Promise<RateLimiterRes | null> {
    const { limiter, counter, blockDuration } = this;
    const decision = await (blockDuration > 0 ? counter : limiter).peek(this.getKey(key));
    return decision.resetAfter === 0 ? null : this.result(decision);
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

  /** When no limiter uses the client any more, all connections but the client's own are closed. */
  close(): void {
    this.limiter.close();
  }

  /** A key at the server, without `prefix`. */
  getKey(key: Key): string {
    if (typeof key !== "string" && typeof key !== "number") {
      throw new TypeError(`key must be a string or a number, not ${shown(key)}`);
    }
    return this.keyPrefix === "" ? String(key) : `${this.keyPrefix}:${key}`;
  }

  /** The result for a decision about so many points. Of a denial it is only known that too few remain. */
  private result({ granted, limit, remaining, retryAfter, resetAfter }: Decision, asked = 0): RateLimiterRes {
    const { points } = this;
    const isGranted = granted > 0;
    const known = remaining === undefined ? (isGranted ? asked : points) : limit - remaining;
    const used = isGranted ? known : Math.min(known, points);
    const consumed = isGranted ? used : Math.max(points + 1, used + asked);
    const wait = isGranted ? resetAfter : retryAfter;
    return new RateLimiterRes(
      Math.max(0, points - used),
      wait ?? ofSeconds(this.duration, "duration"),
      consumed,
      isGranted && consumed === asked,
    );
  }

  /** The limiter, if it can block keys. */
  private sliding(): Limiter {
    if (this.limiter instanceof Limiter) return this.limiter;
    throw new TypeError("fixed windows have no blocks");
  }
}

function ofSeconds(seconds: number, what: string): number {
  const ms = Math.round(seconds * 1000);
  if (typeof seconds === "number" && ms >= 1) return ms;
  throw new RangeError(`${what} must be seconds, at least 0.001, not ${shown(seconds)}`);
}
