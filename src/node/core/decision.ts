/** What a limiter answers. */

import { type HeaderOptions, headersOf, type Policy } from "./headers.js";

/**
 * Who decided: the server; a denial that was known, or a cost above the limit ("cache"); `onFailure` ("failure"); or
 * a window of this process, for a limiter of the mode "local".
 */
export type Source = "server" | "cache" | "failure" | "local";

/** The five fields of a reply, as far as they are known. */
export type Told = readonly [
  granted: number,
  limit: number,
  remaining?: number | undefined,
  retryAfter?: number | undefined,
  resetAfter?: number | undefined,
];

/** One decision. All durations are milliseconds. */
export class Decision {
  /** Units granted: the cost, or less where part of it was welcome; 0 is a denial. */
  readonly granted: number;
  /** Units per window. */
  readonly limit: number;
  /** Units still available; undefined where the server was not asked, and nothing else is known. */
  readonly remaining: number | undefined;
  /** ms until the same request would be granted; 0 when it was, −1 when it never can be, undefined when unknown. */
  readonly retryAfter: number | undefined;
  /** ms until nothing counts any more; undefined when unknown. */
  readonly resetAfter: number | undefined;

  constructor(
    [granted, limit, remaining, retryAfter, resetAfter]: Told,
    /** @internal */ readonly policy: Policy,
    /** Who decided. */
    readonly source: Source,
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
}
