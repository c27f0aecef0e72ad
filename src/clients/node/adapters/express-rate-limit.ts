/** A store for the packages express-rate-limit and hono-rate-limiter. */

import { AsyncLocalStorage } from "node:async_hooks";
import type { Decision } from "../core/decision.js";
import type { BudgetLimiter } from "../limiters/budget.js";
import type { Limiter, LimiterOptions } from "../limiters/rate.js";
import { ALL, type FixedOptions, limiterOf } from "./fixed.js";

/** A limiter's options. The limit and the window come from the middleware. */
export type StoreOptions = Omit<LimiterOptions, "limit" | "window" | "name"> & FixedOptions;

/** The used options of the middleware. */
export interface MiddlewareOptions {
  readonly windowMs: number;
  /** A number, or a function of the request. */
  readonly limit: unknown;
  readonly skipFailedRequests?: boolean;
  readonly skipSuccessfulRequests?: boolean;
}

/** The used units of a client. */
export interface Usage {
  readonly totalHits: number;
  readonly resetTime: Date;
}

/** The decision for the request that an asynchronous context belongs to. */
interface Hit {
  readonly key: string;
  readonly since: number;
  granted: boolean;
}

/**
 * A store for `rateLimit` of express-rate-limit, or `rateLimiter` of hono-rate-limiter.
 *
 * @example
 * import { rateLimit } from "express-rate-limit";
 * import { SwlimitStore } from "swlimit/express-rate-limit";
 *
 * const middleware = rateLimit({ windowMs: 60_000, limit: 100, store: new SwlimitStore({ client }) });
 */
export class SwlimitStore {
  /** Counts are shared with other processes. */
  readonly localKeys = false;
  readonly prefix: string;
  private limiter: Limiter | BudgetLimiter | null = null;
  private windowMs = 0;
  /**
   * Whether the middleware's limit is a function, which it calls only after the store has answered. Then all requests
   * are counted, even denied ones, and the middleware compares.
   */
  private counts = false;
  /**
   * The middleware decrements by key, whether the request was counted or denied, and what was not counted must not be
   * given back. The asynchronous context of both calls tells which request is meant.
   */
  private readonly hits: AsyncLocalStorage<Hit> = new AsyncLocalStorage();
  private decrements = false;

  constructor(private readonly options: StoreOptions) {
    this.prefix = options.prefix ?? "swlimit:";
  }

  /** Called by the middleware with its options. */
  init({ windowMs, limit, skipFailedRequests, skipSuccessfulRequests }: MiddlewareOptions): void {
    this.counts = typeof limit !== "number";
    const units = this.counts ? ALL : (limit as number);
    this.windowMs = windowMs;
    this.limiter = limiterOf({ ...this.options, prefix: this.prefix, limit: units, window: windowMs });
    this.decrements = Boolean(skipFailedRequests || skipSuccessfulRequests);
  }

  async increment(key: string): Promise<Usage> {
    const limiter = this.ready();
    const hit: Hit = { key, since: performance.now(), granted: false };
    if (this.decrements) this.hits.enterWith(hit); // before the first await: in the caller's context
    const decision = await limiter.allow(key);
    hit.granted = decision.granted > 0;
    return { totalHits: hit.granted ? used(decision) : decision.limit + 1, resetTime: this.resetTime(decision) };
  }

  /** Give back the unit of a request that shall not count. A denied request has none. */
  async decrement(key: string): Promise<void> {
    const hit = this.hits.getStore();
    const isKnown = hit?.key === key;
    if (isKnown && !hit.granted) return;
    const limiter = this.ready();
    // Its own unit, and not a younger one. The refund's way to the server adds to the age.
    const age = isKnown ? { age: Math.ceil(performance.now() - hit.since) + limiter.settings.timeout } : {};
    await limiter.refund(key, 1, age).catch(() => {}); // the unit stays counted; nobody waits for the result
  }

  /** The used units of a key; undefined when there are none. */
  async get(key: string): Promise<Usage | undefined> {
    const decision = await this.ready().peek(key);
    if (decision.resetAfter === 0) return undefined;
    return { totalHits: used(decision), resetTime: this.resetTime(decision) };
  }

  async resetKey(key: string): Promise<void> {
    await this.ready().reset(key);
  }

  shutdown(): void {
    this.limiter?.close();
  }

  /** For a denial, when the same request is granted: the middleware makes Retry-After of it. */
  private resetTime({ granted, retryAfter, resetAfter }: Decision): Date {
    const wait = granted > 0 ? resetAfter : retryAfter;
    return new Date(Date.now() + (wait ?? this.windowMs));
  }

  private ready(): Limiter | BudgetLimiter {
    if (!this.limiter) throw new Error("init of the store was not called");
    return this.limiter;
  }
}

/** The used units, including this request; 1 when unknown. */
function used({ limit, remaining = limit - 1 }: Decision): number {
  return limit - remaining;
}
