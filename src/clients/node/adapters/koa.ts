/** Middleware for Koa. */

import type { Context } from "koa";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, rulesOf, type Verdict } from "./http.js";

export interface KoaOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(context: Context, verdict: Verdict): unknown;
}

/**
 * Middleware that passes a request if all rules grant it. The decision is in `context.state.rateLimit`.
 *
 * @example
 * import Koa from "koa";
 * import { rateLimit } from "swlimit/koa";
 *
 * const limiter = new Limiter({ client, limit: 100, window: "1m" });
 * const app = new Koa();
 * app.use(rateLimit({ limiter, methods: ["POST"] }));
 *
 * @throws TypeError when a rule or an option is wrong.
 */
export function rateLimit(rules: Rule<Context> | readonly Rule<Context>[], options: KoaOptions = {}) {
  const list = rulesOf(rules, options);
  return async (context: Context, next: () => Promise<unknown>): Promise<void> => {
    const verdict = await judge(list, context, {
      method: ({ method }) => method,
      address: ({ ip }) => addressKey(ip),
    });
    if (verdict) {
      context.state.rateLimit = verdict;
      context.set(headersFor(verdict, options));
    }
    if (!verdict || verdict.granted) {
      await next();
      return;
    }
    context.status = 429;
    if (options.onDenied) await options.onDenied(context, verdict);
    else context.body = DENIED;
  };
}
