/** What a limiter knows of how a server is, and who is told when that changes. */

import diagnostics from "node:diagnostics_channel";

/** How a server is, as far as this process can tell. */
export interface ServerState {
  /** Its host and port, or what the client has in place of them. */
  readonly address: string;
  /** Why it is not asked now; null: it is asked. */
  readonly away: string | null;
  /** Whether its last reply came later than the timeout. */
  readonly slow: boolean;
  /** The commands that it has refused for lack of a right, such as "client|tracking", and that limiters do without. */
  readonly lacks: readonly string[];
}

/** A message for each change: `{ address, away, reason }`. */
const away = diagnostics.channel("swlimit:away");

/** A message for each change: `{ address, slow, roundTrip, timeout }`, both in ms. */
const slow = diagnostics.channel("swlimit:slow");

/** A message for each right that is missing: `{ address, command, reason }`. */
const lacks = diagnostics.channel("swlimit:lacks");

export class Health {
  /** Why it is not asked now; null: it is asked. */
  away: string | null = null;
  private slow = false;
  private readonly lacking = new Set<string>();

  constructor(private readonly address: string) {}

  get state(): ServerState {
    const { address, away, slow, lacking } = this;
    return { address, away, slow, lacks: [...lacking] };
  }

  /** The server is not asked any more, for this reason; or, without one, it is asked again. */
  isAway(reason: string | null): void {
    this.away = reason;
    away.publish({ address: this.address, away: reason !== null, reason });
  }

  /** A reply has come, in time or late, so many ms after it was asked for. */
  answered(isSlow: boolean, roundTrip: number, timeout: number): void {
    if (this.slow === isSlow) return;
    this.slow = isSlow;
    slow.publish({ address: this.address, slow: isSlow, roundTrip, timeout });
  }

  /** The server has refused a command beside the requests: whether that is for lack of a right, which is said once. */
  refused([name = "", word = ""]: readonly string[], error: unknown): boolean {
    if (!(error instanceof Error && /^NOPERM\b/.test(error.message))) return false;
    const command = (name === "CLIENT" ? `${name}|${word}` : name).toLowerCase();
    if (this.lacking.has(command)) return true;
    this.lacking.add(command);
    lacks.publish({ address: this.address, command, reason: error.message });
    process.emitWarning(`${this.address} refuses ${command} to swlimit, which does without: ${error.message}`, {
      code: "SWLIMIT_LACKS",
    });
    return true;
  }
}
