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
      this.checkNoWarmUp("acquire");
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

  /** Grant all requests again, or those for a key. */
  grant(key?: string): void {
    if (key === undefined) this.answers.waits.clear();
    else this.answers.waits.set(this.name(key), 0);
  }

  /** Decide at once: nobody waits for a fake. */
  override async acquire(key: string, timeout: Duration, options: AcquireOptions = {}): Promise<Decision> {
    milliseconds(timeout, "timeout", 0);
    const reply = this.answers.entry(this.name(key)).acquire(this.demand(requested(options, WAITED)));
    return this.counted(this.decision(reply, "local"));
  }

  /** @internal */
  override window(name: string): Entry {
    return new AnswerOfSeveral(this.answers, name);
  }
}

/** What a fake answers in place of windows. */
class Answers extends LocalWindows {
  readonly calls: Call[] = [];
  /** For how many ms requests for a key are denied; null: those for all others. 0: not at all; −1: for ever. */
  readonly waits = new Map<string | null, number>();

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
  }

  note(method: Call["method"], key: string, cost = 0): void {
    this.calls.push({ method, key, cost });
  }

  reply(key: string, { limit, cost }: Demand): Reply {
    const wait = this.waits.get(key) ?? this.waits.get(null) ?? 0;
    return wait === 0 ? [cost, limit, Math.max(0, limit - cost), 0, 0] : [0, limit, 0, wait, Math.max(0, wait)];
  }
}

class Answer extends Entry {
  constructor(
    protected readonly answers: Answers,
    protected readonly key: string,
  ) {
    super();
  }

  override allow(demand: Demand): Reply {
    return this.noted("allow", demand);
  }

  override peek(demand: Demand): Reply {
    return this.noted("peek", demand);
  }

  override record(demand: Demand): Reply {
    return this.noted("record", demand);
  }

  acquire(demand: Demand): Reply {
    return this.noted("acquire", demand);
  }

  override refund(units: number): number {
    this.answers.note("refund", this.key, units);
    return units;
  }

  override block(duration: number, now: number): number {
    this.answers.note("block", this.key);
    return now + duration;
  }

  override unblock(): boolean {
    this.answers.note("unblock", this.key);
    return true;
  }

  protected noted(method: Call["method"], demand: Demand): Reply {
    this.answers.note(method, this.key, demand.cost);
    return this.answers.reply(this.key, demand);
  }
}

/** Of several limits, each is looked at first, and then counts if all grant. */
class AnswerOfSeveral extends Answer {
  override peek(demand: Demand): Reply {
    return this.noted("allow", demand);
  }

  override allow(demand: Demand): Reply {
    return this.answers.reply(this.key, demand);
  }
}
