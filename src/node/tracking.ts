/**
 * Hearing at once what is given back: connections with client tracking, one a node.
 *
 * After a denial, PEEK of the same key goes out on such a connection. That registers the key: the server then says
 * when it changes, once. PEEK's own reply, and not the denial's, is what is remembered.
 */

import type { Memory } from "./server.js";
import { within } from "./timeout.js";
import type { Connection, Listener, Transport } from "./transport.js";

/**
 * A connection that has been silent for so long, in ms, is asked whether it is still there; it has as long to answer.
 */
const SILENCE = 1000;

/** After a connection could not be had, none is asked for during so many ms. */
const PAUSE = 1000;

export class Tracking {
  private readonly nodes = new Map<object, Tracked>();

  constructor(
    private readonly transport: Transport,
    private readonly memories: ReadonlySet<Memory>,
  ) {}

  close(): void {
    for (const tracked of this.nodes.values()) tracked.close();
    this.nodes.clear();
  }

  /** The connection that tracks a key's node: it may be open, be opening, or cannot be had now. */
  of(key: string): Tracked {
    const { node, open } = this.transport as Required<Transport>;
    const at = node(key);
    let tracked = this.nodes.get(at);
    if (!tracked) {
      for (const [other, { isClosed }] of this.nodes) if (isClosed) this.nodes.delete(other); // it may have gone
      tracked = new Tracked((listener) => open(at, listener), this.memories);
      this.nodes.set(at, tracked);
    }
    return tracked;
  }
}

export class Tracked implements Listener {
  private connection: Connection | null = null;
  private opening: Promise<void> | null = null;
  private failed = Number.NEGATIVE_INFINITY;
  private heard = 0;
  private watch: NodeJS.Timeout | undefined;

  constructor(
    private readonly connect: (listener: Listener) => Promise<Connection>,
    private readonly memories: ReadonlySet<Memory>,
  ) {}

  get isOpen(): boolean {
    return this.connection !== null;
  }

  get isClosed(): boolean {
    return this.connection === null && this.opening === null;
  }

  /** Whether a connection could not be had just now. */
  get isRefused(): boolean {
    return this.connection === null && performance.now() < this.failed + PAUSE;
  }

  open(): Promise<void> {
    if (this.connection || this.isRefused) return Promise.resolve();
    this.opening ??= this.reallyOpen().finally(() => {
      this.opening = null;
    });
    return this.opening;
  }

  async send(args: string[]): Promise<unknown> {
    if (!this.connection) throw new Error("not connected");
    const reply = await this.connection.send(args);
    this.heard = performance.now();
    return reply;
  }

  invalidated(key: string | null): void {
    this.heard = performance.now();
    for (const memory of this.memories) key === null ? memory.forgetAll() : memory.forget(key);
  }

  lost(): void {
    this.close();
  }

  close(): void {
    clearTimeout(this.watch);
    const { connection } = this;
    this.connection = null;
    for (const memory of this.memories) memory.forgetAll();
    if (connection?.isOpen) connection.close();
  }

  private async reallyOpen(): Promise<void> {
    let connection: Connection | undefined;
    let gone = false;
    try {
      connection = await this.connect({
        invalidated: (key) => this.invalidated(key),
        lost: () => {
          gone = true;
          if (this.connection === connection) this.lost();
        },
      });
      await assureTracking(connection);
      if (gone || this.memories.size === 0) throw new Error("lost at once, or not wanted any more");
      connection.hold(false);
      this.connection = connection;
      this.heard = performance.now();
      this.listen();
    } catch {
      this.failed = performance.now();
      if (connection?.isOpen) connection.close();
    }
  }

  /** Nobody else notices a connection that is half open while everything is denied without asking. */
  private listen(): void {
    const { connection } = this;
    const silence = performance.now() - this.heard;
    const wait = silence < SILENCE ? SILENCE - silence : SILENCE;
    this.watch = setTimeout(async () => {
      const idle = [...this.memories].every((memory) => memory.size === 0);
      if (!idle && performance.now() - this.heard >= SILENCE) {
        await within(this.send(["PING"]), SILENCE).catch(() => {
          if (this.connection === connection) this.lost();
        });
      }
      if (this.connection && this.connection === connection) this.listen();
    }, wait).unref();
  }
}

/**
 * A client library that does not know how to turn tracking on would leave everything that is remembered to go stale.
 */
async function assureTracking(connection: Connection): Promise<void> {
  const info = JSON.stringify(await connection.send(["CLIENT", "TRACKINGINFO"]));
  if (!info.includes('"on"')) throw new Error("client tracking is off");
}
