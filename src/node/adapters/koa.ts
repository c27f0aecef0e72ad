/** Middleware for Koa. */

import type { Context } from "koa";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, type Verdict } from "./http.js";

export interface KoaOptions extends HttpOptions {
  /** Answers a request that is denied; as a rule with status 429 and a line of text. */
  onDenied?(context: Context, verdict: Verdict): unknown;
}

/** Middleware that lets through what all rules grant. The decision is left in `context.state.rateLimit`. */
export function rateLimit(rules: Rule<Context> | readonly Rule<Context>[], options: KoaOptions = {}) {
  return async (context: Context, next: () => Promise<unknown>): Promise<void> => {
    const verdict = await judge(rules, context, {
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
