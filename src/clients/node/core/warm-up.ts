/** Limits that rise after idleness: in equal steps from a part of the limit to the whole, while the key is in use. */

import { type Duration, milliseconds } from "./duration.js";
import { scale } from "./scale.js";

/** How a limit rises. */
export interface WarmUp {
  /** How long it takes, in ms. */
  readonly duration: number;
  /** What the limit is divided by at first: 2 … 1000. */
  readonly cold: number;
}

/** The options of a limit that rises. */
export interface WarmUpOptions {
  /** How long a limit takes to rise after idleness, at least ten windows. */
  readonly warmUp?: Duration;
  /** With `warmUp`: the limit begins at `limit / cold`; an integer between 2 and 1000, by default 3. */
  readonly cold?: number;
}

/** The fewest windows in a warm-up: each window may begin with a burst of its limit. */
const WINDOWS = 10;

/** What the server takes where it is not told. */
export const COLD = 3;

const COLDEST = 1000;

/** The warm-up of a limiter with these options, if it has one. */
export function warmUpOf({ warmUp, cold }: WarmUpOptions, window: number): WarmUp | undefined {
  if (warmUp === undefined) {
    if (cold !== undefined) throw new TypeError("cold needs warmUp");
    return undefined;
  }
  const parts = cold ?? COLD;
  if (!Number.isInteger(parts) || parts < 2 || parts > COLDEST) {
    throw new RangeError(`cold must be an integer between 2 and ${COLDEST}`);
  }
  return warmUpFor({ duration: milliseconds(warmUp, "warmUp"), cold: parts }, window);
}

/** The same, if it goes with the window. */
export function warmUpFor<Of extends WarmUp | undefined>(warmUp: Of, window: number): Of {
  if (warmUp && warmUp.duration < WINDOWS * window) {
    throw new RangeError("warmUp must be at least ten times the window");
  }
  return warmUp;
}

/** What a limit has risen to once its key has been in use for so many ms. */
export function risen(limit: number, { duration, cold }: WarmUp, used: number): number {
  if (used >= duration) return limit;
  return Math.min(limit, Math.max(1, scale(limit, duration + (cold - 1) * used, cold * duration, "down")));
}
