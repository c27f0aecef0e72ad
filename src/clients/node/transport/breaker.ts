/** A breaker opens when a server keeps failing: while it is open, no request waits for that server. */

import type { UnavailableError } from "../core/errors.js";
import type { ServerHealth } from "./server-health.js";

/** It opens after so many failures in a row. */
export const FAILURES = 3;

/** When the first probe comes, in ms; the interval then doubles, up to the second number. */
export const FIRST_PROBE = 100;
export const LAST_PROBE = 500;

/** Each interval is longer or shorter by up to this part, so that the processes of a fleet do not probe at once. */
export const JITTER = 0.2;

export class Breaker {
  /** Monotonic, as all instants here. */
  private closedAt = Number.NEGATIVE_INFINITY;
  private failures = 0;
  private interval = FIRST_PROBE;
  private timer: NodeJS.Timeout | null = null;
  private isStopped = false;

  /** `probe` resolves when the server is back, or no longer wanted; `closed` is called when the breaker closes. */
  constructor(
    private readonly health: ServerHealth,
    private readonly probe: () => Promise<"back" | "unwanted">,
    private readonly closed: () => void,
  ) {}

  get isOpen(): boolean {
    return this.opened !== null;
  }

  /** Why it is open. */
  get opened(): UnavailableError | null {
    return this.health.unavailable;
  }

  /** What was sent before this closed last says how the server was, and not how it is. */
  isOutdated(sent: number): boolean {
    return sent < this.closedAt;
  }

  succeeded(): void {
    this.failures = 0;
  }

  failed(error: UnavailableError, sent = performance.now()): void {
    if (!this.isOutdated(sent) && ++this.failures >= FAILURES) this.open(error);
  }

  open(error: UnavailableError, sent = performance.now()): void {
    if (this.isOpen || this.isOutdated(sent)) return;
    this.interval = FIRST_PROBE;
    this.health.setUnavailable(error);
    this.schedule();
  }

  /** Probe the server at intervals, unless a probe is scheduled already. */
  schedule(): void {
    if (this.timer || this.isStopped) return;
    const interval = this.interval * (1 - JITTER + 2 * JITTER * Math.random());
    this.interval = Math.min(2 * this.interval, LAST_PROBE);
    this.timer = setTimeout(() => {
      this.probe().then(
        (found) => {
          this.timer = null;
          if (found === "back" && !this.isStopped) this.close();
        },
        () => {
          this.timer = null;
          this.schedule();
        },
      );
    }, interval).unref();
  }

  /** Probe no more, also when a probe that is under way fails. */
  stop(): void {
    this.isStopped = true;
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
  }

  private close(): void {
    this.failures = 0;
    this.closedAt = performance.now();
    this.health.setUnavailable(null);
    this.closed();
  }
}
