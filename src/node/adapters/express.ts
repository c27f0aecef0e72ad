/** Middleware for Express and compatible frameworks. */

import type { Request, Response } from "express";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, type Verdict } from "./http.js";

export interface ExpressOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(request: Request, response: Response, next: Next, verdict: Verdict): unknown;
}

type Next = (error?: unknown) => void;

/** Middleware that passes a request if all rules grant it. The decision is in `response.locals.rateLimit`. */
export function rateLimit(rules: Rule<Request> | readonly Rule<Request>[], options: ExpressOptions = {}) {
  return async (request: Request, response: Response, next: Next): Promise<void> => {
    try {
      const verdict = await judge(rules, request, {
        method: ({ method }) => method,
        address: ({ ip }) => (ip === undefined ? undefined : addressKey(ip)),
      });
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
