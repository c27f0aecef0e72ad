/**
 * Invalidations: a connection with client tracking to each server.
 *
 * After a denial, PEEK of the same key goes out on that connection. This registers the key: the server then sends one
 * invalidation when it changes. PEEK's reply is cached, and not the denial's.
 */

import type { ModuleUse } from "../core/options.js";
import { type AnyCommand, type CommandNamed, serverCommand } from "../protocol/commands.js";
import type { Dialect, Send } from "../protocol/script-fallback.js";
import { within } from "../util/timeout.js";
import type { ServerHealth } from "./server-health.js";
import type { Connection, InvalidationListener } from "./transport.js";

/** A connection that was silent for so long, in ms, is pinged; it has as long to answer. */
export const SILENCE = 1000;

/** The pause after a connection failed, in ms. */
const PAUSE = 1000;

/** The same after a right was missing. */
const PAUSE_WITHOUT_RIGHTS = 60_000;

/** What is remembered of keys, until they are invalidated. */
export interface KeyCache {
  readonly size: number;
  forget(key: string): void;
  forgetAll(): void;
}

export class InvalidationConnection implements InvalidationListener {
  private connection: Connection | null = null;
  private dialect: Dialect | null = null;
  private opening: Promise<void> | null = null;
  private refusedUntil = Number.NEGATIVE_INFINITY;
  private received = 0;
  private watch: NodeJS.Timeout | undefined;

  constructor(
    private readonly connect: (listener: InvalidationListener) => Promise<Connection>,
    private readonly caches: ReadonlySet<KeyCache>,
    private readonly health: ServerHealth,
    private readonly speaking: (send: Send) => Dialect,
    private readonly isKnown: () => boolean,
  ) {}

  get isOpen(): boolean {
    return this.connection !== null;
  }

  /** Whether opening a connection has just failed. */
  get isRefused(): boolean {
    return this.connection === null && performance.now() < this.refusedUntil;
  }

  open(): Promise<void> {
    if (this.connection || this.isRefused) return Promise.resolve();
    this.opening ??= this.openNow().finally(() => {
      this.opening = null;
    });
    return this.opening;
  }

  /** Have the server announce when a key changes; the replies to a PEEK of it and to PTTL. */
  async register(peek: CommandNamed<"PEEK">, module: ModuleUse): Promise<[unknown, unknown]> {
    const { dialect } = this;
    if (!dialect) throw new Error("not connected");
    const ask = async (command: AnyCommand) => {
      try {
        const reply = await dialect.ask(command, module);
        this.health.allowed(command);
        return reply;
      } catch (error) {
        if (this.health.refused(command, error)) this.refuse(PAUSE_WITHOUT_RIGHTS);
        throw error;
      }
    };
    const replies = await Promise.all([ask(peek), ask(serverCommand(peek.key, "PTTL", peek.key))]);
    this.received = performance.now();
    return replies;
  }

  /** The same for a key of holds; whether the connection is open. */
  registerHolds(key: string, module: ModuleUse): boolean {
    this.dialect?.ask({ name: "HOLDERS", key, count: 1 }, module).catch(() => {});
    return this.dialect !== null;
  }

  invalidated(key: string | null): void {
    this.received = performance.now();
    for (const cache of this.caches) key === null ? cache.forgetAll() : cache.forget(key);
  }

  lost(): void {
    this.close();
  }

  close(): void {
    clearTimeout(this.watch);
    const { connection } = this;
    this.connection = null;
    this.dialect = null;
    for (const cache of this.caches) cache.forgetAll();
    if (connection?.isOpen) connection.close();
  }

  private refuse(ms: number): void {
    this.refusedUntil = performance.now() + ms;
    this.close();
  }

  private async openNow(): Promise<void> {
    let connection: Connection | undefined;
    let isGone = false;
    let asked = serverCommand("", "CLIENT", "TRACKING");
    try {
      connection = await this.connect({
        invalidated: (key) => this.invalidated(key),
        lost: () => {
          isGone = true;
          if (this.connection === connection) this.lost();
        },
      });
      asked = serverCommand("", "CLIENT", "TRACKINGINFO");
      // A client library may not have turned tracking on: then cached denials would become stale.
      const info = JSON.stringify(await connection.send(asked.words));
      if (!info.includes('"on"')) throw new Error("client tracking is off");
      for (const right of ["TRACKING", "TRACKINGINFO"]) this.health.allowed(serverCommand("", "CLIENT", right));
      if (isGone || this.caches.size === 0) throw new Error("lost at once, or no longer needed");
      connection.hold(false);
      const opened = connection;
      this.connection = opened;
      this.dialect = this.speaking((words) => opened.send(words));
      this.received = performance.now();
      this.listen();
    } catch (error) {
      if (connection?.isOpen) connection.close();
      this.refusedUntil = performance.now() + (this.health.refused(asked, error) ? PAUSE_WITHOUT_RIGHTS : PAUSE);
    }
  }

  /**
   * While everything is denied from the cache, nothing else notices a half-open connection, or one to a server that has
   * left the cluster and goes on running.
   */
  private listen(): void {
    const { connection } = this;
    const silence = performance.now() - this.received;
    const wait = silence < SILENCE ? SILENCE - silence : SILENCE;
    this.watch = setTimeout(async () => {
      const isIdle = [...this.caches].every((cache) => cache.size === 0);
      if (!this.isKnown()) this.lost();
      else if (!isIdle && performance.now() - this.received >= SILENCE) await this.ping();
      if (this.connection && this.connection === connection) this.listen();
    }, wait).unref();
  }

  private async ping(): Promise<void> {
    const { connection } = this;
    const ping = serverCommand("", "PING");
    try {
      await within((connection as Connection).send(ping.words), SILENCE);
      this.health.allowed(ping);
    } catch (error) {
      if (!this.health.refused(ping, error)) {
        if (this.connection === connection) this.lost();
        return;
      }
    }
    this.received = performance.now();
  }
}
