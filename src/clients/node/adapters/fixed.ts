/** Sliding or fixed windows, for the stores of frameworks. */

import { flag } from "../core/duration.js";
import { BudgetLimiter } from "../limiters/budget.js";
import { Limiter, type LimiterOptions } from "../limiters/rate.js";

/** A limit that is never reached, and that every client library reads exactly: node-redis does up to 2^53 − 58. */
export const ALL = 10 ** 15;

export interface FixedOptions {
  /**
   * Fixed windows, as in most frameworks' own stores: all units are free again a window after a client's first request.
   * By default windows slide.
   */
  readonly fixed?: boolean;
}

/** A limiter with sliding or, if `fixed`, fixed windows. */
export function limiterOf({ fixed = false, ...options }: LimiterOptions & FixedOptions): Limiter | BudgetLimiter {
  return flag(fixed, "fixed") ? new BudgetLimiter(options) : new Limiter(options);
}
