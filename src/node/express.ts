/** Middleware for Express, and whatever else has its form. */

import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, type Verdict } from "./http.js";

/** What is used of a request. */
export interface ExpressRequest {
  readonly ip?: string | undefined;
}

/** What is used of a response. */
export interface ExpressResponse {
  statusCode: number;
  locals: Record<string, unknown>;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

export interface ExpressOptions extends HttpOptions {
  /** Answers a request that is denied; as a rule with status 429 and a line of text. */
  onDenied?(request: ExpressRequest, response: ExpressResponse, next: Next, verdict: Verdict): unknown;
}

type Next = (error?: unknown) => void;

/** Middleware that lets through what all rules grant. The decision is left in `response.locals.rateLimit`. */
export function rateLimit<Request extends ExpressRequest = ExpressRequest>(
  rules: Rule<Request> | readonly Rule<Request>[],
  options: ExpressOptions = {},
) {
  return async (request: Request, response: ExpressResponse, next: Next): Promise<void> => {
    try {
      const verdict = await judge(rules, request, ({ ip }) => (ip === undefined ? undefined : addressKey(ip)));
      if (!verdict) return next();
      response.locals.rateLimit = verdict;
      for (const [name, value] of Object.entries(headersFor(verdict, options))) response.setHeader(name, value);
      if (verdict.granted) return next();
      response.statusCode = 429;
      if (options.onDenied) await options.onDenied(request, response, next, verdict);
      else {
        response.setHeader("Content-Type", "text/plain; charset=utf-8");
        response.end(DENIED);
      }
    } catch (error) {
      next(error);
    }
  };
}
