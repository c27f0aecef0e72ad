/** A hook for Fastify. */

import type { FastifyReply, FastifyRequest } from "fastify";
import { addressKey, DENIED, type HttpOptions, headersFor, judge, type Rule, rulesOf, type Verdict } from "./http.js";

export interface FastifyOptions extends HttpOptions {
  /** Answers a denied request; by default with status 429 and a line of text. */
  onDenied?(request: FastifyRequest, reply: FastifyReply, verdict: Verdict): unknown;
}

/**
 * A hook (`onRequest`, `preHandler`) of all routes or of one: it passes a request if all rules grant it.
 *
 * @example
 * import fastify from "fastify";
 * import { rateLimit } from "swlimit/fastify";
 *
 * const limiter = new Limiter({ client, limit: 100, window: "1m" });
 * const app = fastify();
 * app.addHook("onRequest", rateLimit({ limiter }));
 *
 * @throws TypeError when a rule or an option is wrong.
 */
export function rateLimit(rules: Rule<FastifyRequest> | readonly Rule<FastifyRequest>[], options: FastifyOptions = {}) {
  const list = rulesOf(rules, options);
  return async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    const verdict = await judge(list, request, {
      method: ({ method }) => method,
      address: ({ ip }) => addressKey(ip),
    });
    if (!verdict) return undefined;
    for (const [name, value] of Object.entries(headersFor(verdict, options))) reply.header(name, value);
    if (verdict.granted) return undefined;
    reply.code(429);
    if (options.onDenied) await options.onDenied(request, reply, verdict);
    else reply.send(DENIED);
    return reply;
  };
}
