/** A store for the packages express-rate-limit and hono-rate-limiter. */

import { AsyncLocalStorage } from "node:async_hooks";
import type { Decision } from "./decision.js";
import { Limiter, type LimiterOptions } from "./limiter.js";

/** As a limiter's; the limit and the window are those of the middleware. */
export type StoreOptions = Omit<LimiterOptions, "limit" | "window" | "name">;

/** What is used of the middleware's options. */
export interface MiddlewareOptions {
  readonly windowMs: number;
  readonly limit: unknown;
  readonly skipFailedRequests?: boolean;
  readonly skipSuccessfulRequests?: boolean;
}

/** How much a client has used. */
export interface Usage {
  readonly totalHits: number;
  readonly resetTime: Date;
}

/** What became of the request that this piece of asynchronous work belongs to. */
interface Hit {
  readonly key: string;
  readonly since: number;
  granted: boolean;
}

export class SwlimitStore {
  /** Counts are shared with other processes. */
  readonly localKeys = false;
  readonly prefix: string;
  private limiter: Limiter | null = null;
  private refusal = new Error("init of the store was not called");
  /**
   * The middleware decrements by key, whether the request was counted or denied; and what was not counted must not be
   * given back. Which request it means is known by the asynchronous context that both calls are made in.
   */
  private readonly hits: AsyncLocalStorage<Hit> = new AsyncLocalStorage();
  private decrements = false;

  constructor(private readonly options: StoreOptions) {
    this.prefix = options.prefix ?? "swlimit:";
  }

  /** Called by the middleware with its options. */
  init({ windowMs, limit, skipFailedRequests, skipSuccessfulRequests }: MiddlewareOptions): void {
    if (typeof limit !== "number") {
      // The middleware asks its function only after the store has decided. It logs what is thrown here; so that it
      // does not stay at that, every request fails, too.
      this.refusal = new TypeError(
        "SwlimitStore decides by the limit, so it must be a number and no function. Limits that depend on the request " +
          "are what the middleware of swlimit/express and swlimit/hono is for.",
      );
      throw this.refusal;
    }
    this.limiter = new Limiter({ ...this.options, prefix: this.prefix, limit, window: windowMs });
    this.decrements = Boolean(skipFailedRequests || skipSuccessfulRequests);
  }

  async increment(key: string): Promise<Usage> {
    const limiter = this.ready();
    const hit: Hit = { key, since: performance.now(), granted: false };
    if (this.decrements) this.hits.enterWith(hit); // before the first await: in the caller's context
    const decision = await limiter.allow(key);
    hit.granted = decision.granted > 0;
    const { limit, remaining } = decision;
    return { totalHits: hit.granted ? limit - remaining : limit + 1, resetTime: this.resetTime(decision) };
  }

  /** Give back the unit of a request that is not to count; of one that was denied, there is none. */
  async decrement(key: string): Promise<void> {
    const hit = this.hits.getStore();
    const isKnown = hit?.key === key;
    if (isKnown && !hit.granted) return;
    const limiter = this.ready();
    // Its own unit, and not a younger one. The refund's way to the server counts as age, too.
    const age = isKnown ? { age: Math.ceil(performance.now() - hit.since) + limiter.timeout } : {};
    await limiter.refund(key, 1, age).catch(() => {}); // the unit goes on counting; nobody waits to hear of it
  }

  /** What a key has used, without counting; undefined where nothing is counted. */
  async get(key: string): Promise<Usage | undefined> {
    const decision = await this.ready().peek(key);
    if (decision.resetAfter === 0) return undefined;
    return { totalHits: decision.limit - decision.remaining, resetTime: this.resetTime(decision) };
  }

  async resetKey(key: string): Promise<void> {
    await this.ready().reset(key);
  }

  shutdown(): void {
    this.limiter?.close();
  }

  /** When the same request would be granted, if it was denied: the middleware makes Retry-After of it. */
  private resetTime({ granted, retryAfter, resetAfter }: Decision): Date {
    const never = this.ready().quota.window;
    return new Date(Date.now() + (granted > 0 ? resetAfter : retryAfter < 0 ? never : retryAfter));
  }

  private ready(): Limiter {
    if (!this.limiter) throw this.refusal;
    return this.limiter;
  }
}
