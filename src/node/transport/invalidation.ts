/**
 * Hearing at once what is given back: connections with client tracking, one a node.
 *
 * After a denial, PEEK of the same key goes out on such a connection. That registers the key: the server then says
 * when it changes, once. PEEK's own reply, and not the denial's, is what is remembered.
 */

import type { ModuleUse } from "../core/options.js";
import { Dialect } from "../protocol/script-fallback.js";
import { within } from "../util/timeout.js";
import type { Health } from "./server-health.js";
import type { Connection, Listener } from "./transport.js";

/**
 * A connection that has been silent for so long, in ms, is asked whether it is still there; it has as long to answer.
 */
const SILENCE = 1000;

/** After a connection could not be had, none is asked for during so many ms. */
const PAUSE = 1000;

/** Nor during so many ms after one was of no use for lack of a right. */
const PAUSE_WITHOUT_RIGHTS = 60_000;

/** Who remembers something of keys. */
export interface Memory {
  readonly size: number;
  forget(name: string): void;
  forgetAll(): void;
}

export class Tracked implements Listener {
  private connection: Connection | null = null;
  private dialect: Dialect | null = null;
  private opening: Promise<void> | null = null;
  private refusedUntil = Number.NEGATIVE_INFINITY;
  private heard = 0;
  private watch: NodeJS.Timeout | undefined;

  constructor(
    private readonly connect: (listener: Listener) => Promise<Connection>,
    private readonly memories: ReadonlySet<Memory>,
    private readonly health: Health,
    private readonly takesBytes: boolean,
    private readonly isKnown: () => boolean,
  ) {}

  get isOpen(): boolean {
    return this.connection !== null;
  }

  /** Whether a connection could not be had just now. */
  get isRefused(): boolean {
    return this.connection === null && performance.now() < this.refusedUntil;
  }

  open(): Promise<void> {
    if (this.connection || this.isRefused) return Promise.resolve();
    this.opening ??= this.reallyOpen().finally(() => {
      this.opening = null;
    });
    return this.opening;
  }

  /** Have the server tell when a key changes: the reply to a PEEK of it, and that to PTTL. */
  async register(peek: string[], name: string, module: ModuleUse): Promise<[unknown, unknown]> {
    const { dialect } = this;
    if (!dialect) throw new Error("not connected");
    const ask = async (words: string[]) => {
      try {
        const reply = await dialect.ask(words, name, module);
        this.health.allowed(words);
        return reply;
      } catch (error) {
        if (this.health.refused(words, error)) this.refuse(PAUSE_WITHOUT_RIGHTS);
        throw error;
      }
    };
    const replies = await Promise.all([ask(peek), ask(["PTTL", name])]);
    this.heard = performance.now();
    return replies;
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
    this.dialect = null;
    for (const memory of this.memories) memory.forgetAll();
    if (connection?.isOpen) connection.close();
  }

  private refuse(ms: number): void {
    this.refusedUntil = performance.now() + ms;
    this.close();
  }

  private async reallyOpen(): Promise<void> {
    let connection: Connection | undefined;
    let gone = false;
    let asking = ["CLIENT", "TRACKING"];
    try {
      connection = await this.connect({
        invalidated: (key) => this.invalidated(key),
        lost: () => {
          gone = true;
          if (this.connection === connection) this.lost();
        },
      });
      asking = ["CLIENT", "TRACKINGINFO"];
      // A client library that does not turn tracking on would leave everything that is remembered to go stale.
      const info = JSON.stringify(await connection.send(asking));
      if (!info.includes('"on"')) throw new Error("client tracking is off");
      for (const right of ["TRACKING", "TRACKINGINFO"]) this.health.allowed(["CLIENT", right]);
      if (gone || this.memories.size === 0) throw new Error("lost at once, or not wanted any more");
      connection.hold(false);
      const opened = connection;
      this.connection = opened;
      this.dialect = new Dialect((words) => opened.send(words), this.takesBytes);
      this.heard = performance.now();
      this.listen();
    } catch (error) {
      if (connection?.isOpen) connection.close();
      this.refusedUntil = performance.now() + (this.health.refused(asking, error) ? PAUSE_WITHOUT_RIGHTS : PAUSE);
    }
  }

  /**
   * Nobody else notices a connection that is half open while everything is denied without asking, or one to a server
   * that has left the cluster and lives on.
   */
  private listen(): void {
    const { connection } = this;
    const silence = performance.now() - this.heard;
    const wait = silence < SILENCE ? SILENCE - silence : SILENCE;
    this.watch = setTimeout(async () => {
      const idle = [...this.memories].every((memory) => memory.size === 0);
      if (!this.isKnown()) this.lost();
      else if (!idle && performance.now() - this.heard >= SILENCE) await this.ping();
      if (this.connection && this.connection === connection) this.listen();
    }, wait).unref();
  }

  private async ping(): Promise<void> {
    const { connection } = this;
    try {
      await within((connection as Connection).send(["PING"]), SILENCE);
      this.health.allowed(["PING"]);
    } catch (error) {
      if (!this.health.refused(["PING"], error)) {
        if (this.connection === connection) this.lost();
        return;
      }
    }
    this.heard = performance.now();
  }
}
