/** HTTP response headers of decisions. */

import { durationText } from "./duration.js";

/** The drafts of the standard headers, by the names of express-rate-limit. */
export type Draft = "draft-6" | "draft-7" | "draft-8";

export interface HeaderOptions {
  /** The draft of `RateLimit` and `RateLimit-Policy`, by default "draft-8"; false: no such headers. */
  readonly standard?: Draft | false;
  /** Add `X-RateLimit-Limit`, `-Remaining` and `-Reset`. */
  readonly legacy?: boolean;
}

/** The policy of a decision, for its headers. */
export interface Policy {
  /** The name in the headers `RateLimit` and `RateLimit-Policy`. */
  readonly name: string;
  /** The window, in ms. */
  readonly window: number;
}

/** The fields of a decision that headers show. */
export interface LimitState {
  readonly policy: Policy;
  readonly limit: number;
  readonly remaining: number | undefined;
  readonly resetAfter: number | undefined;
}

type Headers = Record<string, string>;

/** A name of its own for each policy of a header: those that are alike end in the window, then in a number. */
export function policyNames(policies: readonly Policy[]): string[] {
  const names = new Set<string>();
  for (const { name, window } of policies) {
    const isAlike = policies.filter((other) => other.name === name).length > 1;
    const own = isAlike ? `${name}-${durationText(window)}` : name;
    let shown = own;
    for (let number = 2; names.has(shown); number++) shown = `${own}-${number}`;
    names.add(shown);
  }
  return [...names];
}

/** A limit with known remaining units. */
interface Known extends LimitState {
  readonly remaining: number;
  readonly resetAfter: number;
}

/** The headers of a response to which limits apply. Older ones show only the limit with the fewest remaining units. */
export function headersOf(
  decisions: readonly LimitState[],
  { granted, retryAfter }: { readonly granted: number | boolean; readonly retryAfter: number | undefined },
  { standard = "draft-8", legacy = false }: HeaderOptions = {},
): Headers {
  const known = decisions.filter(isKnown).sort((a, b) => a.remaining - b.remaining);
  const headers: Headers = standard === false ? {} : DRAFTS[standard](decisions, known);
  const [least] = known;
  if (legacy && least) {
    headers["X-RateLimit-Limit"] = String(least.limit);
    headers["X-RateLimit-Remaining"] = String(least.remaining);
    headers["X-RateLimit-Reset"] = String(Math.floor(Date.now() / 1000) + seconds(least.resetAfter));
  }
  if (!granted && retryAfter !== undefined && retryAfter >= 0) headers["Retry-After"] = String(seconds(retryAfter));
  return headers;
}

const DRAFTS: Record<Draft, (decisions: readonly LimitState[], known: readonly Known[]) => Headers> = {
  "draft-6": (decisions, [least]) => ({
    "RateLimit-Policy": decisions.map(brief).join(", "),
    ...(least && {
      "RateLimit-Limit": String(least.limit),
      "RateLimit-Remaining": String(least.remaining),
      "RateLimit-Reset": String(seconds(least.resetAfter)),
    }),
  }),
  "draft-7": (decisions, [least]) => ({
    "RateLimit-Policy": decisions.map(brief).join(", "),
    ...(least && {
      RateLimit: `limit=${least.limit}, remaining=${least.remaining}, reset=${seconds(least.resetAfter)}`,
    }),
  }),
  "draft-8": (decisions) => {
    const names = policyNames(decisions.map(({ policy }) => policy)).map(quoted);
    const states = decisions.flatMap((one, at) =>
      isKnown(one) ? [`${names[at]};r=${one.remaining};t=${seconds(one.resetAfter)}`] : [],
    );
    return {
      "RateLimit-Policy": decisions
        .map(({ policy, limit }, at) => `${names[at]};q=${limit};w=${seconds(policy.window)}`)
        .join(", "),
      ...(states.length > 0 && { RateLimit: states.join(", ") }),
    };
  },
};

function brief({ limit, policy }: LimitState): string {
  return `${limit};w=${seconds(policy.window)}`;
}

function isKnown(decision: LimitState): decision is Known {
  return decision.remaining !== undefined && decision.resetAfter !== undefined;
}

/** A string in a structured field: printable ASCII only. */
function quoted(name: string): string {
  return `"${name.replace(/[^ -~]/g, "?").replace(/["\\]/g, "\\$&")}"`;
}

/** Whole seconds, rounded up, so that a client never comes too early. */
export function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
