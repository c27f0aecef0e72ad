/**
 * A limiter for edge functions and middleware of Next.js, which have no sockets: it asks swlimitd by `fetch`, and needs
 * nothing of Node.js.
 */

import { Decision, type KnownReply, NEVER, type Source } from "../core/decision.js";
import { callerDeadline, type Duration, flag, integer, milliseconds, shown } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { clock, LocalWindows, withoutServer } from "../core/local-windows.js";
import {
  type QuotaOptions,
  quotaLike,
  quotaOf,
  type RateOptions,
  requested,
  type Settings,
  settingsOf,
} from "../core/options.js";
import { reasonOfError } from "../core/reasons.js";
import type { Demand, Quota, Reply } from "../core/window.js";

export interface HttpLimiterOptions extends Omit<RateOptions, "mode" | "maxWaiting"> {
  /** The URL of swlimitd's HTTP API, such as "https://limits.example:8443". */
  readonly url: string | URL;
  /** One of swlimitd's tokens. */
  readonly token?: string | undefined;
  /** Replaces the global `fetch`. */
  readonly fetch?: typeof globalThis.fetch;
}

export interface HttpAllowOptions {
  /** Requested units: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Grant as much of the cost as fits. */
  readonly partial?: boolean;
  /** When denied, block the key for so long. */
  readonly block?: Duration;
  /** How much longer the caller waits. A little earlier, `onFailure` decides. */
  readonly deadline?: Duration;
  /** Ends the wait without a decision. */
  readonly signal?: AbortSignal | undefined;
}

const PEEKED = new Set(["cost", "partial", "deadline", "signal"]);
const ALLOWED = new Set([...PEEKED, "block"]);

/** An answer of swlimitd. */
interface Answer {
  readonly granted: number;
  readonly limit: number;
  readonly remaining?: number;
  readonly retry_after?: number;
  readonly never?: boolean;
  readonly reset_after?: number;
  readonly source: Source;
  readonly error?: string;
}

/**
 * A limiter that asks swlimitd. While that does not answer within `timeout`, `onFailure` decides.
 *
 * @example
 * import { HttpLimiter } from "swlimit/edge";
 *
 * const limiter = new HttpLimiter({ url: "https://limits.example:8443", limit: 100, window: "1m" });
 * const { granted, retryAfter } = await limiter.allow("user:1");
 *
 * @throws TypeError or RangeError when an option is wrong.
 */
export class HttpLimiter {
  /** The quota; durations in ms. */
  readonly quota: Quota;
  readonly settings: Settings;
  private readonly base: string;
  private readonly headers: Record<string, string>;
  private readonly fetch: typeof globalThis.fetch;
  private readonly windows: LocalWindows;

  constructor({ url, token, fetch = globalThis.fetch, ...options }: HttpLimiterOptions) {
    this.settings = settingsOf(options);
    this.quota = quotaOf(options);
    this.base = new URL("/v1/", url).href;
    this.headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
    this.fetch = fetch;
    this.windows = new LocalWindows(this.settings.maxKeys);
  }

  /** A limiter of the same keys with another quota. */
  with(options: Partial<QuotaOptions>): HttpLimiter {
    return Object.create(this, { quota: { value: quotaLike(this.quota, options), enumerable: true } });
  }

  /** Decide, and count what is granted. */
  allow(key: string, options: HttpAllowOptions = {}): Promise<Decision> {
    return this.decide("allow", key, options);
  }

  /** Decide without counting. */
  peek(key: string, options: Omit<HttpAllowOptions, "block"> = {}): Promise<Decision> {
    return this.decide("peek", key, options);
  }

  private async decide(how: "allow" | "peek", key: string, options: HttpAllowOptions): Promise<Decision> {
    if (typeof key !== "string") throw new TypeError(`key must be a string, not ${shown(key)}`);
    const { cost = 1, partial = false, signal, deadline } = requested(options, how === "peek" ? PEEKED : ALLOWED);
    const block = options.block === undefined ? 0 : milliseconds(options.block, "block");
    const name = this.settings.prefix + key;
    const demand: Demand = { ...this.quota, cost: integer(cost, "cost", 1), partial: flag(partial, "partial") };
    try {
      const left = deadline === undefined ? undefined : callerDeadline(milliseconds(deadline, "deadline", 0));
      const answer = await this.ask(
        how,
        name,
        demand,
        block,
        Math.min(this.settings.timeout, left ?? Infinity),
        signal,
      );
      return this.decision(...answer);
    } catch (error) {
      if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
      const decide = (asked: Demand): Reply => {
        const entry = this.windows.entry(name);
        return how === "peek" ? entry.peek(asked, clock()) : entry.allow(asked, clock(), block);
      };
      return this.decision(withoutServer(this.settings, demand, decide), "failure");
    }
  }

  private async ask(
    how: string,
    key: string,
    { limit, window, resolution, strict, cost, partial }: Demand,
    block: number,
    timeout: number,
    signal: AbortSignal | undefined,
  ): Promise<[KnownReply, Source]> {
    signal?.throwIfAborted();
    const body = {
      ...{ key, limit, window: `${window}ms`, resolution: `${resolution}ms`, cost, strict, partial },
      ...(block > 0 && { block: `${block}ms` }),
    };
    const ends = new AbortController(); // some edge runtimes lack AbortSignal.any
    const abort = () => ends.abort(signal?.reason);
    const timer = setTimeout(() => ends.abort(new Error(`no reply within ${timeout} ms`)), timeout);
    signal?.addEventListener("abort", abort);
    let response: Response;
    let answer: Answer;
    try {
      response = await this.fetch(`${this.base}${how}`, {
        method: "POST",
        headers: this.headers,
        body: JSON.stringify(body),
        signal: ends.signal,
      });
      answer = (await response.json()) as Answer;
    } catch (cause) {
      signal?.throwIfAborted();
      const reason = ends.signal.aborted ? "no_answer" : (reasonOfError(cause) ?? "other");
      throw new UnavailableError(`swlimitd does not answer (${reason})`, reason, { cause });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
    if (response.status === 200 || response.status === 429) {
      const { granted, limit: units, remaining, retry_after, never, reset_after, source } = answer;
      return [[granted, units, remaining, never ? NEVER : retry_after, reset_after], source];
    }
    const error = `swlimitd answers ${response.status}: ${answer.error ?? "no reason"}`;
    throw response.status === 503 ? new UnavailableError(error, "other") : new RefusedError(error);
  }

  private decision(reply: KnownReply, source: Source): Decision {
    return new Decision(reply, { name: this.settings.name, window: this.quota.window }, source);
  }
}
