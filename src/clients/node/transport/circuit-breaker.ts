/** A circuit breaker opens when a server keeps failing: while it is open, no request waits for that server. */

import type { ServerHealth } from "./server-health.js";

/** It opens after so many failures in a row. */
export const FAILURES = 3;

/** The first probe comes after so many ms; the interval then doubles, up to the second number. */
export const FIRST_PROBE = 100;
export const LAST_PROBE = 500;

/** Each interval is longer or shorter by up to this part, so that the processes of a fleet do not probe at once. */
export const JITTER = 0.2;

export class CircuitBreaker {
  private failures = 0;
  private interval = FIRST_PROBE;
  private timer: NodeJS.Timeout | null = null;

  /** `probe` resolves when the server is back, or no longer wanted; `closed` is called when the breaker closes. */
  constructor(
    private readonly health: ServerHealth,
    private readonly probe: () => Promise<"back" | "unwanted">,
    private readonly closed: () => void,
  ) {}

  get isOpen(): boolean {
    return this.reason !== null;
  }

  /** Why it is open. */
  get reason(): string | null {
    return this.health.unavailable;
  }

  succeeded(): void {
    this.failures = 0;
  }

  failed(reason: string): void {
    if (++this.failures >= FAILURES) this.open(reason);
  }

  open(reason: string): void {
    if (this.isOpen) return;
    this.interval = FIRST_PROBE;
    this.health.setUnavailable(reason);
    this.schedule();
  }

  /** Probe the server at intervals, unless a probe is scheduled already. */
  schedule(): void {
    if (this.timer) return;
    const interval = this.interval * (1 - JITTER + 2 * JITTER * Math.random());
    this.interval = Math.min(2 * this.interval, LAST_PROBE);
    this.timer = setTimeout(() => {
      this.probe().then(
        (found) => {
          this.timer = null;
          if (found === "back") this.close();
        },
        () => {
          this.timer = null;
          this.schedule();
        },
      );
    }, interval).unref();
  }

  /** Stop probing. */
  stop(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
  }

  private close(): void {
    this.failures = 0;
    this.health.setUnavailable(null);
    this.closed();
  }
}
