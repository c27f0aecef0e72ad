/** Middleware for Express and compatible frameworks. */

import type { Request, Response } from "express";
import type { Duration } from "../core/duration.js";
import type { Hold } from "../limiters/hold.js";
import {
  addressKey,
  DENIED,
  type HoldRule,
  type HttpOptions,
  headersFor,
  holdFor,
  holdRuleOf,
  judge,
  type Reading,
  type Rule,
  rulesOf,
  type Verdict,
} from "./http.js";

export interface ExpressOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(request: Request, response: Response, next: Next, verdict: Verdict): unknown;
}

export interface ConcurrencyOptions {
  /** How long a request waits for a place; by default not at all. */
  readonly wait?: Duration;
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(request: Request, response: Response, next: Next, hold: Hold): unknown;
}

type Next = (error?: unknown) => void;

const READING: Reading<Request> = {
  method: ({ method }) => method,
  address: ({ ip }) => (ip === undefined ? undefined : addressKey(ip)),
};

/**
 * Middleware that passes a request if all rules grant it. The decision is in `response.locals.rateLimit`.
 *
 * @example
 * import express from "express";
 * import { rateLimit } from "swlimit/express";
 *
 * const limiter = new Limiter({ client, limit: 100, window: "1m" });
 * const app = express();
 * app.use(rateLimit({ limiter, key: (request) => request.get("x-api-key") }));
 *
 * @throws TypeError when a rule or an option is wrong.
 */
export function rateLimit(rules: Rule<Request> | readonly Rule<Request>[], options: ExpressOptions = {}) {
  const list = rulesOf(rules, options);
  return async (request: Request, response: Response, next: Next): Promise<void> => {
    try {
      const verdict = await judge(list, request, READING);
      if (!verdict) return next();
      response.locals.rateLimit = verdict;
      for (const [name, value] of Object.entries(headersFor(verdict, options))) response.setHeader(name, value);
      if (verdict.granted) return next();
      response.statusCode = 429;
      if (options.onDenied) await options.onDenied(request, response, next, verdict);
      else deny(response);
    } catch (error) {
      next(error);
    }
  };
}

/**
 * Middleware that holds a place for each request until its response has ended or the client has left; for responses
 * that stream. The hold is in `response.locals.hold`.
 *
 * @example
 * import express from "express";
 * import { concurrencyLimit } from "swlimit/express";
 *
 * const limiter = new HoldLimiter({ client, limit: 5 });
 * const app = express();
 * app.get("/stream", concurrencyLimit({ limiter }, { wait: "2s" }), (request, response) => {
 *   response.write("one of five");
 * });
 *
 * @throws TypeError when the rule or an option is wrong.
 */
export function concurrencyLimit(rule: HoldRule<Request>, options: ConcurrencyOptions = {}) {
  const checked = holdRuleOf(rule, options);
  const { wait = 0, onDenied } = options;
  return async (request: Request, response: Response, next: Next): Promise<void> => {
    const left = new AbortController();
    response.once("close", () => left.abort());
    if (response.destroyed) left.abort(); // before the middleware
    try {
      const hold = await holdFor(checked, request, READING, { wait, signal: left.signal });
      if (!hold) return next();
      response.locals.hold = hold;
      if (hold.granted === 0) {
        response.statusCode = 429;
        if (onDenied) await onDenied(request, response, next, hold);
        else deny(response);
        return;
      }
      left.signal.addEventListener("abort", () => void hold.release());
      if (left.signal.aborted) await hold.release();
      else next();
    } catch (error) {
      if (!left.signal.aborted) next(error);
    }
  };
}

function deny(response: Response): void {
  response.setHeader("Content-Type", "text/plain; charset=utf-8");
  response.end(DENIED);
}
