/** A storage for the package @nestjs/throttler. */

import type { BudgetLimiter } from "../limiters/budget.js";
import { Limiter, type LimiterOptions } from "../limiters/rate.js";
import { type FixedOptions, limiterOf } from "./fixed.js";

/** A limiter's options. The limit and the window come from the throttler. */
export type StorageOptions = Omit<LimiterOptions, "limit" | "window" | "resolution" | "name"> & FixedOptions;

/** The result for the guard; times in whole seconds. */
export interface ThrottlerRecord {
  totalHits: number;
  timeToExpire: number;
  isBlocked: boolean;
  timeToBlockExpire: number;
}

/**
 * A storage for `ThrottlerModule`.
 *
 * @example
 * import { ThrottlerModule } from "@nestjs/throttler";
 * import { SwlimitThrottlerStorage } from "swlimit/nestjs";
 *
 * const throttlers = [{ ttl: 60_000, limit: 100 }];
 * const module = ThrottlerModule.forRoot({ throttlers, storage: new SwlimitThrottlerStorage({ client }) });
 */
export class SwlimitThrottlerStorage {
  private readonly limiter: Limiter | BudgetLimiter;

  constructor(options: StorageOptions) {
    this.limiter = limiterOf({ prefix: "swlimit:", ...options, limit: 1, window: 1000 });
  }

  /**
   * Called by the guard. A block duration other than the window's length, which is Nest's default, blocks the key from
   * the first denial on; fixed windows refuse it.
   */
  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<ThrottlerRecord> {
    const block = blockDuration > 0 && blockDuration !== ttl ? { block: blockDuration } : {};
    if (block.block && !(this.limiter instanceof Limiter)) throw new TypeError("fixed windows have no `blockDuration`");
    const limiter = this.limiter.with({ limit, window: ttl });
    const { granted, remaining, retryAfter, resetAfter = ttl } = await limiter.allow(`${throttlerName}:${key}`, block);
    const wait = retryAfter ?? ttl;
    return {
      totalHits: granted > 0 ? limit - (remaining ?? limit - 1) : limit + 1,
      timeToExpire: Math.ceil(resetAfter / 1000),
      isBlocked: granted === 0,
      timeToBlockExpire: granted > 0 ? 0 : Math.ceil(wait / 1000),
    };
  }

  onApplicationShutdown(): void {
    this.limiter.close();
  }
}
