/** The common part of the middleware for all frameworks. */

import { isIPv6 } from "node:net";
import type { Decision } from "../core/decision.js";
import { flag, integer, shown } from "../core/duration.js";
import type { HeaderOptions } from "../core/headers.js";
import { requested } from "../core/options.js";
import { allowAll, type Decisions, type Share } from "../limiters/all-of.js";
import { type Hold, HoldLimiter, type HoldOptions } from "../limiters/hold.js";
import { Limits } from "../limiters/limits.js";
import { Limiter } from "../limiters/rate.js";

/** One limit for requests. */
export interface Rule<Request> {
  /** The limiter, or the one for this request: `limiter.with({ limit })` is another limit of the same keys. */
  readonly limiter: Limiter | Limits | ((request: Request) => Limiter | Limits | Promise<Limiter | Limits>);
  /** The key of a request; by default the client's address. Without a key, the request is not limited. */
  readonly key?: (request: Request) => string | undefined | Promise<string | undefined>;
  /** The units of a request; 1 by default. */
  readonly cost?: number | ((request: Request) => number | Promise<number>);
  /** The limited methods, in upper or lower case; GET includes HEAD. All by default. */
  readonly methods?: readonly string[];
  /** Requests match only methods in capitals, and GET does not include HEAD. */
  readonly methodExact?: boolean;
}

/** A limit of requests that are under way at once. */
export interface HoldRule<Request> extends Omit<Rule<Request>, "limiter"> {
  readonly limiter: HoldLimiter | ((request: Request) => HoldLimiter | Promise<HoldLimiter>);
}

/** How to read a framework's requests. */
export interface Reading<Request> {
  method(request: Request): string;
  address(request: Request): string | undefined;
}

/** The decision for a request. */
export type Verdict = Decision | Decisions;

export interface HttpOptions {
  /** The headers of responses; false: none. */
  readonly headers?: HeaderOptions | false;
}

/** The first 96 bits of IPv6 addresses that stand for those of IPv4. */
const STANDS_FOR_IPV4 = new Set(["0:0:0:0:0:ffff", "64:ff9b:0:0:0:0"]);

/** The body of a response with status 429. */
export const DENIED = "Too many requests, please try again later.";

const RULE = new Set(["limiter", "key", "cost", "methods", "methodExact"]);

/** Rules of rates, which are checked when the middleware is made; also its options, of which it has `names`. */
export function rulesOf<Request>(
  rules: Rule<Request> | readonly Rule<Request>[],
  options: object = {},
  names: readonly string[] = ["headers", "onDenied"],
): readonly Rule<Request>[] {
  const list = Array.isArray(rules) ? (rules as readonly Rule<Request>[]) : [rules as Rule<Request>];
  if (list.length === 0) throw new TypeError("there must be a rule: give one such as { limiter }");
  for (const rule of list) checkRule(rule, "a Limiter or Limits", Limiter, Limits);
  requested(options, new Set(names));
  const { onDenied } = options as { onDenied?: unknown };
  if (onDenied !== undefined) functionOf(onDenied, "onDenied");
  return list;
}

/** The same for a rule of what is under way at once. */
export function holdRuleOf<Request>(rule: HoldRule<Request>, options: object = {}): HoldRule<Request> {
  checkRule(rule, "a HoldLimiter", HoldLimiter);
  requested(options, new Set(["wait", "onDenied"]));
  return rule;
}

type AnyRule = Pick<Rule<never>, "key" | "cost" | "methods" | "methodExact"> & { readonly limiter: unknown };
type Kind = abstract new (...words: never[]) => unknown;

function checkRule(rule: AnyRule, what: string, ...kinds: Kind[]): void {
  const isLimiter = kinds.some((kind) => rule instanceof kind);
  if (typeof rule !== "object" || rule === null || isLimiter) {
    throw new TypeError(`a rule must be an object such as { limiter, key }, not ${isLimiter ? what : shown(rule)}`);
  }
  const { limiter, key, cost = 1, methods = [], methodExact = false } = requested(rule, RULE);
  if (typeof limiter !== "function" && !kinds.some((kind) => limiter instanceof kind)) {
    throw new TypeError(`limiter must be ${what}, or a function of the request, not ${shown(limiter)}`);
  }
  if (key !== undefined) functionOf(key, "key");
  if (typeof cost !== "function") integer(cost, "cost", 1);
  if (!Array.isArray(methods) || methods.some((one) => typeof one !== "string")) {
    throw new TypeError(`methods must be a list of texts, not ${shown(methods)}`);
  }
  flag(methodExact, "methodExact");
}

function functionOf(value: unknown, what: string): void {
  if (typeof value !== "function") throw new TypeError(`${what} must be a function, not ${shown(value)}`);
}

/** Decide a request by all rules that have a key for it, at once; null where none has. */
export async function judge<Request>(
  rules: readonly Rule<Request>[],
  request: Request,
  { method, address }: Reading<Request>,
): Promise<Verdict | null> {
  const shares: Required<Share>[] = [];
  for (const rule of rules) {
    if (!limitsMethod(rule, method(request))) continue;
    const { limiter, key = address, cost = 1 } = rule;
    const name = await key(request);
    if (name === undefined) continue;
    const found = typeof limiter === "function" ? await limiter(request) : limiter;
    const units = typeof cost === "function" ? await cost(request) : cost;
    if (found instanceof Limits) shares.push(...found.shares(name, units));
    else shares.push({ limiter: found, key: name, cost: units });
  }
  const [first] = shares;
  if (!first) return null;
  return shares.length > 1 ? allowAll(shares) : first.limiter.allow(first.key, { cost: first.cost });
}

/** Take a place for a request, if the rule has a key for it; else null. */
export async function holdFor<Request>(
  rule: HoldRule<Request>,
  request: Request,
  { method, address }: Reading<Request>,
  options: Omit<HoldOptions, "cost"> = {},
): Promise<Hold | null> {
  if (!limitsMethod(rule, method(request))) return null;
  const { limiter, key = address, cost = 1 } = rule;
  const name = await key(request);
  if (name === undefined) return null;
  const holds = typeof limiter === "function" ? await limiter(request) : limiter;
  return holds.ofRequests.hold(name, { ...options, cost: typeof cost === "function" ? await cost(request) : cost });
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

/** The headers of a response. */
export function headersFor(verdict: Verdict, { headers = {} }: HttpOptions): Record<string, string> {
  return headers === false ? {} : verdict.headers(headers);
}

/**
 * A client's address as a key. Of an IPv6 address it is the network of 64 bits, within which a client may take any
 * address; of one that stands for an IPv4 address, mapped or behind NAT64 (RFC 6052), that address.
 */
export function addressKey(address: string): string {
  const bare = address.replace(/%.*$/, "");
  if (!isIPv6(bare)) return address;
  const [head = "", tail] = new URL(`http://[${bare}]`).hostname.slice(1, -1).split("::");
  const groups = head === "" ? [] : head.split(":");
  const after = tail === undefined || tail === "" ? [] : tail.split(":");
  const all = [...groups, ...Array(8 - groups.length - after.length).fill("0"), ...after];
  if (STANDS_FOR_IPV4.has(all.slice(0, 6).join(":"))) {
    const [high, low] = all.slice(6).map((group) => Number.parseInt(group, 16)) as [number, number];
    return [high >> 8, high & 255, low >> 8, low & 255].join(".");
  }
  const network = all.slice(0, 4).join(":");
  return `${network.replace(/(^|:)0(:0)*$/, "")}::/64`;
}
