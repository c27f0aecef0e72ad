/** Several limits in one decision: all or nothing. */

import { type Decision, type HeaderOptions, headersOf } from "./decision.js";
import { UnavailableError } from "./errors.js";
import { type Limiter, replyOf } from "./limiter.js";
import type { Demand } from "./window.js";

/** One of the limits that a request is to keep. */
export interface Share {
  readonly limiter: Limiter;
  readonly key: string;
  /** Units that are asked for of this one. */
  readonly cost?: number;
}

/** What all limits together answer. */
export class Decisions {
  constructor(
    /** Whether all of them granted their cost; else none has counted anything. */
    readonly granted: boolean,
    /** What each of them says, in order. */
    readonly each: readonly Decision[],
  ) {}

  /** ms until all would grant; 0 when they did, −1 when one never can. */
  get retryAfter(): number {
    const waits = this.each.map(({ retryAfter }) => retryAfter);
    return waits.includes(-1) ? -1 : Math.max(...waits);
  }

  /** Whether the server was not asked. */
  get local(): boolean {
    return this.each.every(({ local }) => local);
  }

  headers(options: HeaderOptions = {}): Record<string, string> {
    return headersOf(this.each, this, options);
  }
}

/** Decide several limits at once. All limiters have the same client, and in a cluster all keys one slot. */
export async function allowAll(shares: readonly Share[]): Promise<Decisions> {
  const members = shares.map(({ limiter, key, cost = 1 }) => ({
    limiter,
    key,
    name: limiter.prefix + key,
    demand: limiter.demand({ cost }),
  }));
  const first = members[0];
  if (!first) throw new TypeError("allowAll needs at least one limit");
  const { limiter } = first;
  const differs = members.some(
    (other) => other.limiter.server !== limiter.server || other.demand.strict !== first.demand.strict,
  );
  if (differs) throw new TypeError("limits that are decided at once need the same client, and all be strict or none");
  if (new Set(members.map(({ name }) => name)).size < members.length) throw new TypeError("key named twice");

  const { server, timeout } = limiter;
  if (!server) return decideHere(members, "local");
  const known = members.map(({ limiter, name, demand }) => limiter.denials?.find(name, demand, false));
  if (known.some((reply) => reply !== undefined)) {
    // Of the others nothing is known, and nothing is granted.
    const each = members.map(({ limiter, demand }, at) => {
      const reply = known[at];
      if (reply) limiter.counts.denials++;
      return limiter.decision(reply ?? [0, demand.limit, 0, 0, 0], true);
    });
    return new Decisions(false, each);
  }
  const words = ["SWLIMIT.MALLOW", String(members.length), ...members.map(({ name }) => name)];
  for (const { demand } of members) {
    words.push(String(demand.limit), `${demand.window}ms`, `${demand.resolution}ms`, String(demand.cost));
  }
  if (first.demand.strict) words.push("STRICT");
  try {
    const [granted, ...replies] = (await server.ask(words, first.name, timeout)) as [unknown, ...unknown[]];
    const each = members.map(({ limiter, name, demand }, at) => {
      const reply = replyOf(replies[at]);
      limiter.counts.server++;
      if (reply[0] === 0) void limiter.register(name, demand, 0);
      return limiter.decision(reply, false);
    });
    return new Decisions(Number(granted) === 1, each);
  } catch (error) {
    if (!(error instanceof UnavailableError)) throw error;
    return decideHere(members, "away");
  }
}

interface Member {
  readonly limiter: Limiter;
  readonly key: string;
  readonly demand: Demand;
}

/** Look at all, and count only if all grant. */
function decideHere(members: readonly Member[], by: "local" | "away"): Decisions {
  const now = Date.now();
  const decide = (how: "peek" | "allow") =>
    members.map(({ limiter, key, demand }) =>
      limiter.decisionHere(by, demand, (asked) => limiter.window(key)[how](asked, now)),
    );
  for (const { limiter } of members) limiter.counts[by]++;
  const looked = decide("peek");
  const granted = looked.every((decision) => decision.granted > 0);
  return new Decisions(granted, granted ? decide("allow") : looked);
}
