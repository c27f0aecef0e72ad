/** One decision of everything: rates, budgets and a hold, all or nothing; put right afterwards by what was really used. */

import type { Period } from "../core/calendar.js";
import type { Decision } from "../core/decision.js";
import { integer } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { type HeaderOptions, headersOf } from "../core/headers.js";
import { clock } from "../core/local-windows.js";
import { requested, type WaitOptions } from "../core/options.js";
import * as commands from "../protocol/commands.js";
import { type Clause, type Ending, quotaWords, replyOf, type Wish } from "../protocol/commands.js";
import type { Server } from "../transport/client-state.js";
import { instant, passed } from "../util/suspend-clock.js";
import { inTime } from "../util/timeout.js";
import { waitOf } from "./all-of.js";
import { BudgetLimiter } from "./budget.js";
import { type Hold, HoldLimiter, sixOf } from "./hold.js";
import { Limiter } from "./rate.js";

/** One of the limits that a request is to keep. */
export interface Part {
  readonly limiter: Limiter | BudgetLimiter | HoldLimiter;
  readonly key: string;
  /** Units that are asked for of this one. */
  readonly cost?: number;
}

const PARTS = new Set(["limiter", "key", "cost"]);
const DECIDED = new Set(["deadline", "signal"]);

/** A settlement that was not answered is sent again after so much of the time to live. */
const AGAIN = 10;

/** A part, and what its kind makes of it. */
interface Member {
  readonly name: string;
  readonly cost: number;
  /** Its clause of ADMIT; a budget's has the end of a period. */
  clause(isLater: boolean): Promise<Clause>;
  /** The decision that the server's integers are. */
  told(reply: unknown): Decision;
  /** What this process decides. */
  here(by: "local" | "failure", how: "look" | "take"): Decision;
  /** Count more, or give back, so many ms after it was counted: what was counted more, or below 0 given back. */
  correct(more: number, age: number): Promise<number>;
}

/** What all of it together answers. */
export class Admission {
  private isSettled = false;

  /** @internal */
  constructor(
    /** Whether all granted their cost; else nothing was counted anywhere. */
    readonly granted: boolean,
    /** What each of them says, in order. */
    readonly each: readonly Decision[],
    /** The hold, while it is to be renewed; null where none was asked for or granted. */
    readonly hold: Hold | null,
    /** @internal */ private readonly correction: Correction | null,
  ) {}

  /** ms until all would grant; 0 when they did, −1 when one never can, undefined when none says. */
  get retryAfter(): number | undefined {
    return waitOf(this.each);
  }

  /**
   * Put it right by the units that were really used of each, in order, without the hold; the hold ends. What is not used
   * goes back, what is used beyond is counted. It happens once, whatever is lost on the way: how much was changed of each,
   * or null where nothing goes back: the hold had ended before, or `onFailure` had granted.
   */
  async settle(...used: number[]): Promise<readonly number[] | null> {
    if (!this.granted) throw new TypeError("nothing was granted that could be settled");
    const { correction } = this;
    correction?.check(used);
    if (this.isSettled) return null;
    this.isSettled = true;
    if (correction) return correction.settle(used);
    await this.release();
    return null;
  }

  /** End the hold, and leave all else counted as it is. */
  async release(): Promise<void> {
    await this.hold?.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** The headers of a response, of rates and budgets. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    const { granted, retryAfter } = this;
    return headersOf(
      this.each.filter(({ resetAfter }) => resetAfter !== undefined),
      { granted, retryAfter },
      options,
    );
  }
}

/** Decide rates, budgets and a hold at once. All limiters have the same client, and in a cluster all keys one slot. */
export async function admit(parts: readonly Part[], options: WaitOptions = {}): Promise<Admission> {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new TypeError("admit needs a list of at least one { limiter, key }");
  }
  requested(options, DECIDED);
  for (const part of parts) requested(part, PARTS);
  const holding = holdOf(parts);
  const members = parts.map((part) => memberOf(part, holding));
  const [{ limiter: first }] = parts as [Part];
  const { server } = first;
  if (parts.some(({ limiter }) => limiter.server !== server)) {
    throw new TypeError("limits that are decided at once need the same client");
  }
  if (!server) return admittedHere(members, holding, "local");
  const correction = new Correction(server, members, holding, first.settings.timeout);
  try {
    const since = instant();
    const reply = await asked(first, parts, members, options, correction.undo);
    const granted = Number(reply[0]) === 1;
    const each = members.map((member, at) => {
      if (member === holding?.member && holding) return holding.take(reply[at + 1], since, granted);
      return member.told(reply[at + 1]);
    });
    return new Admission(granted, each, granted && holding ? holding.hold : null, granted ? correction : null);
  } catch (error) {
    const fails = parts.some(({ limiter }) => limiter.settings.onFailure === "error");
    if (!(error instanceof UnavailableError) || fails) throw error;
    return admittedHere(members, holding, "failure");
  }
}

/** The reply to ADMIT. What nobody waits for any more is undone. */
async function asked(
  first: Part["limiter"],
  parts: readonly Part[],
  members: readonly Member[],
  options: WaitOptions,
  undo: Ending | null,
): Promise<unknown[]> {
  const [{ name }] = members as [Member];
  return BudgetLimiter.inForce(async (isLater: boolean) => {
    const clauses = await Promise.all(members.map((member) => member.clause(isLater)));
    const reply = await first.ask(commands.admit(clauses, isStrict(parts), undo), name, options);
    if (!Array.isArray(reply)) throw new RefusedError(`unexpected reply: ${JSON.stringify(reply)}`);
    return reply;
  });
}

function isStrict(parts: readonly Part[]): boolean {
  const strict = parts.flatMap(({ limiter }) => (limiter instanceof Limiter ? [limiter.quota.strict] : []));
  if (new Set(strict).size > 1) throw new TypeError("limits that are decided at once must all be strict or none");
  return strict[0] ?? false;
}

/** All or nothing, in this process. */
function admittedHere(members: readonly Member[], holding: Holding | null, by: "local" | "failure"): Admission {
  const looked = members.map((member) => member.here(by, "look"));
  if (!looked.every(({ granted }) => granted > 0)) return new Admission(false, looked, null, null);
  const each = members.map((member) => member.here(by, "take"));
  const hold = holding?.hold ?? null;
  return new Admission(true, each, hold, by === "local" ? new Correction(null, members, holding, 0) : null);
}

/** The one hold among what is asked for. */
class Holding {
  readonly wish: Wish;
  readonly member: Member;
  hold: Hold | null = null;

  constructor(
    private readonly limiter: HoldLimiter,
    { key, cost = 1 }: Part,
  ) {
    this.wish = limiter.wish(key, { cost });
    const { name, ttl, id } = this.wish;
    const words = ["HOLD", String(limiter.limit), `${ttl}ms`, id, String(cost)];
    this.member = {
      name,
      cost,
      clause: async () => ({ name, words, counted: null }),
      told: (reply) => this.told(reply),
      here: (by, how) => {
        if (how === "look") return limiter.lookHere(by, this.wish);
        this.hold = limiter.heldHere(by, this.wish);
        return this.hold;
      },
      correct: async () => 0,
    };
  }

  take(reply: unknown, since: ReturnType<typeof instant>, isGranted: boolean): Decision {
    if (!isGranted) return this.told(reply);
    this.hold = this.limiter.held(this.wish, sixOf(reply), since);
    return this.hold;
  }

  private told(reply: unknown): Decision {
    const [granted, limit, remaining, retryAfter] = sixOf(reply);
    return this.limiter.decision([granted, limit, remaining, retryAfter], "server");
  }
}

function holdOf(parts: readonly Part[]): Holding | null {
  const [part, more] = parts.filter(({ limiter }) => limiter instanceof HoldLimiter);
  if (more) throw new TypeError("admit takes one hold");
  return part ? new Holding(part.limiter as HoldLimiter, part) : null;
}

function memberOf(part: Part, holding: Holding | null): Member {
  const { limiter, key, cost = 1 } = part;
  if (limiter instanceof Limiter) return rate(limiter, key, cost);
  if (limiter instanceof BudgetLimiter) return budget(limiter, key, cost);
  if (limiter instanceof HoldLimiter && holding) return holding.member;
  throw new TypeError("admit takes a Limiter, a BudgetLimiter or a HoldLimiter");
}

function rate(limiter: Limiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const demand = limiter.demand({ cost });
  const [limit, window, resolution] = quotaWords(demand) as [string, string, string];
  return {
    name,
    cost,
    clause: async () => ({
      name,
      words: ["RATE", limit, window, resolution, String(cost)],
      counted: (reply) => commands.counted(name, reply),
    }),
    told: (reply) => {
      limiter.counts.server++;
      return limiter.decision(replyOf(reply), "server");
    },
    here: (by, how) => {
      if (how === "take") limiter.counts[by]++;
      const decide = how === "look" ? "peek" : "allow";
      return limiter.decisionHere(by, demand, (wanted) => limiter.window(name)[decide](wanted, clock()));
    },
    correct: async (more, age) => {
      if (more > 0) await limiter.record(key, { cost: more });
      return more > 0 ? more : -(await limiter.refund(key, -more, { age }));
    },
  };
}

function budget(limiter: BudgetLimiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const wanted = limiter.wanted({ cost });
  let period: Period = { start: 0, end: 0 };
  return {
    name,
    cost,
    clause: async (isLater) => {
      period = await limiter.periodNow(isLater);
      return {
        name,
        words: ["BUDGET", String(wanted.limit), String(period.end), String(cost)],
        counted: (reply) => commands.countedInPeriod(name, reply),
      };
    },
    told: (reply) => {
      limiter.counts.server++;
      return limiter.decision(replyOf(reply), "server", period);
    },
    here: (by, how) => limiter.here(by, name, wanted, how),
    correct: async (more) => {
      if (more > 0) await limiter.record(key, { cost: more });
      return more > 0 ? more : -(await limiter.refund(key, -more));
    },
  };
}

/** What is to be done once it is known what was used. */
class Correction {
  private readonly since = instant();
  private readonly others: readonly Member[];

  constructor(
    private readonly server: Server | null,
    members: readonly Member[],
    private readonly holding: Holding | null,
    private readonly timeout: number,
  ) {
    this.others = members.filter((member) => member !== holding?.member);
  }

  check(used: readonly number[]): void {
    for (const units of used) integer(units, "used", 0);
    if (used.length === this.others.length) return;
    throw new TypeError(`settle takes what was used of each, but of the hold: ${this.others.length} numbers`);
  }

  async settle(used: readonly number[]): Promise<readonly number[] | null> {
    const { hold = null } = this.holding ?? {};
    if (!this.server || !hold || hold.source !== "server") return this.settleEach(used, hold);
    try {
      const { reply, isFirst } = await this.settled(used, hold);
      const [done, ...changes] = reply.map(Number);
      if (done === 1) return changes;
      // The hold had ended. Had a first settlement been lost, it might have counted what was used beyond.
      if (isFirst) await this.correct(used.map((units, at) => Math.max(0, units - this.cost(at))));
      return null;
    } finally {
      hold.end();
    }
  }

  /** What gives everything back, where a hold has it remembered. */
  get undo(): Ending | null {
    const { holding, others } = this;
    return holding && { words: this.words(others.map(() => 0)), lasts: holding.wish.ttl };
  }

  private words(used: readonly number[]): string[] {
    const { name, id } = (this.holding as Holding).wish;
    const names = [name, ...this.others.map((other) => other.name)];
    return ["SWLIMIT.SETTLE", String(names.length), ...names, id, ...used.map(String)];
  }

  /** The server's answer: sent again until it comes, as long as the hold is renewed. */
  private async settled(used: readonly number[], hold: Hold): Promise<{ reply: unknown[]; isFirst: boolean }> {
    const { server, timeout } = this;
    const words = this.words(used);
    for (let isFirst = true; ; isFirst = false) {
      let refused: RefusedError | undefined;
      const answer = new Promise<unknown>((resolve) => {
        const late = (reply: Promise<unknown>) => void reply.then(resolve, () => {});
        (server as Server).ask(words, hold.name, { timeout, always: true, late }).then(resolve, (error) => {
          if (!(error instanceof RefusedError)) return;
          refused = error;
          resolve(null);
        });
      });
      if (await inTime(answer, hold.ttl / AGAIN)) {
        if (refused) throw refused;
        return { reply: (await answer) as unknown[], isFirst };
      }
      if (!hold.isLive) throw new UnavailableError("the settlement was not answered while the hold lasted");
    }
  }

  private async settleEach(used: readonly number[], hold: Hold | null): Promise<readonly number[]> {
    const changes = await this.correct(used.map((units, at) => units - this.cost(at)));
    await hold?.release();
    return changes;
  }

  /** Without a hold nothing is remembered, so each is put right by itself, once. */
  private correct(more: readonly number[]): Promise<number[]> {
    const age = Math.ceil(passed(this.since)) + this.timeout;
    return Promise.all(this.others.map((other, at) => (more[at] ? other.correct(more[at], age) : 0)));
  }

  private cost(at: number): number {
    return this.others[at]?.cost ?? 0;
  }
}
