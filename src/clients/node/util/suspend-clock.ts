/** Time including suspend: the timers and the monotonic clock of Node.js stop while the machine sleeps. */

import os from "node:os";

/** The precision of the system's uptime, in ms. */
const COARSE = process.platform === "darwin" ? 1000 : 20;

/** An instant of this machine. */
export interface Instant {
  /** The monotonic clock, in ms: it stops while the machine sleeps. */
  readonly awake: number;
  /** ms since the machine was started. */
  readonly up: number;
}

export function instant(): Instant {
  return { awake: performance.now(), up: os.uptime() * 1000 };
}

/** ms since then; rounded up rather than down. */
export function passed(since: Instant, now = instant()): number {
  const awake = now.awake - since.awake;
  const up = now.up - since.up;
  return up > awake + 2 * COARSE ? up + COARSE : awake;
}
