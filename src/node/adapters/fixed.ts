/** Fixed windows, for the stores of frameworks. */

import { flag } from "../core/duration.js";
import { BudgetLimiter } from "../limiters/budget.js";
import { Limiter, type LimiterOptions } from "../limiters/rate.js";

/** A limit that nobody reaches, and that every client library reads exactly: node-redis does not beyond 2^53 − 58. */
export const ALL = 10 ** 15;

export interface FixedOptions {
  /**
   * Fixed windows, as most frameworks' own stores have them: all of the limit comes back a window after a client's
   * first request. Without it windows slide.
   */
  readonly fixed?: boolean;
}

/** A limiter whose windows slide, unless they are to be fixed. */
export function limiterOf({ fixed = false, ...options }: LimiterOptions & FixedOptions): Limiter | BudgetLimiter {
  return flag(fixed, "fixed") ? new BudgetLimiter(options) : new Limiter(options);
}
