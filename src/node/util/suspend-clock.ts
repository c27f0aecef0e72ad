/** Time that also passes while the machine sleeps, which the timers and the monotonic clock of Node.js do not see. */

import os from "node:os";

/** How coarse the system's own count of that is, in ms. */
const COARSE = process.platform === "darwin" ? 1000 : 20;

/** An instant of this machine. */
export interface Instant {
  /** ms for which the machine has been awake. */
  readonly awake: number;
  /** ms since it was started. */
  readonly up: number;
}

export function instant(): Instant {
  return { awake: performance.now(), up: os.uptime() * 1000 };
}

/** ms that have passed since then; never less than there were. */
export function passed(since: Instant, now = instant()): number {
  const awake = now.awake - since.awake;
  const up = now.up - since.up;
  return up > awake + 2 * COARSE ? up + COARSE : awake;
}
