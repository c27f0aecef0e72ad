/** Several rates of the same keys, decided at once, and written as a text. */

import type { Client } from "../clients/client.js";
import { withOwnClient } from "../clients/open.js";
import type { Decision } from "../core/decision.js";
import type { Duration } from "../core/duration.js";
import {
  BESIDE_RATE,
  ofUrl,
  type QuotaOptions,
  type RateOptions,
  requested,
  settingsOf,
  type UrlOptions,
  type WaitOptions,
} from "../core/options.js";
import { keyOfRate, type ParsedRate, parseRates } from "../core/rates.js";
import type { ServerState } from "../transport/server-health.js";
import { allowAll, Decisions, type Share } from "./all-of.js";
import { Limiter, type RecordOptions } from "./rate.js";

/** The options of Limits beyond the client and the rates. */
export type LimitsSettings = Omit<RateOptions, Exclude<keyof QuotaOptions, "strict">>;

export interface LimitsOptions extends LimitsSettings {
  /** A client of redis, ioredis, iovalkey or @valkey/valkey-glide, or a function that sends a command with any other. */
  readonly client?: Client | undefined;
  /** Rates such as "100/hour; 5/second". */
  readonly rates: string;
}

export interface LimitsRequest extends WaitOptions {
  /** Requested units of each limit: 1 … 2^53 − 1. */
  readonly cost?: number;
}

const OWN = ["rates", "strict", "mode", "maxWaiting", "maxUntrackedAge", "warmUp", "cold"];
const BESIDE_RATES = new Set([...BESIDE_RATE].filter((name) => name !== "resolution"));
const ASKED = new Set(["cost", "deadline", "signal"]);
const RECORDED = new Set(["cost", "age", "keep"]);

export class Limits {
  /** The limiter of each rate, in the text's order. */
  readonly limiters: readonly [Limiter, ...Limiter[]];
  private readonly prefix: string;

  constructor(options: LimitsOptions) {
    const { prefix, mode } = settingsOf(options, OWN);
    const { rates, ...others } = options;
    if (options.client === undefined && options.mode !== "local") {
      throw new TypeError('Limits needs a client, or mode: "local" to decide in this process alone');
    }
    const parsed = parseRates(rates);
    this.prefix = prefix;
    const limiterOf = (rate: ParsedRate) => new Limiter({ ...others, ...rate, mode, prefix: "" });
    this.limiters = parsed.map(limiterOf) as [Limiter, ...Limiter[]];
  }

  /** Rates on a client of their own, as that of Limiter.fromUrl. */
  static async fromUrl(url: string, rates: string, options: LimitsSettings & UrlOptions = {}): Promise<Limits> {
    const [cluster, others] = ofUrl(options);
    requested(others, BESIDE_RATES);
    const { mode } = others;
    return withOwnClient(url, { cluster, mode }, (client) => new Limits({ ...others, client, rates }));
  }

  /** Decide all at once, and count if all grant: by one command. */
  async allow(key: string, options: LimitsRequest = {}): Promise<Decisions> {
    const { cost = 1, ...wait } = requested(options, ASKED);
    return allowAll(this.shares(key, cost), wait);
  }

  /** Decide without counting. */
  async peek(key: string, options: LimitsRequest = {}): Promise<Decisions> {
    requested(options, ASKED);
    return together(this.ofEach(key, (limiter, name) => limiter.peek(name, options)));
  }

  /** Count, whatever the limits are. */
  async record(key: string, options: Omit<RecordOptions, "block"> = {}): Promise<Decisions> {
    requested(options, RECORDED);
    return together(this.ofEach(key, (limiter, name) => limiter.record(name, options)));
  }

  /** Give back up to so many units of each limit; how many were given back, in order. */
  async refund(key: string, units = 1, options: { readonly age?: Duration } = {}): Promise<number[]> {
    return Promise.all(this.ofEach(key, (limiter, name) => limiter.refund(name, units, options)));
  }

  /** Forget everything about a key. */
  async reset(key: string): Promise<void> {
    await Promise.all(this.ofEach(key, (limiter, name) => limiter.reset(name)));
  }

  /** The state of each server asked so far. */
  servers(): ServerState[] {
    return this.limiters[0].servers();
  }

  /** Close each limiter. */
  async close(): Promise<void> {
    await Promise.all(this.limiters.map((limiter) => limiter.close()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal What `allowAll` decides. */
  shares(key: string, cost: number): Required<Share>[] {
    return this.ofEach(key, (limiter, name) => ({ limiter, key: name, cost }));
  }

  private ofEach<T>(key: string, work: (limiter: Limiter, name: string) => T): T[] {
    return this.limiters.map((limiter) => work(limiter, keyOfRate(this.prefix, key, limiter.quota.window)));
  }
}

async function together(asked: readonly Promise<Decision>[]): Promise<Decisions> {
  const each = await Promise.all(asked);
  return new Decisions(
    each.every(({ granted }) => granted > 0),
    each,
  );
}
