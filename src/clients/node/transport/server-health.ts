/** The state of a server as a limiter sees it, and the messages when it changes. */

import diagnostics from "node:diagnostics_channel";
import type { UnavailableError } from "../core/errors.js";
import type { Reason } from "../core/reasons.js";
import { type AnyCommand, fullName } from "../protocol/commands.js";

/** The state of a server, as far as this process knows. */
export interface ServerState {
  /** Its host and port, or what the client has instead. */
  readonly address: string;
  /**
   * "up": it answers in time, or was not asked yet; "slow": its round trip is above a limiter's timeout; "unavailable": it
   * does not answer.
   */
  readonly state: "up" | "slow" | "unavailable";
  /** Why it is not up: one word, the same in every language; else null. */
  readonly reason: Reason | null;
  /** The text of the server, the system or the client about that; else empty. */
  readonly message: string;
  /** When its state changed last. */
  readonly since: Date;
  /** The rights that it refused last time, such as "client|tracking". Limiters do without them. */
  readonly lacks: readonly string[];
  /** The time of its last reply, in ms; null before the first. */
  readonly roundTrip: number | null;
  /** What decides there; null until that is known. */
  readonly backend: "module" | "script" | null;
  /** Its `maxmemory-policy`, where that may evict counts; else null, also before it is known. */
  readonly evicts: string | null;
  /** How often another server became the primary, according to the sentinels. */
  readonly failovers: number;
  /** Keys of the script that were handed over to the module, which was loaded later. */
  readonly takenOver: number;
}

/** A message for each change of a server's state: its ServerState. */
const changed = diagnostics.channel("swlimit:state");

/** A message for each right that is missing: `{ address, right, message }`. */
const lacks = diagnostics.channel("swlimit:lacks");

/** A message when another server becomes the primary: `{ name, from, to }`. */
const failover = diagnostics.channel("swlimit:failover");

/** A message for each key of the script that the module has now: `{ address, key }`. */
const takeover = diagnostics.channel("swlimit:takeover");

/** Announce that another server is the primary. */
export function announceFailover(change: { readonly name: string; readonly from: string; readonly to: string }): void {
  failover.publish(change);
  process.emitWarning(`the primary of ${change.name} is ${change.to}, and no longer ${change.from}`, {
    code: "SWLIMIT_FAILOVER",
  });
}

/** Warn of records that were still unsent when the last limiter was closed. */
export function warnOfLoss({ units, keys }: { readonly units: number; readonly keys: number }): void {
  if (units === 0) return;
  process.emitWarning(`${units} units of ${keys} keys were recorded while the server was away, and are lost`, {
    code: "SWLIMIT_LOST",
  });
}

/** How often a slow server is logged, in ms. */
const SLOW_LOG = 60_000;

export class ServerHealth {
  /** Why the server is not asked now; null: it is asked. */
  unavailable: UnavailableError | null = null;
  /** The round trip and the timeout, in words, where the one is above the other. */
  private slow: string | null = null;
  private slowLogged = Number.NEGATIVE_INFINITY;
  /** The reason that was logged, while the server is unavailable. */
  private logged: Reason | null = null;
  private hasLogged = false;
  private since = new Date();
  private roundTrip: number | null = null;
  private readonly lacking = new Set<string>();
  private takenOver = 0;
  private hasLostScripts = false;
  private evicts: string | null = null;

  constructor(
    readonly address: string,
    private readonly backend: () => ServerState["backend"],
    private readonly failovers: () => number = () => 0,
  ) {}

  get state(): ServerState {
    const { address, unavailable, slow, since, lacking, roundTrip, evicts, takenOver } = this;
    return {
      address,
      state: unavailable ? "unavailable" : slow !== null ? "slow" : "up",
      reason: unavailable?.reason ?? (slow === null ? null : "slow"),
      message: unavailable?.message ?? slow ?? "",
      since,
      lacks: [...lacking].sort(),
      roundTrip,
      backend: this.backend(),
      evicts,
      failovers: this.failovers(),
      takenOver,
    };
  }

  /** The server is not asked now, for this reason; null: it is asked again. */
  setUnavailable(error: UnavailableError | null): void {
    this.unavailable = error;
    if (error) this.log(error);
    else this.logReturn();
    this.changed();
  }

  /** `onFailure` has decided a request: the first one is logged at once. */
  decidedWithout(error: UnavailableError): void {
    if (!this.hasLogged) this.log(error);
  }

  /** Replies come too late for a limiter with this timeout; that, in words. */
  setSlow(roundTrip: number, timeout: number): string {
    const wasSlow = this.slow !== null;
    this.slow = `the round trip is ${Math.ceil(roundTrip)} ms, and the timeout ${timeout} ms`;
    const now = performance.now();
    if (now - this.slowLogged >= SLOW_LOG) {
      this.slowLogged = now;
      process.emitWarning(`server ${this.address} is slow: ${this.slow}; on_failure decides`, { code: "SWLIMIT_SLOW" });
    }
    if (!wasSlow && !this.unavailable) this.changed();
    return this.slow;
  }

  /** Replies come in time again. */
  setFast(): void {
    if (this.slow === null) return;
    this.slow = null;
    if (!this.unavailable) this.changed();
  }

  /** A reply came after so many ms. */
  answered(roundTrip: number, isLate: boolean): void {
    this.roundTrip = roundTrip;
    if (this.logged && !isLate && !this.unavailable) this.logReturn();
  }

  /** What INFO says. */
  informed(info: string): void {
    const field = (name: string) => new RegExp(`^${name}:(.*?)\\r?$`, "m").exec(info)?.[1];
    const policy = field("maxmemory_policy") ?? "noeviction";
    const evicts = (field("maxmemory") ?? "0") === "0" || policy === "noeviction" ? null : policy;
    if (evicts !== null && this.evicts === null) {
      process.emitWarning(
        `server ${this.address} evicts keys (maxmemory-policy ${policy}), and limits with them: use noeviction`,
        { code: "SWLIMIT_EVICTS" },
      );
    }
    this.evicts = evicts;
  }

  /** The server forgets scripts that it has just executed. Said once. */
  losesScripts(): void {
    if (this.hasLostScripts) return;
    this.hasLostScripts = true;
    process.emitWarning(`server ${this.address} loses scripts: each request sends the whole script`, {
      code: "SWLIMIT_NOSCRIPT",
    });
  }

  /** The server has executed a command that it may have refused before. */
  allowed(command: AnyCommand): void {
    if (this.lacking.size > 0) this.lacking.delete(rightOf(command));
  }

  /** The server has refused a command. Whether a right is missing, of which it warns once. */
  refused(command: AnyCommand, error: unknown): boolean {
    if (!(error instanceof Error && /^NOPERM\b/.test(error.message))) return false;
    const right = rightOf(command);
    if (this.lacking.has(right)) return true;
    this.lacking.add(right);
    const { address } = this;
    lacks.publish({ address, right, message: error.message });
    process.emitWarning(`server ${address} refuses ${right}, and swlimit does without: ${error.message}`, {
      code: "SWLIMIT_LACKS",
    });
    return true;
  }

  /** A key of the script is the module's now. The process is warned of the first one. */
  tookOver(key: string): void {
    const { address } = this;
    takeover.publish({ address, key });
    if (this.takenOver++ > 0) return;
    const text = `${address}: the module is loaded now; took over key ${JSON.stringify(key)}, which the script wrote`;
    process.emitWarning(text, { code: "SWLIMIT_TAKEOVER" });
  }

  private log({ reason }: UnavailableError): void {
    this.hasLogged = true;
    if (this.logged === reason) return;
    this.logged = reason;
    const text = `server ${this.address} is unavailable (${reason}); on_failure decides until it answers`;
    process.emitWarning(text, { code: "SWLIMIT_UNAVAILABLE" });
  }

  private logReturn(): void {
    this.logged = null;
    process.emitWarning(`server ${this.address} answers again`, { code: "SWLIMIT_AVAILABLE" });
  }

  private changed(): void {
    this.since = new Date();
    if (changed.hasSubscribers) changed.publish(this.state);
  }
}

/** The name of a right in ACLs. */
function rightOf(command: AnyCommand): string {
  const [name = "", word = ""] = command.name === null ? command.words : [fullName(command)];
  return (name === "CLIENT" ? `${name}|${word}` : name).toLowerCase();
}
