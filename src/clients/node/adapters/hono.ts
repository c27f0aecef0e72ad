/** Middleware for Hono. */

import type { Context } from "hono";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, rulesOf, type Verdict } from "./http.js";

export interface HonoOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(context: Context, verdict: Verdict): Response | Promise<Response>;
}

/**
 * Middleware that passes a request if all rules grant it.
 *
 * @example
 * import { Hono } from "hono";
 * import { rateLimit } from "swlimit/hono";
 *
 * const limiter = new Limiter({ client, limit: 100, window: "1m" });
 * const app = new Hono();
 * app.use(rateLimit({ limiter, key: (context) => context.req.header("x-api-key") }));
 *
 * @throws TypeError when a rule or an option is wrong.
 */
export function rateLimit(rules: Rule<Context> | readonly Rule<Context>[], options: HonoOptions = {}) {
  const list = rulesOf(rules, options);
  return async (context: Context, next: () => Promise<void>): Promise<Response | undefined> => {
    const verdict = await judge(list, context, { method: ({ req }) => req.method, address: remoteAddress });
    if (!verdict) {
      await next();
      return undefined;
    }
    for (const [name, value] of Object.entries(headersFor(verdict, options))) context.header(name, value);
    if (verdict.granted) {
      await next();
      return undefined;
    }
    return options.onDenied ? options.onDenied(context, verdict) : context.text(DENIED, 429);
  };
}

/** The client's address as @hono/node-server knows it. With other servers, each rule needs a `key`. */
function remoteAddress({ env }: Context): string {
  const { incoming } = (env ?? {}) as { incoming?: { socket?: { remoteAddress?: string } } };
  const address = incoming?.socket?.remoteAddress;
  if (address === undefined)
    throw new TypeError("give each rule a `key`: the client's address is known with @hono/node-server only");
  return addressKey(address);
}
