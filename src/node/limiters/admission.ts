/** One decision of rates, budgets and a hold: all or nothing. It is settled later by the units really used. */

import type { Period } from "../core/calendar.js";
import type { Decision } from "../core/decision.js";
import { integer } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { type HeaderOptions, headersOf } from "../core/headers.js";
import { clock } from "../core/local-windows.js";
import { requested, type Settings, type WaitOptions } from "../core/options.js";
import { type Clause, type Command, type HoldRequest, holdReplyOf, repliesOf, replyOf } from "../protocol/commands.js";
import type { ClientState } from "../transport/client-state.js";
import { RETRIES } from "../transport/hold-renewer.js";
import { instant, passed } from "../util/suspend-clock.js";
import { inTime } from "../util/timeout.js";
import { longestWait } from "./all-of.js";
import { BudgetLimiter } from "./budget.js";
import { type Hold, HoldLimiter } from "./hold.js";
import { Limiter } from "./rate.js";

/** One of the limits that apply to a request. */
export interface Part {
  readonly limiter: Limiter | BudgetLimiter | HoldLimiter;
  readonly key: string;
  /** Requested units of this one. */
  readonly cost?: number;
}

const PARTS = new Set(["limiter", "key", "cost"]);
const DECIDED = new Set(["deadline", "signal"]);

/** A part, by the kind of its limiter. */
interface Member {
  readonly name: string;
  readonly cost: number;
  /** Its clause of ADMIT; `isLater`: with the end of the next period. */
  clause(isLater: boolean): Promise<Clause>;
  /** The decision for the server's reply. */
  decided(reply: unknown): Decision;
  /** The decision of this process. */
  here(by: "local" | "failure", how: "look" | "take"): Decision;
  /** Count so many units more, or give back if below 0, `age` ms after they were counted; the change. */
  correct(more: number, age: number): Promise<number>;
}

/** The decision of everything together. */
export class Admission {
  private isSettled = false;

  /** @internal */
  constructor(
    /** Whether all granted their cost; otherwise nothing was counted anywhere. */
    readonly granted: boolean,
    /** The decision of each, in order. */
    readonly each: readonly Decision[],
    /** The hold, which is renewed until it is settled or released; null where none was requested or granted. */
    readonly hold: Hold | null,
    /** @internal */ private readonly settlement: Settlement | null,
  ) {}

  /** ms until all grant; 0 when they did, −1 when one never can, undefined when unknown. */
  get retryAfter(): number | undefined {
    return longestWait(this.each);
  }

  /**
   * Correct the counts by the units that were really used of each, in order, without the hold; the hold ends. Unused
   * units go back, and units beyond the cost are counted. It happens exactly once, whatever fails on the way. The
   * change of each; or null where nothing goes back: the hold had ended before, or `onFailure` had granted.
   */
  async settle(...used: number[]): Promise<readonly number[] | null> {
    if (!this.granted) throw new TypeError("nothing was granted that could be settled");
    const { settlement } = this;
    settlement?.check(used);
    if (this.isSettled) return null;
    this.isSettled = true;
    if (settlement) return settlement.settle(used);
    await this.release();
    return null;
  }

  /** End the hold, and leave everything else counted as it is. */
  async release(): Promise<void> {
    await this.hold?.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** The headers of a response, for rates and budgets. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    const { granted, retryAfter } = this;
    return headersOf(
      this.each.filter(({ resetAfter }) => resetAfter !== undefined),
      { granted, retryAfter },
      options,
    );
  }
}

/** Decide rates, budgets and a hold at once. All limiters need the same client, and in a cluster all keys one slot. */
export async function admit(parts: readonly Part[], options: WaitOptions = {}): Promise<Admission> {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new TypeError("admit needs a list of at least one { limiter, key }");
  }
  requested(options, DECIDED);
  for (const part of parts) requested(part, PARTS);
  const held = heldPartOf(parts);
  const members = parts.map((part) => memberOf(part, held)) as [Member, ...Member[]];
  const [{ limiter: first }] = parts as [Part];
  const { clientState } = first;
  if (parts.some(({ limiter }) => limiter.clientState !== clientState)) {
    throw new TypeError("limits that are decided at once need the same client");
  }
  if (!clientState) return admittedHere(members, held, "local");
  const strict = isStrict(parts);
  const settlement = new Settlement(clientState, members, held, first.settings);
  try {
    const since = instant();
    const [granted, ...replies] = await BudgetLimiter.inPeriod(async (isLater) => {
      const clauses = (await Promise.all(members.map((member) => member.clause(isLater)))) as [Clause, ...Clause[]];
      return repliesOf(await first.ask({ name: "ADMIT", clauses, strict }, options));
    });
    const each = members.map((member, at) =>
      granted && member === held ? held.take(replies[at], since) : member.decided(replies[at]),
    );
    return new Admission(granted, each, granted && held ? held.hold : null, granted ? settlement : null);
  } catch (error) {
    const fails = parts.some(({ limiter }) => limiter.settings.onFailure === "error");
    if (!(error instanceof UnavailableError) || fails) throw error;
    return admittedHere(members, held, "failure");
  }
}

function isStrict(parts: readonly Part[]): boolean {
  const strict = parts.flatMap(({ limiter }) => (limiter instanceof Limiter ? [limiter.quota.strict] : []));
  if (new Set(strict).size > 1) throw new TypeError("limits that are decided at once must all be strict or none");
  return strict[0] ?? false;
}

/** Nothing is sent. */
const ALONE = { timeout: 0, module: "never" } as const;

/** All or nothing, in this process. */
function admittedHere(members: readonly Member[], held: HeldPart | null, by: "local" | "failure"): Admission {
  const looked = members.map((member) => member.here(by, "look"));
  if (!looked.every(({ granted }) => granted > 0)) return new Admission(false, looked, null, null);
  const each = members.map((member) => member.here(by, "take"));
  const hold = held?.hold ?? null;
  return new Admission(true, each, hold, by === "local" ? new Settlement(null, members, held, ALONE) : null);
}

/** The one part that is a hold. */
class HeldPart implements Member {
  readonly request: HoldRequest;
  hold: Hold | null = null;

  constructor(
    private readonly limiter: HoldLimiter,
    { key, cost = 1 }: Part,
  ) {
    this.request = limiter.request(key, { cost });
  }

  get name(): string {
    return this.request.key;
  }

  get cost(): number {
    return this.request.cost;
  }

  async clause(): Promise<Clause> {
    return { kind: "HOLD", ...this.request };
  }

  take(reply: unknown, since: ReturnType<typeof instant>): Hold {
    this.hold = this.limiter.held(this.request, holdReplyOf(reply), since);
    return this.hold;
  }

  decided(reply: unknown): Decision {
    const [granted, limit, remaining, retryAfter] = holdReplyOf(reply);
    return this.limiter.decision([granted, limit, remaining, retryAfter], "server");
  }

  here(by: "local" | "failure", how: "look" | "take"): Decision {
    if (how === "look") return this.limiter.lookHere(by, this.request);
    this.hold = this.limiter.heldHere(by, this.request);
    return this.hold;
  }

  async correct(): Promise<number> {
    return 0;
  }
}

function heldPartOf(parts: readonly Part[]): HeldPart | null {
  const [part, more] = parts.filter(({ limiter }) => limiter instanceof HoldLimiter);
  if (more) throw new TypeError("admit takes one hold");
  return part ? new HeldPart(part.limiter as HoldLimiter, part) : null;
}

function memberOf(part: Part, held: HeldPart | null): Member {
  const { limiter, key, cost = 1 } = part;
  if (limiter instanceof Limiter) return rate(limiter, key, cost);
  if (limiter instanceof BudgetLimiter) return budget(limiter, key, cost);
  if (limiter instanceof HoldLimiter && held) return held;
  throw new TypeError("admit takes a Limiter, a BudgetLimiter or a HoldLimiter");
}

function rate(limiter: Limiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const demand = limiter.demand({ cost });
  return {
    name,
    cost,
    clause: async () => ({ kind: "RATE", key: name, demand }),
    decided: (reply) => {
      limiter.counts.server++;
      return limiter.decision(replyOf(reply), "server");
    },
    here: (by, how) => {
      if (how === "take") limiter.counts[by]++;
      const decide = how === "look" ? "peek" : "allow";
      return limiter.decisionHere(by, demand, (asked) => limiter.window(name)[decide](asked, clock()));
    },
    correct: async (more, age) => {
      if (more > 0) await limiter.record(key, { cost: more });
      return more > 0 ? more : -(await limiter.refund(key, -more, { age }));
    },
  };
}

function budget(limiter: BudgetLimiter, key: string, cost: number): Member {
  const name = limiter.name(key);
  const demand = limiter.demand({ cost });
  let period: Period = { start: 0, end: 0 };
  return {
    name,
    cost,
    clause: async (isLater) => {
      period = await limiter.periodNow(isLater);
      return { kind: "BUDGET", key: name, limit: demand.limit, until: period.end, cost };
    },
    decided: (reply) => {
      limiter.counts.server++;
      return limiter.decision(replyOf(reply), "server", period);
    },
    here: (by, how) => limiter.here(by, name, demand, how),
    correct: async (more) => {
      if (more > 0) await limiter.record(key, { cost: more });
      return more > 0 ? more : -(await limiter.refund(key, -more));
    },
  };
}

/** Corrects the counts once it is known what was used. */
class Settlement {
  private readonly since = instant();
  private readonly others: readonly Member[];

  constructor(
    private readonly clientState: ClientState | null,
    members: readonly Member[],
    private readonly held: HeldPart | null,
    private readonly settings: Pick<Settings, "timeout" | "module">,
  ) {
    this.others = members.filter((member) => member !== held);
  }

  check(used: readonly number[]): void {
    for (const units of used) integer(units, "used", 0);
    if (used.length === this.others.length) return;
    throw new TypeError(`settle takes the used units of each limit except the hold: ${this.others.length} numbers`);
  }

  async settle(used: readonly number[]): Promise<readonly number[] | null> {
    const { clientState, held } = this;
    const hold = held?.hold ?? null;
    if (!clientState || !held || hold?.source !== "server") return this.settleEach(used, hold);
    const { key, id } = held.request;
    const reserved = used.map((units, at) => ({ key: (this.others[at] as Member).name, used: units }));
    try {
      const { reply, isFirst } = await this.answer(clientState, { name: "SETTLE", key, id, reserved }, hold);
      const [done, ...changes] = reply.map(Number);
      if (done === 1) return changes;
      // The hold had ended. A first settlement whose reply was lost might have counted what was used beyond the cost.
      if (isFirst) await this.correct(used.map((units, at) => Math.max(0, units - this.cost(at))));
      return null;
    } finally {
      hold.end();
      clientState.holdQueue.released(key);
      for (const { key } of reserved) clientState.forget(key);
    }
  }

  /** The server's answer to a settlement, which is sent again until it comes, as long as the hold is renewed. */
  private async answer(
    clientState: ClientState,
    command: Command,
    hold: Hold,
  ): Promise<{ reply: unknown[]; isFirst: boolean }> {
    const { timeout, module } = this.settings;
    for (let isFirst = true; ; isFirst = false) {
      let refused: RefusedError | undefined;
      const answer = new Promise<unknown>((resolve) => {
        const late = (reply: Promise<unknown>) => void reply.then(resolve, () => {});
        clientState.ask(command, { timeout, module, always: true, late }).then(resolve, (error) => {
          if (!(error instanceof RefusedError)) return;
          refused = error;
          resolve(null);
        });
      });
      if (await inTime(answer, hold.ttl / RETRIES)) {
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

  /** Correct each by itself, once: without a hold the server remembers nothing of the decision. */
  private correct(more: readonly number[]): Promise<number[]> {
    const age = Math.ceil(passed(this.since)) + this.settings.timeout;
    return Promise.all(this.others.map((other, at) => (more[at] ? other.correct(more[at], age) : 0)));
  }

  private cost(at: number): number {
    return this.others[at]?.cost ?? 0;
  }
}
