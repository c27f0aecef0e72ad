/** One server (or cluster), as all limiters share it that were given the same client. */

import { RefusedError } from "../core/errors.js";
import type { Ending } from "../protocol/commands.js";
import { pause } from "../util/timeout.js";
import { Lanes } from "./blocking-pool.js";
import { Renewals } from "./hold-renewer.js";
import type { Memory } from "./invalidation.js";
import { Backlog } from "./retry-queue.js";
import { type Ask, type AskOptions, type Owner, Primary } from "./server.js";
import { type ServerState, saysLost } from "./server-health.js";
import type { Transport } from "./transport.js";

const servers = new WeakMap<object, Server>();

/** What ends by an id is ended again after such a part of its time, unless the server is back before. */
const AGAIN = 10;

/** Closing may take so many ms, or so many round trips, and looks that often, in ms, whether it is done. */
const CLOSING = 1500;
const CLOSING_TRIPS = 6;
const CLOSING_LOOKS = 10;

export class Server implements Owner {
  /** Connections to wait on; null where the client opens none. */
  readonly lanes: Lanes | null;
  readonly backlog: Backlog;
  /** The holds of this process. */
  readonly renewals: Renewals;
  readonly memories = new Set<Memory>();
  private readonly users = new Set<object>();
  private readonly primaries = new Map<object, Primary>();
  /** What is still to be ended, and what wants to hear that the server is back. */
  private readonly endings = new Set<Promise<void>>();
  private readonly awaiting = new Set<() => void>();
  private isClosed = false;

  /** The server behind a client; `transport` makes the way to it. */
  static of(client: object, transport: () => Transport): Server {
    let server = servers.get(client);
    if (!server) {
      server = new Server(transport());
      servers.set(client, server);
    }
    return server;
  }

  private constructor(private readonly transport: Transport) {
    const ask: Ask = (...words) => this.ask(...words);
    this.lanes = transport.open ? new Lanes(transport) : null;
    this.backlog = new Backlog(ask, (key) => this.primary(key).breaker.isOpen);
    this.renewals = new Renewals(ask);
    transport.ended?.(() => this.hangUp());
  }

  /** Whether commands of one turn of the event loop arrive at one server, and in order. */
  get isOrdered(): boolean {
    return this.transport.isOrdered;
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(args: string[], key: string, options: AskOptions): Promise<unknown> {
    return this.primary(key).ask(args, key, options);
  }

  /** The primary that has a key. */
  primary(key: string): Primary {
    const node = this.transport.node(key);
    let primary = this.primaries.get(node);
    if (!primary) {
      this.primaries.forEach((departed, other) => {
        if (departed.isKnown) return;
        this.primaries.delete(other);
        departed.close();
      });
      primary = new Primary(this.transport, node, this);
      this.primaries.set(node, primary);
    }
    return primary;
  }

  /** How those are that have been asked so far. */
  get states(): ServerState[] {
    return [...this.primaries.values()].filter(({ isKnown }) => isKnown).map(({ health }) => health.state);
  }

  /** One of them answers again. */
  recovered(): void {
    void this.backlog.send();
    for (const end of this.awaiting) end();
  }

  /** Have something ended: again while the server is away, until it has ended by itself. Resolves after the first try. */
  async insist({ words, lasts }: Ending, key: string, timeout: number): Promise<void> {
    const until = performance.now() + lasts;
    const isEnded = async () => {
      try {
        await this.ask(words, key, { timeout, always: true });
      } catch (error) {
        return error instanceof RefusedError;
      }
      return true;
    };
    if ((await isEnded()) || !this.isReachable) return;
    const insist = async () => {
      do await this.recovery(lasts / AGAIN);
      while (!this.isClosed && this.isReachable && performance.now() < until && !(await isEnded()));
    };
    const ending = insist().finally(() => this.endings.delete(ending));
    this.endings.add(ending);
  }

  /** Somebody uses it, and may want to be told of changes. */
  join(user: object, memory?: Memory): void {
    this.isClosed = false;
    this.users.add(user);
    if (memory) this.memories.add(memory);
  }

  /**
   * Without anybody who uses it, the connections beside the caller's are closed: once who waits is answered, what is held
   * is released and what was kept is sent, if that can be had in time. What cannot is said.
   */
  async leave(user: object, memory?: Memory): Promise<void> {
    this.users.delete(user);
    if (memory) this.memories.delete(memory);
    if (this.users.size > 0) return;
    this.lanes?.close();
    const trips = [...this.primaries.values()].map(({ roundTrip }) => CLOSING_TRIPS * roundTrip);
    const until = performance.now() + Math.max(CLOSING, ...trips);
    while (!this.isSettled && this.isReachable && performance.now() < until) {
      void this.backlog.send();
      await pause(CLOSING_LOOKS);
      if (this.users.size > 0) return;
    }
    saysLost(this.backlog.giveUp());
    this.isClosed = true;
    this.hangUp();
    this.transport.close?.();
  }

  /** Whether it is not waited for any more: nobody uses it, or the caller has closed the client. */
  get isLeft(): boolean {
    return this.users.size === 0 || !this.isReachable;
  }

  /** Whether the caller has left a way to it. */
  private get isReachable(): boolean {
    return this.transport.isOpen?.() !== false;
  }

  /** Whether nothing is under way that closing waits for. */
  private get isSettled(): boolean {
    return this.backlog.isEmpty && this.endings.size === 0 && !this.lanes?.isUsed;
  }

  /** Close the connections beside the caller's. */
  private hangUp(): void {
    this.lanes?.close();
    for (const primary of this.primaries.values()) primary.close();
    this.primaries.clear();
    for (const end of this.awaiting) end();
  }

  /** The server is back, or so many ms have passed. */
  private recovery(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        this.awaiting.delete(end);
        resolve();
      };
      const timer = setTimeout(end, ms).unref();
      this.awaiting.add(end);
    });
  }

  /** Something was given back: what was known of a key is known no longer, by any limiter. */
  forget(name: string): void {
    for (const memory of this.memories) memory.forget(name);
  }
}
