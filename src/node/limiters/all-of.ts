/** Several limits in one decision: all or nothing. */

import type { Decision } from "../core/decision.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { type HeaderOptions, headersOf } from "../core/headers.js";
import { clock } from "../core/local-windows.js";
import { requested, type WaitOptions } from "../core/options.js";
import type { Demand } from "../core/window.js";
import { mallow, replyOf } from "../protocol/commands.js";
import type { Limiter } from "./rate.js";

/** One of the limits that a request is to keep. */
export interface Share {
  readonly limiter: Limiter;
  readonly key: string;
  /** Units that are asked for of this one. */
  readonly cost?: number;
}

const SHARED = new Set(["limiter", "key", "cost"]);
const DECIDED = new Set(["deadline", "signal"]);

/** What all limits together answer. */
export class Decisions {
  constructor(
    /** Whether all of them granted their cost; else none has counted anything. */
    readonly granted: boolean,
    /** What each of them says, in order. Of one that nobody asked, no more than its limit is known. */
    readonly each: readonly Decision[],
  ) {}

  /** ms until all would grant; 0 when they did, −1 when one never can, undefined when none says. */
  get retryAfter(): number | undefined {
    return waitOf(this.each);
  }

  headers(options: HeaderOptions = {}): Record<string, string> {
    return headersOf(this.each, this, options);
  }
}

/** ms until all would grant; −1 when one never can, undefined when none says. */
export function waitOf(decisions: readonly Decision[]): number | undefined {
  const waits = decisions.map(({ retryAfter }) => retryAfter).filter((wait) => wait !== undefined);
  if (waits.length === 0) return undefined;
  return waits.includes(-1) ? -1 : Math.max(...waits);
}

/** Decide several limits at once. All limiters have the same client, and in a cluster all keys one slot. */
export async function allowAll(shares: readonly Share[], options: WaitOptions = {}): Promise<Decisions> {
  if (!Array.isArray(shares) || shares.length === 0) {
    throw new TypeError("allowAll needs a list of at least one { limiter, key }");
  }
  requested(options, DECIDED);
  const members = shares.map((share) => {
    const { limiter, key, cost = 1 } = requested(share, SHARED);
    return { limiter, name: limiter.name(key), demand: limiter.demand({ cost }) };
  });
  const [first] = members as [Member, ...Member[]];
  const { server } = first.limiter;
  for (const { limiter, demand } of members) {
    if (limiter.server !== server) throw new TypeError("limits that are decided at once need the same client");
    if (demand.strict !== first.demand.strict) {
      throw new TypeError("limits that are decided at once must all be strict or none");
    }
  }
  if (new Set(members.map(({ name }) => name)).size < members.length) throw new TypeError("key named twice");
  if (!server) return decideHere(members, "local");

  const known = members.map(({ limiter, name, demand }) => limiter.known(name, demand, 0));
  if (known.some((decision) => decision !== undefined)) {
    const each = members.map(({ limiter, demand }, at) => known[at] ?? limiter.decision([0, demand.limit], "cache"));
    return new Decisions(false, each);
  }
  const asked = members.map(({ limiter, name }) => limiter.cached?.asked(name));
  try {
    const reply = await first.limiter.ask(mallow(members), first.name, options);
    if (!Array.isArray(reply)) throw new RefusedError(`unexpected reply: ${JSON.stringify(reply)}`);
    const [granted, ...replies] = reply as unknown[];
    const each = members.map(({ limiter, name, demand }, at) => {
      const told = replyOf(replies[at]);
      limiter.counts.server++;
      const question = asked[at];
      if (question && told[0] === 0) limiter.cached?.denied(name, demand, told, question, 0);
      return limiter.decision(told, "server");
    });
    return new Decisions(Number(granted) === 1, each);
  } catch (error) {
    const fails = members.some(({ limiter }) => limiter.settings.onFailure === "error");
    if (!(error instanceof UnavailableError) || fails) throw error;
    return decideHere(members, "failure");
  }
}

interface Member {
  readonly limiter: Limiter;
  readonly name: string;
  readonly demand: Demand;
}

/** Look at all, and count only if all grant. */
function decideHere(members: readonly Member[], by: "local" | "failure"): Decisions {
  const now = clock();
  const decide = (how: "peek" | "allow") =>
    members.map(({ limiter, name, demand }) =>
      limiter.decisionHere(by, demand, (asked) => limiter.window(name)[how](asked, now)),
    );
  for (const { limiter } of members) limiter.counts[by]++;
  const looked = decide("peek");
  const granted = looked.every((decision) => decision.granted > 0);
  return new Decisions(granted, granted ? decide("allow") : looked);
}
