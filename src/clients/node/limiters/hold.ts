/** Limits of concurrency: units are held while work is under way. */

import { randomBytes } from "node:crypto";
import { Decision, type KnownReply, NEVER } from "../core/decision.js";
import { callerDeadline, type Duration, integer, milliseconds } from "../core/duration.js";
import { DeadlineError, DeniedError, LostError, UnavailableError } from "../core/errors.js";
import { LocalHolds } from "../core/local-holds.js";
import { type LimitDemand, withoutServer } from "../core/local-windows.js";
import { HOLD_DEFAULTS, type OnFailure, requested, settingsOf, type WaitOptions } from "../core/options.js";
import { type HoldReply, type HoldRequest, holdReplyOf } from "../protocol/commands.js";
import { POLL } from "../transport/blocking-connections.js";
import type { Core } from "../transport/core.js";
import { HoldQueue, holdPoll } from "../transport/hold-queue.js";
import type { RenewedHold } from "../transport/hold-renewer.js";
import { type Instant, instant } from "../util/suspend-clock.js";
import { LONGEST_TIMER } from "../util/timeout.js";
import { BaseLimiter, type BaseOptions } from "./base.js";

export interface HoldLimiterOptions extends BaseOptions {
  /** The maximum of units held at once, 0 … 2^53 − 1. */
  readonly limit: number;
  /** A hold that is not renewed ends after so long: at least 3 s, by default "30s". */
  readonly ttl?: Duration;
  /** The maximum of connections for waiting requests of all limiters of a client; 10 by default. */
  readonly maxWaiting?: number;
  /** By default "error": a place that is granted without the server may be held twice. Middleware has "local". */
  readonly onFailure?: OnFailure;
  /** The longest that a request waits for the server; 1 s by default. */
  readonly timeout?: Duration;
}

export interface HoldOptions extends WaitOptions {
  /** Requested units: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Overrides the limiter's. */
  readonly ttl?: Duration;
  /** How long to wait for the units, at most an hour; by default not at all. */
  readonly wait?: Duration;
}

/** A hold in the list of `holders`. */
export interface Holder {
  readonly id: string;
  readonly units: number;
  /** ms since it was taken. */
  readonly heldFor: number;
  /** ms until it ends, unless it is renewed. */
  readonly expiresAfter: number;
  readonly token: number;
}

/** The owner of a hold. */
interface HoldOwner {
  /** The hold is over: released, settled or lost. */
  over(hold: Hold): void;
  /** Give the hold's units back. */
  giveBack(): Promise<void>;
}

const HELD = new Set(["cost", "ttl", "wait", "deadline", "signal"]);
const CHANGED = new Set(["limit"]);

export const LEAST_TTL = 3000;
export const LONGEST_WAIT = 3_600_000;

/** Units that are held until they are released; with `granted` 0, a denial. */
export class Hold extends Decision {
  /** The hold's id at the server: 16 random bytes, as hexadecimal digits. */
  readonly id: string;
  /** Larger than that of every earlier grant; undefined for a denial, and for a hold without the server. */
  readonly token: number | undefined;
  /** @internal */ readonly name: string;
  /** @internal */ readonly ttl: number;
  /** @internal */ readonly settings: RenewedHold["settings"];
  /** @internal */ readonly maxAge: number | undefined;
  private isOver: boolean;
  private isReleased = false;
  private controller: AbortController | undefined;

  /** @internal */
  constructor(
    decision: Decision,
    { id, name, ttl, settings, maxAge }: Omit<RenewedHold, "lost">,
    token: number | undefined,
    private readonly core: Core | null,
    private readonly owner: HoldOwner,
  ) {
    const { granted, limit, remaining, retryAfter, never } = decision;
    super([granted, limit, remaining, never ? NEVER : retryAfter], decision.policy, decision.source);
    this.id = id;
    this.name = name;
    this.ttl = ttl;
    this.settings = settings;
    this.maxAge = maxAge;
    this.token = token;
    this.isOver = granted === 0;
  }

  /** Whether it is still held, by a clock that includes suspend. Check it before what must not be done twice. */
  get isLive(): boolean {
    return !this.isOver && (this.core === null || this.core.renewer.isLive(this));
  }

  /** Aborts when the hold is lost. That may come late; `isLive` is exact. */
  get signal(): AbortSignal {
    if (!this.controller) {
      this.controller = new AbortController();
      if (this.isOver && !this.isReleased) this.controller.abort(new LostError());
    }
    return this.controller.signal;
  }

  /** Give the units back; more calls do nothing. While the server does not answer, the hold ends after its ttl. */
  async release(): Promise<void> {
    if (this.isReleased || this.granted === 0) return;
    this.end();
    await this.owner.giveBack();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** @internal It is over; nothing is sent to the server. */
  end(): void {
    this.isReleased = true;
    this.isOver = true;
    this.core?.renewer.remove(this);
    this.owner.over(this);
  }

  /** @internal */
  lost(): void {
    this.isOver = true;
    this.owner.over(this);
    this.controller?.abort(new LostError());
  }
}

export class HoldLimiter extends BaseLimiter {
  /** The maximum of units held at once. */
  readonly limit: number;
  /** A hold that is not renewed ends after so many ms. */
  readonly ttl: number;
  private readonly local = new LocalHolds();
  private readonly queue: HoldQueue;
  private readonly hasPolicy: boolean;
  private readonly holds = new Set<Hold>();

  constructor(options: HoldLimiterOptions) {
    super(settingsOf(options, ["limit", "ttl", "maxWaiting"], HOLD_DEFAULTS), options.client);
    this.hasPolicy = options.onFailure !== undefined;
    this.limit = integer(options.limit, "limit", 0);
    this.ttl = milliseconds(options.ttl ?? "30s", "ttl", LEAST_TTL);
    this.queue = this.core?.holdQueue ?? new HoldQueue();
    this.core?.join(this);
  }

  /** @internal The same limiter for places of requests, which this process grants without the server by default. */
  get ofRequests(): HoldLimiter {
    if (this.hasPolicy) return this;
    return Object.create(this, { settings: { value: { ...this.settings, onFailure: "local" }, enumerable: true } });
  }

  /** A limiter of the same keys with another limit. */
  with(options: { readonly limit: number }): HoldLimiter {
    const { limit } = requested(options, CHANGED);
    return Object.create(this, { limit: { value: integer(limit, "limit", 0), enumerable: true } });
  }

  /** Take units until they are released: `await using hold = await limiter.hold(key)`. Check `granted`. */
  hold(key: string, options?: HoldOptions): Promise<Hold>;
  /** Take units while `work` is under way; its result. A denial throws a DeniedError. */
  hold<Result>(key: string, options: HoldOptions, work: (hold: Hold) => Promise<Result>): Promise<Result>;
  async hold<Result>(
    key: string,
    options: HoldOptions = {},
    work?: (hold: Hold) => Promise<Result>,
  ): Promise<Hold | Result> {
    const hold = await this.take(key, options);
    if (!work) return hold;
    if (hold.granted === 0) throw new DeniedError(hold);
    try {
      return await work(hold);
    } finally {
      await hold.release();
    }
  }

  /** The holds of a key, oldest first; at most `count`, 1 … 10 000. */
  async holders(key: string, count = 100): Promise<Holder[]> {
    const name = this.name(key);
    if (!this.core) return [];
    const reply = await this.ask({ name: "HOLDERS", key: name, count: integer(count, "count", 1) });
    return (reply as unknown[][]).map(([id, ...numbers]) => {
      const [units, heldFor, expiresAfter, token] = numbers.map(Number) as [number, number, number, number];
      return { id: String(id), units, heldFor, expiresAfter, token };
    });
  }

  override async reset(key: string): Promise<void> {
    await super.reset(key);
    const name = this.name(key);
    this.local.delete(name);
    this.queue.forget(name);
  }

  /** Release all holds. When no limiter uses the client any more, all connections but the client's own are closed. */
  override async close(): Promise<void> {
    await Promise.all([...this.holds].map((hold) => hold.release()));
    await super.close();
  }

  /** @internal */
  request(key: string, { cost = 1, ttl }: HoldOptions): HoldRequest {
    return {
      key: this.name(key),
      limit: this.limit,
      cost: integer(cost, "cost", 1),
      ttl: ttl === undefined ? this.ttl : milliseconds(ttl, "ttl", LEAST_TTL),
      id: freshId(),
    };
  }

  /**
   * @internal The hold, or the denial, that the server replied; it was asked at `since`. `maxAge`: its longest age, in ms.
   */
  held(request: HoldRequest, reply: HoldReply, since: Instant, maxAge?: number): Hold {
    const [granted, limit, remaining, retryAfter, , token] = reply;
    const decision = this.counted(this.decision([granted, limit, remaining, retryAfter], "server"));
    const hold = this.made(request, decision, granted > 0 ? token : undefined, this.core, maxAge);
    if (granted > 0) this.core?.renewer.add(hold, since);
    return hold;
  }

  /** @internal Decide in this process: there is no server, or it does not answer. */
  heldHere(by: "local" | "failure", request: HoldRequest, maxAge?: number): Hold {
    const decide = (demand: LimitDemand) => this.local.decide(request.key, demand);
    const decision = this.counted(this.decision(this.decidedHere(by, request, decide), by));
    return this.made(request, decision, undefined, null, maxAge);
  }

  /** @internal The same decision, with nothing held. */
  lookHere(by: "local" | "failure", request: HoldRequest): Decision {
    const look = (demand: LimitDemand) => this.local.decide(request.key, demand, "look");
    return this.decision(this.decidedHere(by, request, look), by);
  }

  /** @internal */
  decision(reply: KnownReply, source: Decision["source"]): Decision {
    return new Decision(reply, { name: this.settings.name, window: this.ttl }, source);
  }

  private decidedHere(
    by: "local" | "failure",
    { limit, cost }: HoldRequest,
    decide: (demand: LimitDemand) => KnownReply,
  ): KnownReply {
    const demand = { limit, cost };
    return by === "local" ? decide(demand) : withoutServer(this.settings, demand, decide);
  }

  private made(
    request: HoldRequest,
    decision: Decision,
    token: number | undefined,
    core: Core | null,
    maxAge: number | undefined,
  ): Hold {
    const { key: name, id, ttl, cost } = request;
    const isCounted = core === null && (decision.source === "local" || this.settings.onFailure === "local");
    const giveBack = async () => {
      if (isCounted) {
        this.local.give(name, cost);
        this.queue.forget(name);
      }
      if (core) await this.releaseAtServer(request);
    };
    let ending: NodeJS.Timeout | undefined; // of a hold that is not renewed at a server
    const over = (hold: Hold) => {
      clearTimeout(ending);
      this.holds.delete(hold);
    };
    const owner: HoldOwner = { over, giveBack };
    const hold = new Hold(decision, { id, name, ttl, settings: this.settings, maxAge }, token, core, owner);
    if (hold.granted === 0) return hold;
    this.holds.add(hold);
    if (core === null && maxAge !== undefined) {
      const end = () => {
        hold.lost();
        void giveBack();
      };
      ending = setTimeout(end, Math.min(maxAge, LONGEST_TIMER)).unref();
    }
    return hold;
  }

  private async take(key: string, options: HoldOptions): Promise<Hold> {
    const request = this.request(key, requested(options, HELD));
    const { wait, signal } = options;
    const longest = longestOf(wait);
    const time = new CallerTime(longest, options);
    const { core } = this;
    if (!core) return this.takeHere(request, () => time.left, signal);
    if (longest === 0) return this.askedOrHere(request, () => this.once(request, options));
    return this.askedOrHere(request, async () => {
      const wait = new HoldWait(request);
      const first = this.queue.isWaitedFor(request.key) ? null : await this.first(core, wait, time);
      if (first) return first;
      return this.queue.take(
        request.key,
        time.left,
        signal,
        (hasWaited) => this.inTurn(core, wait, time, hasWaited),
        async () =>
          (await this.first(core, wait, time)) ?? this.held(wait.request, wait.denied as HoldReply, instant()),
      );
    });
  }

  private async askedOrHere(request: HoldRequest, ask: () => Promise<Hold>): Promise<Hold> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
      return this.heldHere("failure", request);
    }
  }

  private async takeHere(request: HoldRequest, left: () => number, signal: AbortSignal | undefined): Promise<Hold> {
    const take = async () => {
      for (;;) {
        const hold = this.heldHere("local", request);
        if (hold.granted > 0 || hold.never || left() === 0) return hold;
        await this.queue.changed(request.key, left(), signal);
      }
    };
    return this.queue.take(request.key, left(), signal, take, async () => this.heldHere("local", request));
  }

  /** Ask once, without a wait. */
  private async once(request: HoldRequest, options: WaitOptions): Promise<Hold> {
    const since = instant();
    return this.held(request, await this.askFor(request, options), since);
  }

  private async askFor(request: HoldRequest, options: WaitOptions): Promise<HoldReply> {
    return holdReplyOf(await this.ask({ name: "HOLD", ...request }, options));
  }

  /** Ask without a wait: null where it is denied, and may be granted in time. */
  private async first(core: Core, wait: HoldWait, time: CallerTime): Promise<Hold | null> {
    const isLast = () => time.left === 0 || core.isLeft;
    const { options } = time;
    const last = () => this.held(wait.request, wait.denied as HoldReply, instant());
    if (wait.denied && leavesNoTime(options)) return last();
    try {
      const since = instant();
      const now = await this.askFor(wait.request, options);
      const [granted, , , retryAfter] = now;
      if (granted > 0 || retryAfter < 0 || isLast()) return this.held(wait.request, now, since);
      wait.denied = now;
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      if (wait.denied && (isLast() || error instanceof DeadlineError)) return last();
      // A wait survives restarts and failovers, unless `onFailure` would grant.
      if (isLast() || this.lookHere("failure", wait.request).granted > 0) throw error;
    }
    return null;
  }

  /** Wait in the server's queue, or where there is none ask again and again. */
  private async inTurn(core: Core, wait: HoldWait, time: CallerTime, hasWaited: boolean): Promise<Hold> {
    const { signal } = time;
    const { key } = wait.request;
    const { module } = this.settings;
    let isRegistered = false; // for invalidations, of which the server sends one
    for (let isDenied = wait.denied !== null && !hasWaited; ; isDenied = false) {
      const found = isDenied ? null : await this.first(core, wait, time);
      if (found) return found;
      const { backend, invalidations } = core.server(key);
      const isScript = module === "never" || backend === "script";
      if (isScript && !isRegistered) isRegistered = invalidations?.registerHolds(key, module) ?? false;
      const queued = isScript || !wait.denied ? null : await this.queuedHold(core, wait.request, time);
      if (queued) return queued;
      const retryAfter = wait.denied?.[3] ?? POLL;
      const ms = isScript ? holdPoll(retryAfter) : Math.min(POLL, retryAfter);
      wait.request = { ...wait.request, id: freshId() };
      const isChanged = await this.queue.changed(key, Math.min(ms, time.left), signal);
      if (isChanged) isRegistered = false;
    }
  }

  /** The hold after waiting in the server's queue; null when the request must be sent again. */
  private async queuedHold(core: Core, request: HoldRequest, time: CallerTime): Promise<Hold | null> {
    const found = await this.queued(core, request, time);
    if (!found) return null;
    if (found[0] === 0) return this.held(request, found, instant());
    // The ttl runs from the grant, which may be older than its reply.
    const renewed = instant();
    try {
      return (await this.renewed(request, time.signal)) ? this.held(request, found, renewed) : null;
    } catch (error) {
      if (error instanceof UnavailableError) return null;
      throw error;
    }
  }

  /** The reply after waiting in the server's queue; null when there was no place, or the request must be sent again. */
  private async queued(core: Core, request: HoldRequest, time: CallerTime): Promise<HoldReply | null> {
    if (!core.blocking) return null;
    const { timeout, maxWaiting } = this.settings;
    const grace = Math.min(timeout, time.grace);
    let isSent = false;
    const reply = await core.blocking.ask({
      ...{ key: request.key, left: () => time.left, grace, maxWaiting, signal: time.signal },
      command: (wait) => ({ name: "HOLD", ...request, wait }),
      starts: () => {
        isSent = true;
        return () => this.releaseAtServer(request); // which also ends the wait
      },
    });
    if (reply !== null) return holdReplyOf(reply);
    if (isSent) void this.releaseAtServer(request);
    return null;
  }

  /** Whether a hold that was granted after a wait is still live. */
  private async renewed(request: HoldRequest, signal: AbortSignal | undefined): Promise<boolean> {
    const { key, ttl, id } = request;
    try {
      const reply = await this.ask({ name: "RENEW", key, ttl, ids: [id] }, { signal });
      return Array.isArray(reply) && Number(reply[0]) === 1;
    } catch (error) {
      void this.releaseAtServer(request);
      throw error;
    }
  }

  private releaseAtServer({ key, id, ttl }: HoldRequest): Promise<void> {
    return this.askUntilAnswered({ name: "RELEASE", key, ids: [id] }, ttl);
  }
}

/** A request that waits: with a fresh id for each try, so that a late release ends no other hold. */
class HoldWait {
  /** The server's last denial. */
  denied: HoldReply | null = null;

  constructor(public request: HoldRequest) {}
}

/** The time of a caller that waits: what is left of its wait, and until its deadline. */
class CallerTime {
  readonly signal: AbortSignal | undefined;
  private readonly ends: number;
  private readonly leaves: number;

  constructor(wait: number, { deadline, signal }: WaitOptions) {
    const began = performance.now();
    this.ends = began + wait;
    this.leaves = deadline === undefined ? Number.POSITIVE_INFINITY : began + milliseconds(deadline, "deadline", 0);
    this.signal = signal;
  }

  /** ms until the wait ends. */
  get left(): number {
    return Math.max(0, Math.min(this.ends - performance.now(), callerDeadline(this.leaves - performance.now())));
  }

  /** How much longer the caller is there, in ms. */
  get grace(): number {
    return Math.max(0, this.leaves - performance.now() - this.left);
  }

  /** The options of a request that is sent now. */
  get options(): { readonly signal: AbortSignal | undefined; readonly deadline?: number } {
    const { signal, leaves } = this;
    if (leaves === Number.POSITIVE_INFINITY) return { signal };
    return { signal, deadline: Math.max(0, Math.floor(leaves - performance.now())) };
  }
}

/** Whether a request with these options is not sent, because the caller leaves too soon. */
export function leavesNoTime({ deadline }: { readonly deadline?: number | undefined }): boolean {
  return deadline !== undefined && callerDeadline(deadline) <= 0;
}

/** How long a request may wait at most, in ms. */
export function longestOf(wait: Duration = 0): number {
  const longest = milliseconds(wait, "wait", 0);
  if (longest > LONGEST_WAIT) throw new RangeError("wait must be at most 1h");
  return longest;
}

/** 16 random bytes, drawn for one request: a late release ends no other hold. */
export function freshId(): string {
  return randomBytes(16).toString("hex");
}
