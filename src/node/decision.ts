/** What a limiter answers, and how HTTP says it. */

import type { Reply } from "./window.js";

/** What a decision was about, for its headers. */
export interface Policy {
  /** The name in the headers `RateLimit` and `RateLimit-Policy`. */
  readonly name: string;
  /** The window, in ms. */
  readonly window: number;
}

export interface HeaderOptions {
  /** Add `X-RateLimit-Limit`, `-Remaining` and `-Reset`. */
  readonly legacy?: boolean;
}

/** One decision. All durations are milliseconds. */
export class Decision {
  /** Units granted: the cost, or less where part of it was welcome; 0 is a denial. */
  readonly granted: number;
  /** Units per window. */
  readonly limit: number;
  /** Units still available. */
  readonly remaining: number;
  /** ms until the same request would be granted; 0 when it was, −1 when it never can be. */
  readonly retryAfter: number;
  /** ms until nothing counts any more. */
  readonly resetAfter: number;

  constructor(
    [granted, limit, remaining, retryAfter, resetAfter]: Reply,
    private readonly policy: Policy,
    /** Whether this was decided without the server. */
    readonly local: boolean,
  ) {
    this.granted = granted;
    this.limit = limit;
    this.remaining = remaining;
    this.retryAfter = retryAfter;
    this.resetAfter = resetAfter;
  }

  /** The headers of a response. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return headersOf([this], this, options);
  }

  /** @internal The item of this decision in `RateLimit-Policy`, and in `RateLimit`. */
  get items(): { policy: string; state: string } {
    const name = `"${this.policy.name.replace(/["\\]/g, "\\$&")}"`;
    return {
      policy: `${name};q=${this.limit};w=${seconds(this.policy.window)}`,
      state: `${name};r=${this.remaining};t=${seconds(this.resetAfter)}`,
    };
  }
}

/** The headers of a response to which limits apply. The older ones have room for one: that of which least remains. */
export function headersOf(
  decisions: readonly Decision[],
  { granted, retryAfter }: { readonly granted: number | boolean; readonly retryAfter: number },
  { legacy = false }: HeaderOptions = {},
): Record<string, string> {
  const headers: Record<string, string> = {
    "RateLimit-Policy": decisions.map(({ items }) => items.policy).join(", "),
    RateLimit: decisions.map(({ items }) => items.state).join(", "),
  };
  if (legacy) {
    const { limit, remaining, resetAfter } = decisions.reduce((a, b) => (b.remaining < a.remaining ? b : a));
    headers["X-RateLimit-Limit"] = String(limit);
    headers["X-RateLimit-Remaining"] = String(remaining);
    headers["X-RateLimit-Reset"] = String(Math.floor(Date.now() / 1000) + seconds(resetAfter));
  }
  if (!granted && retryAfter >= 0) headers["Retry-After"] = String(seconds(retryAfter));
  return headers;
}

/** Whole seconds, rounded up: whoever waits that long does not come too early. */
export function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
