/** What a limiter knows of how a server is, and who is told when that changes. */

import diagnostics from "node:diagnostics_channel";

/** How a server is, as far as this process can tell. */
export interface ServerState {
  /** Its host and port, or what the client has in place of them. */
  readonly address: string;
  /** "up": it answers in time, or was not asked yet; "slow": its last reply came too late; "away": it is not asked now. */
  readonly state: "up" | "slow" | "away";
  /** Why it is away, in one word that is the same in every language; null unless it is. */
  readonly reason: string | null;
  /** The same in the words of the server, the system or the client; empty unless it is away. */
  readonly message: string;
  /** Since when its state is what it is. */
  readonly since: Date;
  /** The rights that it refused when they were needed last, such as "client|tracking", and that limiters do without. */
  readonly lacks: readonly string[];
  /** ms that its last reply took; null before the first. */
  readonly roundTrip: number | null;
  /** What decides there; null until that is known. */
  readonly backend: "module" | "script" | null;
  /** How often another server has become the primary, as far as sentinels have told. */
  readonly failovers: number;
}

/** A message for each change of a server's state: its ServerState. */
const changed = diagnostics.channel("swlimit:state");

/** A message for each right that is missing: `{ address, right, message }`. */
const lacks = diagnostics.channel("swlimit:lacks");

/** A message whenever another server is the primary: `{ name, from, to }`. */
const failover = diagnostics.channel("swlimit:failover");

/** Say that another server is the primary. */
export function saysFailover(change: { readonly name: string; readonly from: string; readonly to: string }): void {
  failover.publish(change);
  process.emitWarning(`the primary of ${change.name} is ${change.to}, and no longer ${change.from}`, {
    code: "SWLIMIT_FAILOVER",
  });
}

/** Say what was counted nowhere when the last limiter was closed. */
export function saysLost({ units, keys }: { readonly units: number; readonly keys: number }): void {
  if (units === 0) return;
  process.emitWarning(`${units} units of ${keys} keys were recorded while the server was away, and are lost`, {
    code: "SWLIMIT_LOST",
  });
}

/** Codes of the server's that are reasons themselves. */
const CODE = /^(READONLY|OOM|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER)\b/;

/** What a failure comes to, by the words of the server, the system or the client. */
const REASONS: readonly [RegExp, string][] = [
  [/^(NOAUTH|WRONGPASS)\b/, "password"],
  [/ECONNREFUSED|connection refused|ENOENT|no such file/i, "refused"],
  [/ENOTFOUND|EAI_AGAIN|getaddrinfo/i, "unresolved"],
  [/certificate|tls|ssl|fatal alert/i, "certificate"],
  [/password|authentication/i, "password"],
  [/max number of clients/i, "too_many_clients"],
  [/unknown command|does not have the module/i, "module_missing"],
  [/no reply|nothing heard|cannot connect|timed? ?out/i, "no_answer"],
  [/EPIPE|ECONNRESET|reset|closed|disconnect|end of file|connection is|terminated|max retries/i, "disconnected"],
];

function reasonOf(message: string): string {
  return CODE.exec(message)?.[1] ?? REASONS.find(([words]) => words.test(message))?.[1] ?? "other";
}

export class Health {
  /** Why it is not asked now; null: it is asked. */
  away: string | null = null;
  private slow = false;
  private since = new Date();
  private roundTrip: number | null = null;
  private readonly lacking = new Set<string>();

  constructor(
    private readonly address: string,
    private readonly backend: () => ServerState["backend"],
    private readonly failovers: () => number = () => 0,
  ) {}

  get state(): ServerState {
    const { address, away, slow, since, lacking, roundTrip } = this;
    return {
      address,
      state: away !== null ? "away" : slow ? "slow" : "up",
      reason: away === null ? null : reasonOf(away),
      message: away ?? "",
      since,
      lacks: [...lacking].sort(),
      roundTrip,
      backend: this.backend(),
      failovers: this.failovers(),
    };
  }

  /** The server is not asked any more, for this reason; or, without one, it is asked again. */
  isAway(reason: string | null): void {
    this.away = reason;
    this.changed();
  }

  /** A reply has come, in time or late, so many ms after it was asked for. */
  answered(isSlow: boolean, roundTrip: number): void {
    this.roundTrip = roundTrip;
    if (this.slow === isSlow) return;
    this.slow = isSlow;
    if (this.away === null) this.changed();
  }

  /** The server has let a command through that it may have refused before. */
  allowed(words: readonly string[]): void {
    if (this.lacking.size > 0) this.lacking.delete(rightOf(words));
  }

  /** The server has refused a command beside the requests: whether that is for lack of a right, which is said once. */
  refused(words: readonly string[], error: unknown): boolean {
    if (!(error instanceof Error && /^NOPERM\b/.test(error.message))) return false;
    const right = rightOf(words);
    if (this.lacking.has(right)) return true;
    this.lacking.add(right);
    const { address } = this;
    lacks.publish({ address, right, message: error.message });
    process.emitWarning(`${address} refuses ${right} to swlimit, which does without: ${error.message}`, {
      code: "SWLIMIT_LACKS",
    });
    return true;
  }

  private changed(): void {
    this.since = new Date();
    if (changed.hasSubscribers) changed.publish(this.state);
  }
}

/** A right as ACLs name it. */
function rightOf([name = "", word = ""]: readonly string[]): string {
  return (name === "CLIENT" ? `${name}|${word}` : name).toLowerCase();
}
