/** A client of one server that becomes a client of the cluster which that server turns out to be part of. */

import type { Connection, InvalidationListener, Transport } from "../transport/transport.js";

/** After the cluster could not be opened, it is tried again after this time, in ms. */
const PAUSE = 60_000;

const isRedirection = (error: unknown) => error instanceof Error && /^(MOVED|ASK) /.test(error.message);

export class FollowingTransport implements Transport {
  readonly takesBytes: boolean;
  readonly tracks: boolean;
  private cluster: Transport | null = null;
  private opening: Promise<boolean> | null = null;
  private triedUntil = Number.NEGATIVE_INFINITY;
  private hasWarned = false;

  constructor(
    /** The client of the one server, and the way through it. */
    private readonly client: object,
    private readonly single: Transport,
    /** Opens the cluster: rejects where no server that it names can be reached. */
    private readonly openCluster: () => Promise<Transport>,
  ) {
    this.takesBytes = single.takesBytes;
    this.tracks = single.tracks;
  }

  /** Look at what the server says of itself, on each connection. Resolves when that is known, and followed. */
  async connected(): Promise<void> {
    try {
      const info = String(await this.single.send(["INFO", "server"], ""));
      if (/^redis_mode:cluster\r?$/m.test(info)) await this.follow();
    } catch {
      // Without the right to INFO, the first redirection says it.
    }
  }

  get isOrdered(): boolean {
    return this.now.isOrdered;
  }

  async send(...[words, key]: Parameters<Transport["send"]>): Promise<unknown> {
    if (this.cluster) return this.cluster.send(words, key);
    try {
      return await this.single.send(words, key);
    } catch (error) {
      if (!isRedirection(error) || !(await this.follow())) throw error;
      return this.now.send(words, key); // a redirected command was not executed
    }
  }

  node(key: string): object {
    return this.now.node(key);
  }

  knows(node: object): boolean {
    return this.cluster ? this.cluster.knows?.(node) !== false : node === this.client;
  }

  address(node: object): string {
    return this.of(node).address(node);
  }

  connection(node: object): unknown {
    return this.of(node).connection?.(node);
  }

  connectError(node: object): unknown {
    return this.of(node).connectError?.(node);
  }

  state(node: object): "ready" | "connecting" | "queued" {
    return this.of(node).state?.(node) ?? "ready";
  }

  open(node: object, listener?: InvalidationListener): Promise<Connection> {
    return (this.of(node).open as NonNullable<Transport["open"]>)(node, listener);
  }

  isOpen(): boolean {
    return this.now.isOpen?.() !== false;
  }

  close(): void {
    this.single.close?.();
    this.cluster?.close?.();
  }

  private get now(): Transport {
    return this.cluster ?? this.single;
  }

  /** What a server was found by may still be under way when the cluster is followed. */
  private of(node: object): Transport {
    return node === this.client ? this.single : this.now;
  }

  /** Whether the cluster is followed now. */
  private follow(): Promise<boolean> {
    if (this.cluster) return Promise.resolve(true);
    if (!this.opening && performance.now() < this.triedUntil) return Promise.resolve(false);
    this.opening ??= this.openCluster().then(
      (cluster) => {
        this.cluster = cluster;
        return true;
      },
      (error) => {
        this.opening = null;
        this.triedUntil = performance.now() + PAUSE;
        this.warn(error);
        return false;
      },
    );
    return this.opening;
  }

  private warn(error: unknown): void {
    if (this.hasWarned) return;
    this.hasWarned = true;
    const { name } = error instanceof Error ? error : { name: "Error" };
    process.emitWarning(
      `no address that the cluster names can be reached (${name}), so ${this.single.address(this.client)} alone is asked`,
      { code: "SWLIMIT_CLUSTER" },
    );
  }
}
