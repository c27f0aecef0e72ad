/** Middleware for Koa. */

import type { Context } from "koa";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, type Verdict } from "./http.js";

export interface KoaOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(context: Context, verdict: Verdict): unknown;
}

/** Middleware that passes a request if all rules grant it. The decision is in `context.state.rateLimit`. */
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
