/**
 * Where the primary is, as sentinels tell: heard of from all of them at once, and asked of one each second besides, because
 * word of a change may be lost. A sentinel that was cut off knows of an earlier primary: only the latest epoch counts.
 */

/** One of them is asked so often, in ms. */
const ASKED_EVERY = 1000;

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** Connections to one sentinel: to ask it, and to be told by it. They come back by themselves. */
export interface SentinelLines {
  /** The reply to a command, as a flat list, or lists of such. */
  ask(words: string[]): Promise<unknown>;
  /** Calls whenever it says that a primary has changed, and whenever it is connected. */
  listen(heard: () => void): void;
  close(): void;
}

export class Sentinels {
  private readonly all = new Map<string, SentinelLines>();
  private epoch = -1;
  private primary: Address | null = null;
  private turn = 0;
  private readonly timer: NodeJS.Timeout;

  /** `changed` is told the first primary, and each that follows. */
  constructor(
    private readonly name: string,
    seeds: readonly Address[],
    private readonly connect: (address: Address) => SentinelLines,
    private readonly changed: (primary: Address) => void,
  ) {
    for (const seed of seeds) this.add(seed);
    this.timer = setInterval(() => {
      const lines = [...this.all.values()];
      void this.ask(lines[this.turn++ % lines.length] as SentinelLines);
    }, ASKED_EVERY).unref();
  }

  close(): void {
    clearInterval(this.timer);
    for (const lines of this.all.values()) lines.close();
    this.all.clear();
  }

  private add(address: Address): void {
    const name = `${address.host}:${address.port}`;
    if (this.all.has(name)) return;
    const lines = this.connect(address);
    this.all.set(name, lines);
    lines.listen(() => void this.ask(lines));
  }

  private async ask(lines: SentinelLines): Promise<void> {
    try {
      const [told, others] = await Promise.all(
        ["MASTER", "SENTINELS"].map((question) => lines.ask(["SENTINEL", question, this.name])),
      );
      this.follow(fieldsOf(told));
      for (const { ip, port } of (others as unknown[]).map(fieldsOf)) {
        if (ip && port && this.all.size > 0) this.add({ host: ip, port: Number(port) });
      }
    } catch {
      // It is asked again, and so are others.
    }
  }

  private follow({ ip, port, "config-epoch": said }: Partial<Record<string, string>>): void {
    const epoch = Number(said);
    if (!ip || !port || !(epoch > this.epoch)) return;
    this.epoch = epoch;
    if (ip === this.primary?.host && Number(port) === this.primary.port) return;
    this.primary = { host: ip, port: Number(port) };
    this.changed(this.primary);
  }
}

/** The fields of a flat list. */
function fieldsOf(list: unknown): Partial<Record<string, string>> {
  const words = (list as unknown[]).map(String);
  return Object.fromEntries(words.flatMap((name, at) => (at % 2 === 0 ? [[name, words[at + 1] ?? ""]] : [])));
}
