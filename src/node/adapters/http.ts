/** What the middleware for all frameworks has in common. */

import { isIPv6 } from "node:net";
import type { Decision } from "../core/decision.js";
import type { HeaderOptions } from "../core/headers.js";
import { allowAll, type Decisions } from "../limiters/all-of.js";
import type { Limiter } from "../limiters/rate.js";

/** One limit that requests are to keep. */
export interface Rule<Request> {
  /** The limiter, or the one for this request: `limiter.with({ limit })` is another limit of the same keys. */
  readonly limiter: Limiter | ((request: Request) => Limiter | Promise<Limiter>);
  /** Whose requests are counted; as a rule, the client's address. Without a key, the request is not limited. */
  readonly key?: (request: Request) => string | undefined | Promise<string | undefined>;
  /** Units that the request takes, 1 as a rule. */
  readonly cost?: number | ((request: Request) => number | Promise<number>);
  /** The methods that are limited, in any case; GET limits HEAD, too. All, if there are none. */
  readonly methods?: readonly string[];
  /** Methods of requests are compared with those in capitals, and GET does not limit HEAD. */
  readonly methodExact?: boolean;
}

/** How a framework tells what a request is. */
export interface Reading<Request> {
  method(request: Request): string;
  address(request: Request): string | undefined;
}

/** What a request has been told. */
export type Verdict = Decision | Decisions;

export interface HttpOptions {
  /** Which headers responses have; false: none. */
  readonly headers?: HeaderOptions | false;
}

/** The body of a response with status 429. */
export const DENIED = "Too many requests, please try again later.";

/** Decide a request by all rules that have a key for it, at once; null where none has. */
export async function judge<Request>(
  rules: Rule<Request> | readonly Rule<Request>[],
  request: Request,
  { method, address }: Reading<Request>,
): Promise<Verdict | null> {
  const list: readonly Rule<Request>[] = "limiter" in rules ? [rules as Rule<Request>] : rules;
  const shares = [];
  for (const rule of list) {
    if (!limitsMethod(rule, method(request))) continue;
    const { limiter, key = address, cost = 1 } = rule;
    const name = await key(request);
    if (name === undefined) continue;
    shares.push({
      limiter: typeof limiter === "function" ? await limiter(request) : limiter,
      key: name,
      cost: typeof cost === "function" ? await cost(request) : cost,
    });
  }
  const [first] = shares;
  if (!first) return null;
  return shares.length > 1 ? allowAll(shares) : first.limiter.allow(first.key, { cost: first.cost });
}

/** Whether a rule limits requests with this method. */
export function limitsMethod(
  { methods = [], methodExact = false }: Pick<Rule<never>, "methods" | "methodExact">,
  method: string,
): boolean {
  const named = methods.map((one) => one.toUpperCase());
  if (named.length === 0 || methodExact) return named.length === 0 || named.includes(method);
  const folded = method.toUpperCase();
  // GET's handler answers HEAD in most frameworks.
  return named.includes(folded) || (folded === "HEAD" && named.includes("GET"));
}

/** The headers that say it. */
export function headersFor(verdict: Verdict, { headers = {} }: HttpOptions): Record<string, string> {
  return headers === false ? {} : verdict.headers(headers);
}

/** A client's address as a key: of IPv6 the network of 64 bits, within which a client may take any address. */
export function addressKey(address: string): string {
  const v4 = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  if (v4 !== undefined) return v4;
  const bare = address.replace(/%.*$/, "");
  if (!isIPv6(bare)) return address;
  const [head = "", tail] = new URL(`http://[${bare}]`).hostname.slice(1, -1).split("::");
  const groups = head === "" ? [] : head.split(":");
  const after = tail === undefined || tail === "" ? [] : tail.split(":");
  const all = [...groups, ...Array(8 - groups.length - after.length).fill("0"), ...after];
  return `${all.slice(0, 4).join(":")}::/64`;
}
