/** The parts of an admission, each as the kind of its limiter needs it. */

import type { Period } from "../core/calendar.js";
import type { Decision } from "../core/decision.js";
import { type Clause, type HoldRequest, holdReplyOf, replyOf } from "../protocol/commands.js";
import type { Instant } from "../util/suspend-clock.js";
import { BudgetLimiter } from "./budget.js";
import { type Hold, HoldLimiter } from "./hold.js";
import { Limiter } from "./rate.js";

/** One of the limits that apply to a request. */
export interface Part<Name extends string = string> {
  readonly limiter: Limiter | BudgetLimiter | HoldLimiter;
  readonly key: string;
  /** Requested units of this one. */
  readonly cost?: number;
  /** Overrides the limiter's, for this request. */
  readonly limit?: number | undefined;
  /** The name of its units in `settle({ [name]: units })`. */
  readonly name?: Name;
}

/** The same parts, whose places this process grants without the server by default. */
export function ofRequests<Parts extends readonly Part[]>(parts: Parts): Parts {
  const places = ({ limiter }: Part) => (limiter instanceof HoldLimiter ? { limiter: limiter.ofRequests } : {});
  return parts.map((part) => ({ ...part, ...places(part) })) as unknown as Parts;
}

/** A part, by the kind of its limiter. */
export interface Member {
  /** The key at the server. */
  readonly name: string;
  readonly cost: number;
  /** Its clause of ADMIT; `isLater`: with the end of the next period. */
  clause(isLater: boolean): Promise<Clause>;
  /** The decision for the server's reply to a request that was sent at `since`, all of which was granted or nothing. */
  decided(reply: unknown, isGranted: boolean, since: Instant): Decision;
  /** The decision of this process, which is counted when it takes units. */
  here(by: "local" | "failure", how: "look" | "take"): Decision;
  /** Count so many units more, or give back if below 0, `age` ms after they were counted; the change. */
  correct(more: number, age: number): Promise<number>;
  /** The same of what this process has counted, where nothing goes back of what it has counted since. */
  correctHere(more: number): number;
}

/** `maxAge`: of a hold. */
export function memberOf(part: Part, maxAge: number | undefined): Member {
  const { limiter, key, cost = 1, limit } = part;
  if (limiter instanceof Limiter) return rate(limit === undefined ? limiter : limiter.with({ limit }), key, cost);
  if (limiter instanceof BudgetLimiter) {
    return budget(limit === undefined ? limiter : limiter.with({ limit }), key, cost);
  }
  if (limiter instanceof HoldLimiter) {
    return new HeldMember(limit === undefined ? limiter : limiter.with({ limit }), key, cost, maxAge);
  }
  throw new TypeError("admit takes a Limiter, a BudgetLimiter or a HoldLimiter");
}

function rate(limiter: Limiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const demand = limiter.demand({ cost });
  let taken = 0;
  return {
    name,
    cost,
    clause: async () => ({ kind: "RATE", key: name, demand }),
    decided: (reply) => limiter.counted(limiter.decision(replyOf(reply), "server")),
    here: (by, how) => {
      taken = limiter.now();
      const decide = how === "look" ? "peek" : "allow";
      const decision = limiter.decisionHere(by, demand, (asked) => limiter.window(name)[decide](asked, limiter.now()));
      return how === "look" ? decision : limiter.counted(decision);
    },
    correct: async (more, age) => {
      if (more > 0) await limiter.record(key, { cost: more });
      return more > 0 ? more : -(await limiter.refund(key, -more, { age }));
    },
    correctHere: (more) => {
      if (!limiter.countsHere) return 0;
      const now = limiter.now();
      if (more < 0) return 0 - limiter.window(name).refund(-more, now, now - taken);
      limiter.window(name).record({ ...demand, cost: more }, now);
      return more;
    },
  };
}

function budget(limiter: BudgetLimiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const demand = limiter.demand({ cost });
  let period: Period = { start: 0, end: 0 };
  let ends = 0; // when what was taken no longer counts
  const until = (decision: Decision) => {
    ends = limiter.now() + (decision.resetAfter ?? 0);
    return decision;
  };
  return {
    name,
    cost,
    clause: async (isLater) => {
      period = await limiter.periodNow(isLater);
      return { kind: "BUDGET", key: name, limit: demand.limit, until: period.end, cost };
    },
    decided: (reply) => limiter.counted(until(limiter.decision(replyOf(reply), "server", period))),
    here: (by, how) => until(limiter[how === "look" ? "decisionHere" : "here"](by, name, demand, how)),
    correct: async (more) => {
      if (more > 0) await limiter.record(key, { cost: more });
      if (more < 0) return limiter.now() < ends ? 0 - (await limiter.refund(key, -more)) : 0;
      return more;
    },
    correctHere: (more) => {
      if (!limiter.countsHere) return 0;
      if (more < 0) return limiter.now() < ends ? 0 - limiter.refundHere(name, -more) : 0;
      limiter.decisionHere("local", name, { ...demand, cost: more }, "force");
      return more;
    },
  };
}

/** A place, which is held until it is released, and has no units to settle. */
export class HeldMember implements Member {
  readonly name: string;
  /** Null until it is granted. */
  hold: Hold | null = null;
  private readonly request: HoldRequest;

  constructor(
    private readonly limiter: HoldLimiter,
    key: string,
    readonly cost: number,
    private readonly maxAge: number | undefined,
  ) {
    this.request = limiter.request(key, { cost });
    this.name = this.request.key;
  }

  get ttl(): number {
    return this.request.ttl;
  }

  async clause(): Promise<Clause> {
    return { kind: "HOLD", ...this.request };
  }

  decided(reply: unknown, isGranted: boolean, since: Instant): Decision {
    const found = holdReplyOf(reply);
    if (isGranted) {
      this.hold = this.limiter.held(this.request, found, since, this.maxAge);
      return this.hold;
    }
    const [granted, limit, remaining, retryAfter] = found;
    return this.limiter.counted(this.limiter.decision([granted, limit, remaining, retryAfter], "server"));
  }

  here(by: "local" | "failure", how: "look" | "take"): Decision {
    if (how === "look") return this.limiter.lookHere(by, this.request);
    this.hold = this.limiter.heldHere(by, this.request, this.maxAge);
    return this.hold;
  }

  async correct(): Promise<number> {
    return 0;
  }

  correctHere(): number {
    return 0;
  }
}

/** The holds that were granted, in order. */
export function holdsOf(members: readonly Member[]): Hold[] {
  return members.flatMap((member) => (member instanceof HeldMember && member.hold ? [member.hold] : []));
}
