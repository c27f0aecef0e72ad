/** Decisions of limiters. */

import { type HeaderOptions, headersOf, type Policy } from "./headers.js";

/**
 * Where a decision was made: by the server; from a known denial or a cost above the limit ("cache"); by `onFailure`
 * ("failure"); or in this process, in the mode "local".
 */
export type Source = "server" | "cache" | "failure" | "local";

/** The five fields of a reply, as far as they are known. */
export type KnownReply = readonly [
  granted: number,
  limit: number,
  remaining?: number | undefined,
  retryAfter?: number | undefined,
  resetAfter?: number | undefined,
];

/** The server's `retry_after` where a request can never be granted. */
export const NEVER = -1;

/** One decision. All durations are milliseconds. */
export class Decision {
  /** Granted units: the cost, or with `partial` a part of it; 0 is a denial. */
  readonly granted: number;
  /** Units per window. */
  readonly limit: number;
  /** Units still available; undefined when unknown. */
  readonly remaining: number | undefined;
  /** ms until the same request is granted; 0 when it was, undefined when unknown or never. */
  readonly retryAfter: number | undefined;
  /** Whether the same request can never be granted: its cost is above the limit. */
  readonly never: boolean;
  /** ms until all units have expired; undefined when unknown. */
  readonly resetAfter: number | undefined;

  constructor(
    reply: KnownReply,
    /** @internal */ readonly policy: Policy,
    /** Where the decision was made. */
    readonly source: Source,
  ) {
    this.granted = reply[0];
    this.limit = reply[1];
    this.remaining = reply[2];
    this.never = reply[3] === NEVER;
    this.retryAfter = this.never ? undefined : reply[3];
    this.resetAfter = reply[4];
  }

  /** The headers of a response. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return headersOf([this], this, options);
  }
}
