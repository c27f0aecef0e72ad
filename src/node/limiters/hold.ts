/** How many at once: units that are held while something is under way. */

import { randomBytes } from "node:crypto";
import { Decision, type Told } from "../core/decision.js";
import { type Duration, integer, milliseconds } from "../core/duration.js";
import { DeniedError, LostError, RefusedError, UnavailableError } from "../core/errors.js";
import { LocalHolds } from "../core/local-holds.js";
import { instead } from "../core/local-windows.js";
import { requested, settingsOf, type WaitOptions } from "../core/options.js";
import type { Wish } from "../protocol/commands.js";
import * as commands from "../protocol/commands.js";
import { POLL } from "../transport/blocking-pool.js";
import type { Server } from "../transport/client-state.js";
import type { Held } from "../transport/hold-renewer.js";
import { Turns } from "../util/fair-queue.js";
import { type Instant, instant } from "../util/suspend-clock.js";
import { inTime, pause } from "../util/timeout.js";
import { Asker, type AskerOptions } from "./base.js";

export interface HoldLimiterOptions extends AskerOptions {
  /** Units that are held at once, 0 … 2^53 − 1. */
  readonly limit: number;
  /** A hold that is not renewed ends after so long: at least 3 s, as a rule "30s". */
  readonly ttl?: Duration;
  /** The most connections on which requests wait for their turn, of all limiters of a client; 10 as a rule. */
  readonly maxWaiting?: number;
}

export interface HoldOptions extends WaitOptions {
  /** Units that are asked for: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** In place of the limiter's. */
  readonly ttl?: Duration;
  /** How long to wait for one's turn, at most an hour; not at all as a rule. */
  readonly wait?: Duration;
}

/** A hold, as `holders` shows it. */
export interface Holder {
  readonly id: string;
  readonly units: number;
  /** ms since it was taken. */
  readonly heldFor: number;
  /** ms until it ends, unless it is renewed. */
  readonly expiresAfter: number;
  readonly token: number;
}

/** Who is told what becomes of a hold. */
interface Keeper {
  /** It is over: released, settled or lost. */
  over(hold: Hold): void;
  /** Its units are to be given back. */
  giveBack(): Promise<void>;
}

const HELD = new Set(["cost", "ttl", "wait", "deadline", "signal"]);
const CHANGED = new Set(["limit"]);

const LEAST_TTL = 3000;
const LONGEST_WAIT = 3_600_000;

/** Units that are held until they are released; or, with `granted` 0, a denial. */
export class Hold extends Decision {
  /** What its holder is known by at the server: 16 random bytes, as hexadecimal digits. */
  readonly id: string;
  /** Larger than that of every grant before it; undefined of a denial, and of what the server does not know. */
  readonly token: number | undefined;
  /** @internal */ readonly name: string;
  /** @internal */ readonly ttl: number;
  /** @internal */ readonly timeout: number;
  private isOver: boolean;
  private isReleased = false;
  private controller: AbortController | undefined;

  /** @internal */
  constructor(
    decision: Decision,
    { id, name, ttl, timeout }: Omit<Held, "lost">,
    token: number | undefined,
    private readonly server: Server | null,
    private readonly keeper: Keeper,
  ) {
    const { granted, limit, remaining, retryAfter } = decision;
    super([granted, limit, remaining, retryAfter], decision.policy, decision.source);
    this.id = id;
    this.name = name;
    this.ttl = ttl;
    this.timeout = timeout;
    this.token = token;
    this.isOver = granted === 0;
  }

  /** Whether it is held still, by a clock that goes on while the machine sleeps. Ask before what must not be done twice. */
  get isLive(): boolean {
    return !this.isOver && (this.server === null || this.server.renewals.isLive(this));
  }

  /** Aborts when the hold is lost. That may be noticed late: `isLive` is not. */
  get signal(): AbortSignal {
    if (!this.controller) {
      this.controller = new AbortController();
      if (this.isOver && !this.isReleased) this.controller.abort(new LostError());
    }
    return this.controller.signal;
  }

  /** Give the units back. Once is enough; further calls do nothing. While the server does not answer, the hold ends by its time. */
  async release(): Promise<void> {
    if (this.isReleased || this.granted === 0) return;
    this.end();
    await this.keeper.giveBack();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** @internal It is over, without a word to the server. */
  end(): void {
    this.isReleased = true;
    this.isOver = true;
    this.server?.renewals.remove(this);
    this.keeper.over(this);
  }

  /** @internal */
  lost(): void {
    this.isOver = true;
    this.keeper.over(this);
    this.controller?.abort(new LostError());
  }
}

export class HoldLimiter extends Asker {
  /** Units that are held at once. */
  readonly limit: number;
  /** A hold that is not renewed ends after so many ms. */
  readonly ttl: number;
  private readonly local = new LocalHolds();
  private readonly turns = new Turns();
  private readonly holds = new Set<Hold>();

  constructor(options: HoldLimiterOptions) {
    super(settingsOf(options, ["limit", "ttl", "maxWaiting"]), options.client);
    this.limit = integer(options.limit, "limit", 0);
    this.ttl = milliseconds(options.ttl ?? "30s", "ttl", LEAST_TTL);
    this.server?.join(this);
  }

  /** A limiter of the same keys with another limit. */
  with(options: { readonly limit: number }): HoldLimiter {
    const { limit } = requested(options, CHANGED);
    return Object.create(this, { limit: { value: integer(limit, "limit", 0), enumerable: true } });
  }

  /** Take units, until they are released: `await using hold = await limiter.hold(key)`. Look at `granted`. */
  hold(key: string, options?: HoldOptions): Promise<Hold>;
  /** Take units while `work` is under way; what it comes to. A denial is a DeniedError. */
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

  /** Who holds units of a key, oldest first; at most `count`, 1 … 10 000. */
  async holders(key: string, count = 100): Promise<Holder[]> {
    const name = this.name(key);
    if (!this.server) return [];
    const words = ["SWLIMIT.HOLDERS", name, String(integer(count, "count", 1))];
    const reply = await this.ask({ words }, name, {});
    return (reply as unknown[][]).map(([id, ...numbers]) => {
      const [units, heldFor, expiresAfter, token] = numbers.map(Number) as [number, number, number, number];
      return { id: String(id), units, heldFor, expiresAfter, token };
    });
  }

  override async reset(key: string): Promise<void> {
    await super.reset(key);
    this.local.delete(this.name(key));
  }

  /** Release what is held. Connections beside the client's own are closed, once no limiter needs them. */
  async close(): Promise<void> {
    await Promise.all([...this.holds].map((hold) => hold.release()));
    await this.server?.leave(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal What a new hold is to be. */
  wish(key: string, { cost = 1, ttl }: HoldOptions): Wish {
    return {
      name: this.name(key),
      cost: integer(cost, "cost", 1),
      ttl: ttl === undefined ? this.ttl : milliseconds(ttl, "ttl", LEAST_TTL),
      id: freshId(),
    };
  }

  /** @internal The hold that the server granted or denied, when it was asked then. */
  held(wish: Wish, reply: SixIntegers, since: Instant): Hold {
    this.counts.server++;
    const [granted, limit, remaining, retryAfter, , token] = reply;
    const decision = this.decision([granted, limit, remaining, retryAfter], "server");
    const hold = this.made(wish, decision, granted > 0 ? token : undefined, this.server);
    if (granted > 0) this.server?.renewals.add(hold, since);
    return hold;
  }

  /** @internal What this process decides, for want of a server, or because it does not answer. */
  heldHere(by: "local" | "failure", wish: Wish): Hold {
    this.counts[by]++;
    const decide = (asked: { limit: number; cost: number }) => this.local.decide(wish.name, asked);
    return this.made(wish, this.decision(this.toldHere(by, wish, decide), by), undefined, null);
  }

  /** @internal What this process would decide. */
  lookHere(by: "local" | "failure", wish: Wish): Decision {
    return this.decision(
      this.toldHere(by, wish, (asked) => this.local.decide(wish.name, asked, "look")),
      by,
    );
  }

  /** @internal What a hold of this limiter decides of, for headers. */
  decision(told: Told, source: Decision["source"]): Decision {
    return new Decision(told, { name: this.settings.name, window: this.ttl }, source);
  }

  private toldHere(by: "local" | "failure", { cost }: Wish, decide: (asked: { limit: number; cost: number }) => Told) {
    const asked = { limit: this.limit, cost };
    return by === "local" ? decide(asked) : instead(this.settings, asked, decide);
  }

  private made(wish: Wish, decision: Decision, token: number | undefined, server: Server | null) {
    const { name, id, ttl, cost } = wish;
    const isCounted = server === null && (decision.source === "local" || this.settings.onFailure === "local");
    const giveBack = async () => {
      if (isCounted) this.local.give(name, cost);
      if (server) await this.insist(commands.release(wish), name);
    };
    const keeper: Keeper = { over: (hold) => void this.holds.delete(hold), giveBack };
    const hold = new Hold(decision, { id, name, ttl, timeout: this.settings.timeout }, token, server, keeper);
    if (hold.granted > 0) this.holds.add(hold);
    return hold;
  }

  private async take(key: string, options: HoldOptions): Promise<Hold> {
    const wish = this.wish(key, requested(options, HELD));
    const { wait = 0, signal } = options;
    const longest = milliseconds(wait, "wait", 0);
    if (longest > LONGEST_WAIT) throw new RangeError("wait must be at most 1h");
    const deadline = performance.now() + longest;
    const left = () => Math.max(0, deadline - performance.now());
    if (!this.server) return this.takeHere(wish, left, signal);
    if (longest === 0) return this.askedOrHere(wish, () => this.once(wish, options));
    return this.turns.take(
      wish.name,
      longest,
      signal,
      () => this.askedOrHere(wish, () => this.inTurn(wish, left, options)),
      () => this.askedOrHere(wish, () => this.once(wish, options)),
    );
  }

  private async askedOrHere(wish: Wish, ask: () => Promise<Hold>): Promise<Hold> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
      return this.heldHere("failure", wish);
    }
  }

  private async takeHere(wish: Wish, left: () => number, signal: AbortSignal | undefined): Promise<Hold> {
    const take = async () => {
      for (;;) {
        const hold = this.heldHere("local", wish);
        if (hold.granted > 0 || hold.retryAfter === -1 || left() === 0) return hold;
        await inTime(this.local.freed(wish.name), left(), signal);
      }
    };
    return this.turns.take(wish.name, left(), signal, take, async () => this.heldHere("local", wish));
  }

  /** Ask once, without a wait. */
  private async once(wish: Wish, options: WaitOptions): Promise<Hold> {
    const since = instant();
    return this.held(wish, await this.askFor(wish, options), since);
  }

  private async askFor(wish: Wish, options: WaitOptions): Promise<SixIntegers> {
    return sixOf(await this.ask(commands.hold(wish, this.limit), wish.name, options));
  }

  /** Wait in the server's queue, or where there is none ask again and again. Who waits outlasts what a request outlasts. */
  private async inTurn(wanted: Wish, left: () => number, options: HoldOptions): Promise<Hold> {
    const { signal } = options;
    const isLast = () => left() === 0 || this.server?.isLeft === true;
    let wish = wanted;
    for (let hasWaited = false; ; hasWaited = true) {
      try {
        const since = instant();
        const now = await this.askFor(wish, options);
        const [granted, , , retryAfter] = now;
        if (granted > 0 || retryAfter < 0 || isLast()) return this.held(wish, now, since);
        const found = await this.queued(wish, left, signal);
        if (found?.[0] === 0) return this.held(wish, found, since);
        // The time to live runs from the grant, which may be older than its reply.
        const renewed = instant();
        if (found && (await this.renewed(wish, signal))) return this.held(wish, found, renewed);
      } catch (error) {
        if (!(error instanceof UnavailableError) || !hasWaited || isLast()) throw error;
        if (this.lookHere("failure", wish).granted > 0) throw error;
      }
      wish = { ...wish, id: freshId() };
      if (!isLast()) await pause(Math.min(POLL, left()), signal);
    }
  }

  /** What the server's queue comes to; null where there is no place in it, or it is to be asked anew. */
  private async queued(wish: Wish, left: () => number, signal: AbortSignal | undefined): Promise<SixIntegers | null> {
    const { server, settings } = this;
    if (!server?.lanes) return null;
    const end = async () => this.insist(commands.release(wish), wish.name); // which ends its wait, too
    let isSent = false;
    const leave = () => {
      isSent = true;
      return end;
    };
    const words = (ms: number) => commands.hold(wish, this.limit, ms).words;
    const { timeout: grace, maxWaiting: most } = settings;
    const reply = await server.lanes.ask(wish.name, left, words, { grace, most, signal, leave });
    if (reply !== null) return sixOf(reply);
    if (isSent) void end();
    return null;
  }

  /** Whether what was granted after a wait is live still. */
  private async renewed(wish: Wish, signal: AbortSignal | undefined): Promise<boolean> {
    const { name, id, ttl } = wish;
    const reply = await this.ask(
      { words: ["SWLIMIT.RENEW", name, `${ttl}ms`, id], undo: commands.release(wish) },
      name,
      { signal },
    );
    return Array.isArray(reply) && Number(reply[0]) === 1;
  }
}

/** HOLD's reply: granted, limit, remaining, retry_after, expires_after, token. */
export type SixIntegers = [number, number, number, number, number, number];

export function sixOf(reply: unknown): SixIntegers {
  if (!Array.isArray(reply) || reply.length !== 6) throw new RefusedError(`unexpected reply: ${JSON.stringify(reply)}`);
  return reply.map(Number) as SixIntegers;
}

/** 16 random bytes, which are one acquisition's: a late release takes nobody else's units. */
function freshId(): string {
  return randomBytes(16).toString("hex");
}
