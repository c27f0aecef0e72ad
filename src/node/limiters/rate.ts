/** One quota, for any number of keys. */

import { Decision, type Source, type Told } from "../core/decision.js";
import { type Duration, flag, integer, milliseconds } from "../core/duration.js";
import { NotAskedError, UnavailableError } from "../core/errors.js";
import { clock, instead, LocalWindows } from "../core/local-windows.js";
import {
  type QuotaOptions,
  quotaLike,
  quotaOf,
  type RateOptions,
  requested,
  settingsOf,
  type WaitOptions,
} from "../core/options.js";
import type { Demand, Quota, Reply } from "../core/window.js";
import * as commands from "../protocol/commands.js";
import { replyOf } from "../protocol/commands.js";
import { Turns } from "../util/fair-queue.js";
import { type Wait, waitInTurn } from "./acquire.js";
import { Asker, type AskerOptions } from "./base.js";
import { Cached } from "./cached-mode.js";
import { Denials } from "./denial-cache.js";

/** What a limiter of rates can be told. */
export interface LimiterOptions extends AskerOptions, RateOptions {}

export interface PeekOptions extends WaitOptions {
  /** Units that are asked for: 1 … 2^53 − 1. */
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
  /** The units are that old. */
  readonly age?: Duration;
  /** When that is above the limit, block the key for so long. */
  readonly block?: Duration;
  /** When the server does not answer, keep them, and send them once it does, instead of an error. */
  readonly keep?: boolean;
}

export interface AcquireOptions {
  /** Units that are asked for: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Ends the wait without a decision; what the server still grants is given back. */
  readonly signal?: AbortSignal | undefined;
}

const WAITED = new Set(["cost", "signal"]);
const PEEKED = new Set(["cost", "partial", "deadline", "signal"]);
const ALLOWED = new Set([...PEEKED, "block"]);
const RECORDED = new Set(["cost", "age", "block", "keep"]);
const REFUNDED = new Set(["age"]);
const BLOCKED = new Set(["unlessBlocked"]);

/** A decision of this process. */
type Here = (demand: Demand, now: number) => Reply;

export class Limiter extends Asker {
  /** The quota; durations in ms. */
  readonly quota: Quota;
  /** @internal */ readonly denials: Denials;
  /** @internal What is known to be denied; null where the server is asked every time, or never. */
  readonly cached: Cached | null;
  private readonly windows: LocalWindows;
  private readonly turns = new Turns();

  constructor(options: LimiterOptions) {
    super(settingsOf(options), options.client);
    this.quota = quotaOf(options);
    const { mode, module, maxKeys, maxUntrackedAge } = this.settings;
    this.windows = new LocalWindows(maxKeys);
    this.denials = new Denials(maxKeys);
    this.server?.join(this.denials, this.denials);
    this.cached =
      this.server && mode === "cached" ? new Cached(this.server, this.denials, module, maxUntrackedAge) : null;
  }

  /**
   * A limiter of the same keys with another quota: limits that depend on who asks. The key's window should stay one.
   */
  with(options: Partial<QuotaOptions>): Limiter {
    return Object.create(this, { quota: { value: quotaLike(this.quota, options), enumerable: true } });
  }

  /** Decide, and count what is granted. */
  async allow(key: string, options: AllowOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, ALLOWED));
    const block = options.block === undefined ? 0 : milliseconds(options.block, "block");
    const known = this.known(name, demand, block);
    if (known) return known;
    const here: Here = (asked, now) => this.windows.entry(name).allow(asked, now, block);
    if (!this.server) return this.here("local", demand, here);
    const asked = this.cached?.asked(name);
    try {
      const reply = replyOf(await this.ask(commands.allow({ name, demand }, block), name, options));
      this.counts.server++;
      if (asked && reply[0] === 0) this.cached?.denied(name, demand, reply, asked, block);
      return this.decision(reply, "server");
    } catch (error) {
      return this.failed(error, demand, here);
    }
  }

  /** The same decision, with nothing counted. */
  async peek(key: string, options: PeekOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, PEEKED));
    const here: Here = (asked, now) => this.windows.entry(name).peek(asked, now);
    if (!this.server) return this.here("local", demand, here);
    try {
      const reply = replyOf(await this.ask(commands.peek({ name, demand }), name, options));
      this.counts.server++;
      return this.decision(reply, "server");
    } catch (error) {
      return this.failed(error, demand, here);
    }
  }

  /**
   * Count, whatever the limit says. When the server does not answer, that fails with an UnavailableError, or is kept
   * and sent later where `keep` says so.
   */
  async record(key: string, options: RecordOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, RECORDED));
    const block = options.block === undefined ? 0 : milliseconds(options.block, "block");
    const age = options.age === undefined ? 0 : milliseconds(options.age, "age", 0);
    const keep = flag(options.keep ?? false, "keep");
    const words = (ms: number) => commands.record({ name, demand }, ms, block).words;
    const here: Here = (asked, now) =>
      this.windows.entry(name).record(asked, now, age > 0 ? Math.max(0, now - age) : undefined, block);
    const { server } = this;
    if (!server) return this.here("local", demand, here);
    const since = performance.now() - age;
    const { timeout, module } = this.settings;
    const until = since + demand.window + demand.resolution;
    const usage = {
      name,
      words,
      units: demand.cost,
      since,
      until,
      timeout,
      module,
      lost: () => void this.counts.lost++,
    };
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      if (keep) reply.catch(() => server.backlog.keep(usage, true));
    };
    try {
      const reply = replyOf(await server.ask(words(age), name, { timeout, module, late }));
      this.counts.server++;
      return this.decision(reply, "server");
    } catch (error) {
      if (!(error instanceof UnavailableError && keep)) throw error;
      if (!isComing) server.backlog.keep(usage, !(error instanceof NotAskedError));
      this.counts.failure++;
      const [granted, limit] = here(demand, clock());
      return this.decision([granted, limit], "failure");
    }
  }

  /** Give back up to so many units; how many were given back. Never sent twice. */
  async refund(key: string, units = 1, options: { readonly age?: Duration } = {}): Promise<number> {
    const name = this.name(key);
    const { age } = requested(options, REFUNDED);
    integer(units, "units", 1);
    const ms = age === undefined ? undefined : milliseconds(age, "age", 0);
    if (!this.server) return this.windows.find(name)?.refund(units, clock(), ms) ?? 0;
    const dated = ms === undefined ? [] : ["AGE", `${ms}ms`];
    return Number(await this.change(["SWLIMIT.REFUND", name, String(units), ...dated], name));
  }

  /**
   * Block a key for so long from now on, with `unlessBlocked` only if it is not; the Unix time in ms at which that
   * ends.
   */
  async block(key: string, duration: Duration, options: { readonly unlessBlocked?: boolean } = {}): Promise<number> {
    const name = this.name(key);
    const ms = milliseconds(duration, "duration");
    const { unlessBlocked = false } = requested(options, BLOCKED);
    flag(unlessBlocked, "unlessBlocked");
    if (!this.server) {
      const now = clock();
      return this.windows.entry(name).block(ms, now, unlessBlocked) - now + Date.now();
    }
    return Number(await this.change(["SWLIMIT.BLOCK", name, `${ms}ms`, ...(unlessBlocked ? ["NX"] : [])], name));
  }

  /** Lift a block; whether there was one. */
  async unblock(key: string): Promise<boolean> {
    const name = this.name(key);
    if (!this.server) return this.windows.find(name)?.unblock(clock()) ?? false;
    return Number(await this.change(["SWLIMIT.UNBLOCK", name], name)) === 1;
  }

  /** Forget all that a key holds: its counts and its block. */
  override async reset(key: string): Promise<void> {
    await super.reset(key);
    this.windows.delete(this.name(key));
  }

  /**
   * An allow that waits for its turn, up to `timeout`: first come, first served. The server keeps the queue; where it
   * has no ACQUIRE, or the client can open no connections of its own, this process does for its own requests.
   */
  async acquire(key: string, timeout: Duration, options: AcquireOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, WAITED));
    const deadline = performance.now() + milliseconds(timeout, "timeout", 0);
    const { signal } = options;
    const left = () => Math.max(0, deadline - performance.now());
    const { server, settings } = this;
    const wait: Wait = {
      ...{ name, demand, server, settings, signal, left },
      ask: (command) => this.ask(command, name, { signal }),
      allow: () => this.allow(key, { cost: demand.cost, signal }),
      decided: (reply) => {
        this.counts.server++;
        return this.decision(reply, "server");
      },
      grantsWithout: () => {
        const look = (asked: Demand) => this.windows.entry(name).peek(asked, clock());
        return this.decisionHere("failure", demand, look).granted > 0;
      },
      failed: (error) => this.failed(error, demand, (asked, at) => this.windows.entry(name).allow(asked, at)),
    };
    return this.turns.take(
      name,
      left(),
      signal,
      () => waitInTurn(wait),
      async () => this.late(await this.peek(key, options)),
    );
  }

  /**
   * Forget what is known of the server. Connections beside the client's own are closed, once no limiter needs them: after
   * whoever waits is answered, and what was kept is sent, while that takes no longer than a second and a half.
   */
  async close(): Promise<void> {
    this.denials.forgetAll();
    await this.server?.leave(this.denials, this.denials);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal What a request demands. */
  demand({ cost = 1, partial = false }: { cost?: number; partial?: boolean }): Demand {
    return { ...this.quota, cost: integer(cost, "cost", 1), partial: flag(partial, "partial") };
  }

  /** @internal The decision that a reply is. */
  decision(told: Told, source: Source): Decision {
    return new Decision(told, { name: this.settings.name, window: this.quota.window }, source);
  }

  /** @internal What is known without the server; undefined where it has to be asked. */
  known(name: string, demand: Demand, block: number): Decision | undefined {
    const told = this.cached?.find(name, demand, block);
    if (!told) return undefined;
    this.counts.cache++;
    return this.decision(told, "cache");
  }

  /** @internal What this process decides: for want of a server, or because it does not answer. */
  decisionHere(by: "local" | "failure", demand: Demand, decide: (asked: Demand) => Reply): Decision {
    return this.decision(by === "local" ? decide(demand) : instead(this.settings, demand, decide), by);
  }

  /** @internal The window of this process for a key. */
  window(name: string) {
    return this.windows.entry(name);
  }

  /** What is decided when the server failed; other errors are the caller's. */
  private failed(error: unknown, demand: Demand, here: Here): Decision {
    if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
    return this.here("failure", demand, here);
  }

  /** Decide in this process, and count that. */
  private here(by: "local" | "failure", demand: Demand, decide: Here): Decision {
    this.counts[by]++;
    return this.decisionHere(by, demand, (asked) => decide(asked, clock()));
  }

  /** Denied, because its turn did not come in time. */
  private late({ limit, remaining, retryAfter, resetAfter, source }: Decision): Decision {
    return this.decision([0, limit, remaining, retryAfter, resetAfter], source);
  }
}
