/** Several rate limits in one decision: all or nothing. */

import type { Decision } from "../core/decision.js";
import { UnavailableError } from "../core/errors.js";
import { type HeaderOptions, headersOf } from "../core/headers.js";
import { requested, type WaitOptions } from "../core/options.js";
import { type Rate, repliesOf, replyOf } from "../protocol/commands.js";
import { Kept } from "./base.js";
import type { Limiter } from "./rate.js";

/** One of the limits that apply to a request. */
export interface Share {
  readonly limiter: Limiter;
  readonly key: string;
  /** Requested units of this one. */
  readonly cost?: number;
}

const SHARED = new Set(["limiter", "key", "cost"]);
const DECIDED = new Set(["deadline", "signal"]);

/** The decision of all limits together. */
export class Decisions {
  constructor(
    /** Whether all of them granted their cost; otherwise none has counted anything. */
    readonly granted: boolean,
    /** The decision of each, in order. Of a limit that was not asked only the limit is known. */
    readonly each: readonly Decision[],
  ) {}

  /** ms until all grant; 0 when they did, undefined when unknown, or when one never can. */
  get retryAfter(): number | undefined {
    return longestWait(this.each);
  }

  /** Whether one of them can never be granted. */
  get never(): boolean {
    return this.each.some(({ never }) => never);
  }

  headers(options: HeaderOptions = {}): Record<string, string> {
    return headersOf(this.each, this, options);
  }
}

/** ms until all grant; undefined when unknown, or when one never can. */
export function longestWait(decisions: readonly Pick<Decision, "retryAfter" | "never">[]): number | undefined {
  if (decisions.some(({ never }) => never)) return undefined;
  const waits = decisions.map(({ retryAfter }) => retryAfter).filter((wait) => wait !== undefined);
  return waits.length === 0 ? undefined : Math.max(...waits);
}

/** Decide several limits at once. All limiters have the same client, and in a cluster all keys one slot. */
export async function allowAll(shares: readonly Share[], options: WaitOptions = {}): Promise<Decisions> {
  if (!Array.isArray(shares) || shares.length === 0) {
    throw new TypeError("allowAll needs a list of at least one { limiter, key }");
  }
  requested(options, DECIDED);
  const members = shares.map((share) => {
    const { limiter, key, cost = 1 } = requested(share, SHARED);
    return { limiter, key: limiter.name(key), demand: limiter.demand({ cost }) };
  });
  const [first] = members as [Member, ...Member[]];
  const { core } = first.limiter;
  for (const { limiter, demand } of members) {
    if (limiter.core !== core) throw new TypeError("limits that are decided at once need the same client");
    if (demand.strict !== first.demand.strict) {
      throw new TypeError("limits that are decided at once must all be strict or none");
    }
  }
  if (new Set(members.map(({ key }) => key)).size < members.length) throw new TypeError("key named twice");
  const { tracing } = first.limiter;
  if (!tracing) return decide(members, options);
  const limiters = members.map(({ limiter }) => limiter);
  return tracing.span("allow_all", limiters, () => decide(members, options));
}

async function decide(members: readonly Member[], options: WaitOptions): Promise<Decisions> {
  const [first] = members as [Member, ...Member[]];
  if (!first.limiter.core) return decideHere(members, "local");
  const known = members.map(({ limiter, key, demand }) => limiter.known(key, demand, 0));
  if (known.some((decision) => decision !== undefined)) {
    const each = members.map(({ limiter, demand }, at) => known[at] ?? limiter.decision([0, demand.limit], "cache"));
    return new Decisions(false, each);
  }
  const before = members.map(({ limiter, key }) => limiter.cached?.snapshot(key));
  const kept = new Kept();
  try {
    const rates = members as [Member, ...Member[]];
    const [granted, ...replies] = repliesOf(await first.limiter.ask({ name: "MALLOW", rates }, options, kept));
    const each = members.map(({ limiter, key, demand }, at) => {
      const reply = replyOf(replies[at]);
      const snapshot = before[at];
      if (snapshot && reply[0] === 0) limiter.cached?.denied(key, demand, reply, snapshot, 0);
      return limiter.counted(limiter.decision(reply, "server"));
    });
    return new Decisions(granted, each);
  } catch (error) {
    const fails = members.some(({ limiter }) => limiter.settings.onFailure === "error");
    if (!(error instanceof UnavailableError) || fails) throw error;
    const decisions = decideHere(members, "failure");
    if (decisions.granted) kept.units = decisions.each.map(({ granted }) => granted);
    return decisions;
  }
}

interface Member extends Rate {
  readonly limiter: Limiter;
}

/** Count only if all grant. */
function decideHere(members: readonly Member[], by: "local" | "failure"): Decisions {
  const now = (members[0] as Member).limiter.now();
  const decide = (how: "peek" | "allow") =>
    members.map(({ limiter, key, demand }) =>
      limiter.decisionHere(by, demand, (asked) => limiter.window(key)[how](asked, now)),
    );
  const looked = decide("peek");
  const granted = looked.every((decision) => decision.granted > 0);
  const decided = granted ? decide("allow") : looked;
  return new Decisions(
    granted,
    members.map(({ limiter }, at) => limiter.counted(decided[at] as Decision)),
  );
}
