/** The state of a server as a limiter sees it, and the messages when it changes. */

import diagnostics from "node:diagnostics_channel";
import { type AnyCommand, fullName } from "../protocol/commands.js";

/** The state of a server, as far as this process knows. */
export interface ServerState {
  /** Its host and port, or what the client has instead. */
  readonly address: string;
  /** "up": it answers in time, or was not asked yet; "slow": its last reply was late; "away": it does not answer. */
  readonly state: "up" | "slow" | "away";
  /** Why it is away: one word, the same in every language; else null. */
  readonly reason: string | null;
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

/** Codes of servers that are reasons themselves. */
const CODE = /^(READONLY|OOM|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER)\b/;

/** The reason of a failure, by the text of the server, the system or the client. */
const REASONS: readonly [RegExp, string][] = [
  [/^(NOAUTH|WRONGPASS)\b/, "password"],
  [/ECONNREFUSED|connection refused|ENOENT|no such file/i, "refused"],
  [/ENOTFOUND|EAI_AGAIN|getaddrinfo/i, "unresolved"],
  [/certificate|tls|ssl|fatal alert/i, "certificate"],
  [/password|authentication/i, "password"],
  [/max number of clients/i, "too_many_clients"],
  [/unknown command|does not have the module/i, "module_missing"],
  [/no reply|nothing received|cannot connect|timed? ?out/i, "no_answer"],
  [/EPIPE|ECONNRESET|reset|closed|disconnect|end of file|connection is|terminated|max retries/i, "disconnected"],
];

function reasonOf(message: string): string {
  return CODE.exec(message)?.[1] ?? REASONS.find(([words]) => words.test(message))?.[1] ?? "other";
}

export class ServerHealth {
  /** Why the server is not asked now; null: it is asked. */
  unavailable: string | null = null;
  private slow = false;
  private since = new Date();
  private roundTrip: number | null = null;
  private readonly lacking = new Set<string>();
  private takenOver = 0;

  constructor(
    private readonly address: string,
    private readonly backend: () => ServerState["backend"],
    private readonly failovers: () => number = () => 0,
  ) {}

  get state(): ServerState {
    const { address, unavailable, slow, since, lacking, roundTrip, takenOver } = this;
    return {
      address,
      state: unavailable !== null ? "away" : slow ? "slow" : "up",
      reason: unavailable === null ? null : reasonOf(unavailable),
      message: unavailable ?? "",
      since,
      lacks: [...lacking].sort(),
      roundTrip,
      backend: this.backend(),
      failovers: this.failovers(),
      takenOver,
    };
  }

  /** The server is not asked now, for this reason; null: it is asked again. */
  setUnavailable(reason: string | null): void {
    this.unavailable = reason;
    this.changed();
  }

  /** A reply came, in time or late, after so many ms. */
  answered(isSlow: boolean, roundTrip: number): void {
    this.roundTrip = roundTrip;
    if (this.slow === isSlow) return;
    this.slow = isSlow;
    if (this.unavailable === null) this.changed();
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
    process.emitWarning(`${address} refuses ${right} to swlimit, which does without: ${error.message}`, {
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
