/** A circuit that opens when a server keeps failing: as long as it is open, nobody waits for that server. */

/** So many failures in a row open it. */
const FAILURES = 3;

/**
 * A probe that has not come back after so many ms is given up for another one; nor do they follow one another faster.
 */
const PROBE_MS = 1000;

export class Breaker {
  private failures = 0;
  private probe: { sent: number; underWay: boolean } | null = null;

  get isOpen(): boolean {
    return this.failures >= FAILURES;
  }

  succeeded(): void {
    this.failures = 0;
    this.probe = null;
  }

  failed(): void {
    this.failures++;
  }

  /** Ask whether the server is back, unless somebody is asking already. */
  look(ask: () => Promise<unknown>): void {
    const now = performance.now();
    if (this.probe && now < this.probe.sent + (this.probe.underWay ? PROBE_MS : PROBE_MS / 10)) return;
    const probe = { sent: now, underWay: true };
    this.probe = probe;
    ask().then(
      () => this.succeeded(),
      () => {
        probe.underWay = false;
      },
    );
  }
}
