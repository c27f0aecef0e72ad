/**
 * Follows the primary that sentinels announce. All of them announce a change, and one is asked each second, because an
 * announcement may be lost. A sentinel that was cut off may name an earlier primary: only the latest epoch counts.
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

export class Sentinels {
  private readonly all = new Map<string, SentinelConnections>();
  private epoch = -1;
  private primary: Address | null = null;
  private turn = 0;
  private readonly timer: NodeJS.Timeout;

  /** `changed` is called with the first primary, and with each new one. */
  constructor(
    private readonly name: string,
    seeds: readonly Address[],
    private readonly connect: (address: Address) => SentinelConnections,
    private readonly changed: (primary: Address) => void,
  ) {
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
    const sentinel = this.connect(address);
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
      this.follow({ host: String(host), port: Number(port) }, Number(fieldsOf(primary)["config-epoch"]));
      for (const { ip, port } of (others as unknown[]).map(fieldsOf)) {
        if (ip && port && this.all.size > 0) this.add({ host: ip, port: Number(port) });
      }
    } catch {
      // It is asked again later, and so are the others.
    }
  }

  private follow(primary: Address, epoch: number): void {
    if (!(epoch > this.epoch)) return;
    this.epoch = epoch;
    if (primary.host === this.primary?.host && primary.port === this.primary.port) return;
    this.primary = primary;
    this.changed(primary);
  }
}

/** A flat list of names and values. */
function fieldsOf(list: unknown): Partial<Record<string, string>> {
  const words = (list as unknown[]).map(String);
  return Object.fromEntries(words.flatMap((name, at) => (at % 2 === 0 ? [[name, words[at + 1] ?? ""]] : [])));
}
