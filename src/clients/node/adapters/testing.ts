/** For tests of programs that limit: a clock that the test moves, and a limiter that denies on demand. */

import { type Decision, NEVER } from "../core/decision.js";
import { type Duration, milliseconds } from "../core/duration.js";
import { LocalWindows } from "../core/local-windows.js";
import { requested } from "../core/options.js";
import { type Demand, Entry, type Reply } from "../core/window.js";
import type { BudgetLimiter } from "../limiters/budget.js";
import { Limits } from "../limiters/limits.js";
import { type AcquireOptions, Limiter, type LimiterOptions, WAITED } from "../limiters/rate.js";

/**
 * A clock that stands still until the test moves it, or until a limiter waits by it: a wait is over at once, and the
 * clock shows the time after it.
 *
 * @example
 * import { TestClock } from "swlimit/testing";
 *
 * const clock = new TestClock();
 * const limiter = clock.limiter({ limit: 1, window: "1m" });
 * await limiter.allow("user:1");
 * clock.advance("1m");
 */
export class TestClock {
  private ms: number;

  /** It shows the start of 2026 (UTC), or another time. */
  constructor(start: Date = new Date("2026-01-01T00:00:00Z")) {
    this.ms = start.getTime();
    if (Number.isNaN(this.ms)) throw new RangeError("start must be a valid date");
  }

  get now(): Date {
    return new Date(this.ms);
  }

  /** Move the clock forward. */
  advance(duration: Duration): void {
    this.ms += milliseconds(duration, "duration", 0);
  }

  /** A limiter without a server, by this clock. */
  limiter(options: Omit<LimiterOptions, "client" | "mode">): Limiter {
    return this.drive(new Limiter(options));
  }

  /** Let a limiter without a server go by this clock, and return it. */
  drive<Any extends Limiter | Limits | BudgetLimiter>(limiter: Any): Any {
    if (limiter instanceof Limits) {
      for (const one of limiter.limiters) this.drive(one);
      return limiter;
    }
    const one: Limiter | BudgetLimiter = limiter;
    if (one.core) throw new TypeError("a server decides by its own clock: give the limiter no client");
    one.now = one.date = () => this.ms;
    if (one instanceof Limiter) one.acquire = this.acquireOf();
    return limiter;
  }

  private acquireOf(): Limiter["acquire"] {
    const clock = this;
    return async function acquire(this: Limiter, key: string, timeout: Duration, options: AcquireOptions = {}) {
      requested(options, WAITED);
      const until = clock.ms + milliseconds(timeout, "timeout", 0);
      for (;;) {
        const decision = await this.allow(key, options);
        const { granted, retryAfter } = decision;
        if (granted > 0 || retryAfter === undefined || clock.ms + retryAfter > until) return decision;
        clock.advance(retryAfter);
      }
    };
  }
}

/** A call of a FakeLimiter. */
export interface Call {
  /** Of several limits at once, "allow" for each. */
  readonly method: "allow" | "peek" | "record" | "acquire" | "refund" | "block" | "unblock" | "reset";
  /** With the limiter's prefix. */
  readonly key: string;
  /** Or the units of a refund; 0 where a method has neither. */
  readonly cost: number;
}

/**
 * A limiter that grants everything until the test says otherwise, and remembers what it was asked.
 *
 * @example
 * import { FakeLimiter } from "swlimit/testing";
 *
 * const fake = new FakeLimiter();
 * fake.deny("30s");
 * const { retryAfter } = await fake.allow("user:1");
 * console.log(retryAfter, fake.calls);
 */
export class FakeLimiter extends Limiter {
  private readonly answers: Answers;

  /** `limit` and `window` are what its decisions show. */
  constructor(options: Partial<Pick<LimiterOptions, "limit" | "window" | "prefix" | "name">> = {}) {
    super({ limit: 100, window: "1m", ...options });
    this.answers = this.windows = new Answers();
  }

  /** What it was asked, oldest first. */
  get calls(): readonly Call[] {
    return this.answers.calls;
  }

  /** Deny all requests from now on, or those for a key; with Infinity they can never be granted. */
  deny(retryAfter: Duration = 1000, key?: string): void {
    const wait = retryAfter === Number.POSITIVE_INFINITY ? NEVER : milliseconds(retryAfter, "retryAfter");
    if (key === undefined) this.grant();
    this.answers.waits.set(key === undefined ? null : this.name(key), wait);
  }

  /** Grant all requests again, or those for a key, also where it is blocked. */
  grant(key?: string): void {
    this.answers.grant(key === undefined ? undefined : this.name(key));
  }

  /** Decide at once: nobody waits for a fake. */
  override async acquire(key: string, timeout: Duration, options: AcquireOptions = {}): Promise<Decision> {
    milliseconds(timeout, "timeout", 0);
    const reply = this.answers.entry(this.name(key)).acquire(this.demand(requested(options, WAITED)), this.now());
    return this.counted(this.decision(reply, "local"));
  }

  /** @internal */
  override window(name: string): Entry {
    return new AnswerOfSeveral(this.answers, name);
  }
}

/** What a fake answers: what a window does for which nothing is counted yet, or which is blocked. */
class Answers extends LocalWindows {
  readonly calls: Call[] = [];
  /** For how many ms requests for a key are denied; null: those for all others. 0: not at all; −1: for ever. */
  readonly waits = new Map<string | null, number>();
  private readonly blocks = new Map<string, Entry>();

  constructor() {
    super(1);
  }

  override entry(key: string): Answer {
    return new Answer(this, key);
  }

  override find(key: string): Answer {
    return new Answer(this, key);
  }

  override delete(key: string): void {
    this.note("reset", key);
    this.blocks.delete(key);
  }

  grant(key: string | undefined): void {
    if (key === undefined) {
      this.waits.clear();
      this.blocks.clear();
    } else {
      this.waits.set(key, 0);
      this.blocks.delete(key);
    }
  }

  note(method: Call["method"], key: string, cost = 0): void {
    this.calls.push({ method, key, cost });
  }

  /** A window that counts nothing, and has only the key's blocks. */
  blocked(key: string): Entry {
    const found = this.blocks.get(key) ?? new Entry();
    this.blocks.set(key, found);
    return found;
  }

  /** The reply of a new window that is denied for as long as the key is; `block`: what a denial begins. */
  reply(key: string, demand: Demand, now: number, decide: (window: Entry, at: number) => Reply, block = 0): Reply {
    const at = now - (now % demand.resolution); // so that a request always has the same answer
    const wait = this.waits.get(key) ?? this.waits.get(null) ?? 0;
    if (wait === NEVER) return [0, demand.limit, 0, NEVER, 0];
    const window = new Entry();
    window.block(Math.max(wait, this.blocked(key).end - now), at);
    const reply = decide(window, at);
    if (reply[0] === 0 && block > 0) this.blocked(key).block(block, now);
    return reply;
  }
}

class Answer extends Entry {
  constructor(
    protected readonly answers: Answers,
    protected readonly key: string,
  ) {
    super();
  }

  override allow(demand: Demand, now: number, block = 0, method: Call["method"] = "allow"): Reply {
    this.note(method, demand.cost);
    return this.answers.reply(this.key, demand, now, (window, at) => window.allow(demand, at, block), block);
  }

  override peek(demand: Demand, now: number): Reply {
    this.note("peek", demand.cost);
    return this.answers.reply(this.key, demand, now, (window, at) => window.peek(demand, at));
  }

  override record(demand: Demand, now: number, dated?: number, block = 0): Reply {
    this.note("record", demand.cost);
    return this.answers.reply(this.key, demand, now, (window, at) => window.record(demand, at, dated, block), block);
  }

  acquire(demand: Demand, now: number): Reply {
    return this.allow(demand, now, 0, "acquire");
  }

  override refund(units: number): number {
    this.note("refund", units);
    return units;
  }

  override block(duration: number, now: number, unlessBlocked = false): number {
    this.note("block");
    return this.answers.blocked(this.key).block(duration, now, unlessBlocked);
  }

  override unblock(now: number): boolean {
    this.note("unblock");
    return this.answers.blocked(this.key).unblock(now);
  }

  protected note(method: Call["method"], cost?: number): void {
    this.answers.note(method, this.key, cost);
  }
}

/** Of several limits, each is looked at first, and then counts if all grant. */
class AnswerOfSeveral extends Answer {
  override peek(demand: Demand, now: number): Reply {
    this.note("allow", demand.cost);
    return this.answers.reply(this.key, demand, now, (window, at) => window.peek(demand, at));
  }

  override allow(demand: Demand, now: number): Reply {
    return this.answers.reply(this.key, demand, now, (window, at) => window.allow(demand, at));
  }
}
