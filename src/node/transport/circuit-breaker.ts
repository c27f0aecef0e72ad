/** A circuit that opens when a server keeps failing: while it is open, nobody waits for that server. */

import type { Health } from "./server-health.js";

/** So many failures in a row open it. */
const FAILURES = 3;

/** The server is looked for after so many ms, then each time after twice as many, up to the second number. */
const FIRST_PROBE = 100;
const LAST_PROBE = 500;

/** So much of a pause is left to chance, to either side: the processes of a fleet do not all ask at once. */
const JITTER = 0.2;

export class Breaker {
  private failures = 0;
  private pause = FIRST_PROBE;
  private timer: NodeJS.Timeout | null = null;

  /** `probe` succeeds when the server answers again, or says that nobody wants to know. */
  constructor(
    private readonly health: Health,
    private readonly probe: () => Promise<"back" | "unwanted">,
    private readonly closed: () => void,
  ) {}

  get isOpen(): boolean {
    return this.reason !== null;
  }

  /** Why it is open. */
  get reason(): string | null {
    return this.health.away;
  }

  succeeded(): void {
    this.failures = 0;
  }

  failed(reason: string): void {
    if (++this.failures >= FAILURES) this.open(reason);
  }

  open(reason: string): void {
    if (this.isOpen) return;
    this.pause = FIRST_PROBE;
    this.health.isAway(reason);
    this.look();
  }

  /** Look for the server from time to time, unless that is being done. */
  look(): void {
    if (this.timer) return;
    const pause = this.pause * (1 - JITTER + 2 * JITTER * Math.random());
    this.pause = Math.min(2 * this.pause, LAST_PROBE);
    this.timer = setTimeout(() => {
      this.probe().then(
        (found) => {
          this.timer = null;
          if (found === "back") this.close();
        },
        () => {
          this.timer = null;
          this.look();
        },
      );
    }, pause).unref();
  }

  /** Look no more. */
  stop(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
  }

  private close(): void {
    this.failures = 0;
    this.health.isAway(null);
    this.closed();
  }
}
