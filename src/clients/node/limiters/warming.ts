/** How a limiter decides while its keys warm up: each request has the limit that its key has reached. */

import type { Decision, KnownReply, Source } from "../core/decision.js";
import { milliseconds } from "../core/duration.js";
import { UnavailableError } from "../core/errors.js";
import type { LocalWindows } from "../core/local-windows.js";
import type { RateOptions, WaitOptions } from "../core/options.js";
import { type WarmingDemand, WarmingKeys, WarmUp } from "../core/warm-up.js";
import type { Demand, Quota } from "../core/window.js";
import { type Command, replyOf } from "../protocol/commands.js";

/** What this needs of a limiter. */
interface WarmingLimiter {
  readonly warming: WarmingKeys | null;
  readonly core: object | null;
  now(): number;
  ask(command: Command, options: WaitOptions): Promise<unknown>;
  decision(reply: KnownReply, source: Source): Decision;
  window(name: string): ReturnType<LocalWindows["entry"]>;
}

/** The keys of a limiter with these options, or null where they do not warm up. */
export function warmingOf({ warmUp, cold }: RateOptions, { window }: Quota, maxKeys: number): WarmingKeys | null {
  if (warmUp !== undefined) return new WarmingKeys(WarmUp.of(warmUp, cold, window), maxKeys);
  if (cold !== undefined) throw new TypeError("cold needs warmUp");
  return null;
}

/** A request to a key with its limit of the moment. Where its limiter has no warm-up, the demand is as it was. */
export class WarmingRequest {
  private constructor(
    private readonly limiter: WarmingLimiter,
    private readonly name: string,
    private readonly whole: Demand,
    readonly demand: WarmingDemand,
  ) {}

  static of(limiter: WarmingLimiter, name: string, demand: Demand): WarmingRequest {
    const { warming } = limiter;
    if (!warming) return new WarmingRequest(limiter, name, demand, demand);
    const limit = warming.limit(name, demand.limit, quiet(demand), limiter.now());
    return new WarmingRequest(limiter, name, demand, { ...demand, limit, fullLimit: demand.limit });
  }

  /** Learn from the decision how warm the key is. What is above the limit fits once that has risen. */
  heard(decision: Decision, counts: boolean): Decision {
    const { limiter, name, whole, demand } = this;
    const { warming } = limiter;
    if (!warming) return decision;
    const { granted, limit, remaining, resetAfter, source } = decision;
    const now = limiter.now();
    const known = source === "server" || source === "local" ? remaining : undefined;
    warming.heard(name, whole.limit, demand.limit, counts ? granted : 0, known, now);
    const least = demand.partial ? 1 : demand.cost;
    if (granted > 0 || least <= demand.limit || least > whole.limit) return decision;
    const wait = Math.max(1, warming.wait(name, whole.limit, least, quiet(demand), now)); // it may have risen meanwhile
    return limiter.decision([granted, limit, remaining, wait, resetAfter], source);
  }

  /**
   * Whether the limit is higher than it was at a denial. Once in each step of the warm-up, look how much is counted:
   * perhaps other processes have warmed the key up. Not when the wait has ended by then.
   */
  async hasRisen(options: WaitOptions | null): Promise<boolean> {
    const { limiter, name, whole, demand } = this;
    const { warming } = limiter;
    if (!warming || !options || demand.limit >= whole.limit) return false;
    if (warming.looks(name)) {
      const look = { ...whole, cost: 1, partial: false };
      let remaining: number | undefined;
      try {
        [, , remaining] = limiter.core
          ? replyOf(await limiter.ask({ name: "PEEK", key: name, demand: look }, options))
          : limiter.window(name).peek(look, limiter.now());
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
      }
      warming.heard(name, whole.limit, whole.limit, 0, remaining, limiter.now());
    }
    return warming.limit(name, whole.limit, quiet(demand), limiter.now()) > demand.limit;
  }
}

/** What `ask` comes to. Where the server does not answer, the denial that it gave before stands. */
export async function unlessAway<Decided>(ask: () => Promise<Decided>, denied: Decided): Promise<Decided> {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof UnavailableError) return denied;
    throw error;
  }
}

/**
 * What is left of the time that a request may wait for the server, as its options: a function that returns null when
 * none is left.
 */
export function timeLeft({ deadline, ...others }: WaitOptions, timeout: number): () => WaitOptions | null {
  const longest = deadline === undefined ? timeout : Math.min(timeout, milliseconds(deadline, "deadline", 0));
  const began = performance.now();
  return () => {
    const left = Math.floor(longest - (performance.now() - began));
    return left > 0 ? { ...others, deadline: left } : null;
  };
}

/** So long after its last decision about a key, nothing that this process knows of counts any more. */
function quiet({ window, resolution }: Demand): number {
  return window + resolution;
}
