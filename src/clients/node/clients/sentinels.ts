/**
 * Follows the primary that sentinels announce. All of them announce a change, and one is asked each second, because an
 * announcement may be lost. A sentinel that was cut off may name an earlier primary: only the latest epoch counts.
 *
 * Sentinels that were installed again begin at epoch 0. A majority of all of them is followed when the primary that is
 * known is none any more.
 */

/** The interval at which one of them is asked, in ms. */
export const ASK_INTERVAL = 1000;

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** Connections to one sentinel, which reconnect by themselves. */
export interface SentinelConnections {
  /** The reply to a command: a flat list, or a list of flat lists. */
  ask(words: string[]): Promise<unknown>;
  /** Calls the listener when the sentinel announces a change, and when it is connected. */
  listen(listener: () => void): void;
  close(): void;
}

/** How sentinels and servers are reached. */
export interface SentinelAccess {
  connect(sentinel: Address): SentinelConnections;
  /** What a server says that it is; null when it does not answer. */
  role(server: Address): Promise<string | null>;
  /** Called with the first primary, and with each new one. */
  changed(primary: Address): void;
}

/** What a sentinel said last. */
interface Vote {
  readonly primary: Address;
  readonly epoch: number;
}

export class Sentinels {
  private readonly all = new Map<string, SentinelConnections>();
  private readonly votes = new Map<SentinelConnections, Vote>();
  /** How many sentinels there are, as far as is known, and how many of them do not answer the others. */
  private known: number;
  private silent = 0;
  private isDoubting = false;
  private epoch = -1;
  private primary: Address | null = null;
  private turn = 0;
  private readonly timer: NodeJS.Timeout;

  constructor(
    private readonly name: string,
    seeds: readonly Address[],
    private readonly access: SentinelAccess,
  ) {
    this.known = seeds.length;
    for (const seed of seeds) this.add(seed);
    this.timer = setInterval(() => {
      const sentinels = [...this.all.values()];
      void this.ask(sentinels[this.turn++ % sentinels.length] as SentinelConnections);
    }, ASK_INTERVAL).unref();
  }

  close(): void {
    clearInterval(this.timer);
    for (const sentinel of this.all.values()) sentinel.close();
    this.all.clear();
  }

  private add(address: Address): void {
    const name = `${address.host}:${address.port}`;
    if (this.all.has(name)) return;
    const sentinel = this.access.connect(address);
    this.all.set(name, sentinel);
    sentinel.listen(() => void this.ask(sentinel));
  }

  private async ask(sentinel: SentinelConnections): Promise<void> {
    try {
      // The epoch first: in a failover MASTER says the new one already, and still the old address.
      const questions = ["MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS"];
      const [primary, address, others] = await Promise.all(
        questions.map((question) => sentinel.ask(["SENTINEL", question, this.name])),
      );
      const [host, port] = address as unknown[];
      const found = { host: String(host), port: Number(port) };
      const fields = fieldsOf(primary);
      const sentinels = (others as unknown[]).map(fieldsOf);
      for (const { ip, port } of sentinels) {
        if (ip && port && this.all.size > 0) this.add({ host: ip, port: Number(port) });
      }
      this.known = Math.max(this.known, Number(fields["num-other-sentinels"] ?? 0) + 1);
      this.silent = sentinels.filter(({ flags = "" }) => flags.includes("s_down")).length;
      const epoch = Number(fields["config-epoch"]);
      this.votes.set(sentinel, { primary: found, epoch });
      if (!this.follow(found, epoch)) await this.doubt(found);
    } catch {
      this.votes.delete(sentinel); // it is asked again later, and so are the others
    }
  }

  /** Whether this is news. */
  private follow(primary: Address, epoch: number): boolean {
    if (!(epoch > this.epoch)) return false;
    this.epoch = epoch;
    if (isSame(primary, this.primary)) return true;
    this.primary = primary;
    this.access.changed(primary);
    return true;
  }

  /** Follow an earlier epoch, if most sentinels name that primary, and the known one is none any more. */
  private async doubt(other: Address): Promise<void> {
    const { primary, access } = this;
    if (this.isDoubting || !primary || isSame(other, primary)) return;
    const agreeing = [...this.votes.values()].filter((vote) => isSame(vote.primary, other));
    if (2 * agreeing.length <= this.known - this.silent) {
      // The others may be asked only after seconds.
      const unheard = [...this.all.values()].filter((one) => !this.votes.has(one));
      for (const one of unheard) void this.ask(one);
      return;
    }
    this.isDoubting = true;
    try {
      if ((await access.role(primary)) === "master" || (await access.role(other)) !== "master") return;
      this.epoch = -1;
      this.follow(other, Math.max(...agreeing.map(({ epoch }) => epoch)));
    } finally {
      this.isDoubting = false;
    }
  }
}

function isSame(one: Address, other: Address | null): boolean {
  return one.host === other?.host && one.port === other.port;
}

/** A flat list of names and values. */
function fieldsOf(list: unknown): Partial<Record<string, string>> {
  const words = (list as unknown[]).map(String);
  return Object.fromEntries(words.flatMap((name, at) => (at % 2 === 0 ? [[name, words[at + 1] ?? ""]] : [])));
}
