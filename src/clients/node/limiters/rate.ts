/** One quota, for any number of keys. */

import { withOwnClient } from "../clients/open.js";
import { Decision, type KnownReply, type Source } from "../core/decision.js";
import { type Duration, flag, integer, milliseconds } from "../core/duration.js";
import { NotAskedError, UnavailableError } from "../core/errors.js";
import { LocalWindows, withoutServer } from "../core/local-windows.js";
import {
  BESIDE_RATE,
  ofUrl,
  type QuotaOptions,
  quotaLike,
  quotaOf,
  type RateOptions,
  requested,
  settingsOf,
  type UrlOptions,
  type WaitOptions,
} from "../core/options.js";
import { parseRate } from "../core/rates.js";
import { type WarmUp, warmUpFor, warmUpOf } from "../core/warm-up.js";
import type { Demand, Quota, Reply } from "../core/window.js";
import { type CommandNamed, replyOf } from "../protocol/commands.js";
import { FairQueue } from "../util/fair-queue.js";
import { acquire, type WaitingRequest } from "./acquire.js";
import { BaseLimiter, type BaseOptions, Kept } from "./base.js";
import { CachedMode } from "./cached-mode.js";
import { DenialCache } from "./denial-cache.js";

/** The options of a Limiter. */
export interface LimiterOptions extends BaseOptions, RateOptions {}

/** The options of a Limiter beyond the client, and beyond what its rate says. */
export type RateSettings = Omit<RateOptions, "limit" | "window">;

export interface PeekOptions extends WaitOptions {
  /** Requested units: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Grant as much of the cost as fits. */
  readonly partial?: boolean;
}

export interface AllowOptions extends PeekOptions {
  /** When denied, block the key for so long. */
  readonly block?: Duration;
}

export interface RecordOptions {
  /** Units that were used: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** The age of the units. */
  readonly age?: Duration;
  /** When the cost does not fit, block the key for so long. */
  readonly block?: Duration;
  /** When the server does not answer, keep the record and send it later, instead of throwing an error. */
  readonly keep?: boolean;
}

export interface AcquireOptions {
  /** Requested units: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Ends the wait without a decision. What the server still grants is given back. */
  readonly signal?: AbortSignal | undefined;
}

/** @internal */
export const WAITED = new Set(["cost", "signal"]);
const PEEKED = new Set(["cost", "partial", "deadline", "signal"]);
const ALLOWED = new Set([...PEEKED, "block"]);
const RECORDED = new Set(["cost", "age", "block", "keep"]);
const REFUNDED = new Set(["age"]);
const BLOCKED = new Set(["unlessBlocked"]);

/** Decides in this process. */
type LocalDecider = (demand: Demand, now: number) => Reply;

export class Limiter extends BaseLimiter {
  /** The quota; durations in ms. */
  readonly quota: Quota;
  /** How the limit rises after idleness; its duration in ms. */
  readonly warmUp: WarmUp | undefined;
  /** @internal */ readonly denials: DenialCache;
  /** @internal Null where the server is asked every time, or never. */ readonly cached: CachedMode | null;
  /** @internal */ windows: LocalWindows;
  private readonly queue = new FairQueue();

  constructor(options: LimiterOptions) {
    super(settingsOf(options), options.client);
    this.quota = quotaOf(options);
    const { mode, module, maxKeys, maxUntrackedAge } = this.settings;
    this.warmUp = warmUpOf(options, this.quota.window);
    this.windows = new LocalWindows(
      maxKeys,
      () => this.now(),
      () => this.statistics.evicted++,
    );
    this.denials = new DenialCache(maxKeys);
    const { core, denials } = this;
    core?.join(denials, denials);
    this.cached = core && mode === "cached" ? new CachedMode(core, denials, module, maxUntrackedAge) : null;
  }

  /**
   * A limiter of a rate such as "100/minute" on a client of its own, which it opens and closes: of the package redis
   * or, where that is not installed, ioredis.
   */
  static async fromUrl(url: string, rate: string, options: RateSettings & UrlOptions = {}): Promise<Limiter> {
    const quota = parseRate(rate);
    const [cluster, others] = ofUrl(options);
    requested(others, BESIDE_RATE);
    const { mode } = others;
    return withOwnClient(url, { cluster, mode }, (client) => new Limiter({ ...others, ...quota, client }));
  }

  /**
   * A limiter of the same keys with another quota, such as a customer's own. A key should always have the same window.
   */
  with(options: Partial<QuotaOptions>): Limiter {
    const quota = quotaLike(this.quota, options);
    warmUpFor(this.warmUp, quota.window);
    return Object.create(this, { quota: { value: quota, enumerable: true } });
  }

  /** Decide, and count what is granted. */
  async allow(key: string, options: AllowOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, ALLOWED));
    const block = blockOf(options);
    const known = this.known(name, demand, block);
    if (known) return known;
    const here: LocalDecider = (asked, now) => this.windows.entry(name).allow(asked, now, block);
    if (!this.core) return this.here("local", demand, here);
    return this.allowAtServer(name, demand, block, options, here);
  }

  private async allowAtServer(
    name: string,
    demand: Demand,
    block: number,
    options: WaitOptions,
    here: LocalDecider,
  ): Promise<Decision> {
    const before = this.cached?.snapshot(name);
    const kept = new Kept();
    try {
      const reply = replyOf(await this.ask({ name: "ALLOW", key: name, demand, block }, options, kept));
      if (before && reply[0] === 0) this.cached?.denied(name, demand, reply, before, block);
      return this.counted(this.decision(reply, "server"));
    } catch (error) {
      return this.failed(error, demand, here, kept);
    }
  }

  /** Decide without counting. */
  async peek(key: string, options: PeekOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, PEEKED));
    const here: LocalDecider = (asked, now) => this.windows.entry(name).peek(asked, now);
    if (!this.core) return this.here("local", demand, here);
    try {
      const reply = replyOf(await this.ask({ name: "PEEK", key: name, demand }, options));
      return this.counted(this.decision(reply, "server"));
    } catch (error) {
      return this.failed(error, demand, here);
    }
  }

  /**
   * Count, whatever the limit is. When the server does not answer, this throws an UnavailableError, or with `keep` the
   * record is sent later.
   */
  async record(key: string, options: RecordOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, RECORDED));
    const block = blockOf(options);
    const age = options.age === undefined ? 0 : milliseconds(options.age, "age", 0);
    const keep = flag(options.keep ?? false, "keep");
    const here: LocalDecider = (asked, now) =>
      this.windows.entry(name).record(asked, now, age > 0 ? Math.max(0, now - age) : undefined, block);
    const { core } = this;
    if (!core) return this.here("local", demand, here);
    const command: CommandNamed<"RECORD"> = { name: "RECORD", key: name, demand, age, block };
    const since = performance.now() - age;
    const until = since + demand.window + demand.resolution;
    const { timeout, module } = this.settings;
    const record = { command, since, until, timeout, module, lost: () => void this.statistics.lost++ };
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      if (keep) core.retryQueue.expect(record, reply);
    };
    try {
      const reply = replyOf(await core.ask(command, { timeout, module, late }));
      return this.counted(this.decision(reply, "server"));
    } catch (error) {
      if (!(error instanceof UnavailableError && keep)) throw error;
      if (!isComing) core.retryQueue.keep(record, !(error instanceof NotAskedError));
      const [granted, limit] = here(demand, this.now());
      return this.counted(this.decision([granted, limit], "failure"));
    }
  }

  /** Give back up to so many units; how many were given back. It is never sent twice. */
  async refund(key: string, units = 1, options: { readonly age?: Duration } = {}): Promise<number> {
    const name = this.name(key);
    const { age } = requested(options, REFUNDED);
    integer(units, "units", 1);
    const ms = age === undefined ? undefined : milliseconds(age, "age", 0);
    if (!this.core) return this.windows.find(name)?.refund(units, this.now(), ms) ?? 0;
    const dated = ms === undefined ? undefined : { age: ms };
    return Number(await this.change({ name: "REFUND", key: name, units, dated }));
  }

  /**
   * Block a key for so long from now on, with `unlessBlocked` only if it is not blocked. The Unix time in ms at which
   * the block ends.
   */
  async block(key: string, duration: Duration, options: { readonly unlessBlocked?: boolean } = {}): Promise<number> {
    const name = this.name(key);
    const ms = milliseconds(duration, "duration");
    const { unlessBlocked = false } = requested(options, BLOCKED);
    flag(unlessBlocked, "unlessBlocked");
    if (!this.core) {
      const now = this.now();
      return this.windows.entry(name).block(ms, now, unlessBlocked) - now + this.date();
    }
    return Number(await this.change({ name: "BLOCK", key: name, duration: ms, nx: unlessBlocked }));
  }

  /** Lift a block; whether there was one. */
  async unblock(key: string): Promise<boolean> {
    const name = this.name(key);
    if (!this.core) return this.windows.find(name)?.unblock(this.now()) ?? false;
    return Number(await this.change({ name: "UNBLOCK", key: name })) === 1;
  }

  /** Forget a key's counts and its block. */
  override async reset(key: string): Promise<void> {
    await super.reset(key);
    this.windows.delete(this.name(key));
  }

  /**
   * Allow, waiting up to `timeout` for the units: first come, first served. The server keeps the queue. Where it has no
   * ACQUIRE, or the client can open no connections, this process queues its own requests.
   */
  async acquire(key: string, timeout: Duration, options: AcquireOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, WAITED));
    const deadline = performance.now() + milliseconds(timeout, "timeout", 0);
    const { signal } = options;
    const left = () => Math.max(0, deadline - performance.now());
    const { core, settings } = this;
    let kept = new Kept();
    const request: WaitingRequest = {
      ...{ name, demand, core, settings, signal, left },
      ask: (command) => {
        kept = new Kept();
        return this.ask(command, { signal }, kept);
      },
      allow: () => this.allow(key, { cost: demand.cost, signal }),
      decided: (reply) => this.decision(reply, "server"),
      counted: (decision) => this.counted(decision),
      grantsWithout: () => {
        const look = (asked: Demand) => this.windows.entry(name).peek(asked, this.now());
        return this.decisionHere("failure", demand, look).granted > 0;
      },
      failed: (error) => this.failed(error, demand, (asked, at) => this.windows.entry(name).allow(asked, at), kept),
    };
    return acquire(this.queue, request);
  }

  /**
   * Forget known denials. When no limiter uses the client any more, this answers waiting requests and sends kept
   * records, for up to 1.5 seconds, and closes all connections but the client's own.
   */
  override async close(): Promise<void> {
    this.denials.forgetAll();
    await this.core?.leave(this.denials, this.denials);
  }

  /** @internal */
  demand({ cost = 1, partial = false }: { cost?: number; partial?: boolean }): Demand {
    const { limit, window, resolution, strict } = this.quota;
    const units = integer(cost, "cost", 1);
    return { limit, window, resolution, strict, cost: units, partial: flag(partial, "partial"), warmUp: this.warmUp };
  }

  /** @internal */
  decision(reply: KnownReply, source: Source): Decision {
    return new Decision(reply, { name: this.settings.name, window: this.quota.window }, source);
  }

  /** @internal The decision if it is known; undefined where the server must be asked. */
  known(name: string, demand: Demand, block: number): Decision | undefined {
    const reply = this.cached?.find(name, demand, block);
    return reply && this.counted(this.decision(reply, "cache"));
  }

  /** @internal Decide in this process: there is no server, or it does not answer. */
  decisionHere(by: "local" | "failure", demand: Demand, decide: (asked: Demand) => Reply): Decision {
    return this.decision(by === "local" ? decide(demand) : withoutServer(this.settings, demand, decide), by);
  }

  /** @internal A key's window in this process. */
  window(name: string) {
    return this.windows.entry(name);
  }

  /** The decision after the server failed; other errors are thrown. */
  private failed(error: unknown, demand: Demand, decide: LocalDecider, kept?: Kept): Decision {
    if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
    const decision = this.here("failure", demand, decide);
    if (kept) kept.units = [decision.granted];
    return decision;
  }

  /** Decide in this process, and count the decision. */
  private here(by: "local" | "failure", demand: Demand, decide: LocalDecider): Decision {
    return this.counted(this.decisionHere(by, demand, (asked) => decide(asked, this.now())));
  }
}

/** For how many ms a denial blocks the key. */
function blockOf({ block }: { block?: Duration }): number {
  return block === undefined ? 0 : milliseconds(block, "block");
}
