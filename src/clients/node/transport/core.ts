/** What all limiters with the same client share: the servers behind it, and the work that outlives requests. */

import { RefusedError } from "../core/errors.js";
import type { Settings } from "../core/options.js";
import { type AnyCommand, type Command, keyOf } from "../protocol/commands.js";
import { inTime, pause } from "../util/timeout.js";
import { BlockingConnections } from "./blocking-connections.js";
import { FIRST_PROBE } from "./breaker.js";
import { HoldQueue } from "./hold-queue.js";
import { HoldRenewer, RETRIES } from "./hold-renewer.js";
import type { KeyCache } from "./invalidation.js";
import { RetryQueue } from "./retry-queue.js";
import { type Ask, type RequestOptions, Server, type ServerOwner } from "./server.js";
import { type ServerState, warnOfLoss } from "./server-health.js";
import type { Transport } from "./transport.js";

const states = new WeakMap<object, Core>();

/** Closing may take so many ms, or so many round trips, and checks every `CLOSING_INTERVAL` ms whether it is done. */
export const CLOSING = 1500;
export const CLOSING_TRIPS = 6;
const CLOSING_INTERVAL = 10;

export class Core implements ServerOwner {
  /** Connections to wait on; null where the client opens none. */
  readonly blocking: BlockingConnections | null;
  readonly retryQueue: RetryQueue;
  readonly renewer: HoldRenewer;
  readonly caches = new Set<KeyCache>();
  readonly holdQueue = new HoldQueue(this.caches);
  private readonly users = new Set<object>();
  private readonly servers = new Map<object, Server>();
  /** Undos and settlements that the server has not answered yet, and callbacks for when it is back. */
  private readonly repeating = new Set<Promise<void>>();
  private readonly awaiting = new Set<() => void>();
  /** Callbacks for when no limiter uses it any more. */
  private readonly pausing = new Set<() => void>();
  private isClosed = false;
  /** Closes a client that a limiter has opened, when no limiter uses it any more. */
  onLeft: (() => Promise<void>) | null = null;

  /** The state of a client; `transport` is called for its first limiter. */
  static of(client: object, transport: () => Transport): Core {
    let state = states.get(client);
    if (!state) {
      state = new Core(transport());
      states.set(client, state);
    }
    return state;
  }

  private constructor(private readonly transport: Transport) {
    const ask: Ask = (command, options) => this.ask(command, options);
    this.blocking = transport.open ? new BlockingConnections(transport) : null;
    this.retryQueue = new RetryQueue(ask, (key) => this.server(key).breaker.isOpen);
    this.renewer = new HoldRenewer(ask);
    transport.ended?.(() => this.hangUp());
  }

  /** Refuse a limiter that waits longer for a reply than the client does. */
  checkTimeout(timeout: number): void {
    const { givesUpAfter = timeout } = this.transport;
    if (timeout <= givesUpAfter) return;
    throw new RangeError(
      `timeout must be at most ${givesUpAfter} ms, after which the client drops replies, not ${timeout}: ` +
        "make the client with a longer `requestTimeout`",
    );
  }

  /** Whether commands of one turn of the event loop arrive at one server, and in order. */
  get isOrdered(): boolean {
    return this.transport.isOrdered;
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(command: AnyCommand, options: RequestOptions): Promise<unknown> {
    return this.server(keyOf(command)).ask(command, options);
  }

  /** The server that has a key: in a cluster, one of its primaries. */
  server(key: string): Server {
    const node = this.transport.node(key);
    let server = this.servers.get(node);
    if (!server) {
      this.servers.forEach((departed, other) => {
        if (departed.isKnown) return;
        this.servers.delete(other);
        departed.close();
      });
      server = new Server(this.transport, node, this);
      this.servers.set(node, server);
    }
    return server;
  }

  /** The states of the servers that were asked so far. */
  get states(): ServerState[] {
    return [...this.servers.values()].filter(({ isKnown }) => isKnown).map(({ health }) => health.state);
  }

  /** One of them answers again. */
  recovered(): void {
    void this.retryQueue.send();
    for (const end of this.awaiting) end();
  }

  /**
   * Send a command until it is answered, for at most `repeatFor` ms: at intervals that double, and when the server is
   * back. Resolves after the first try.
   */
  async askUntilAnswered(command: Command, repeatFor: number, { timeout, module }: Settings): Promise<void> {
    const until = performance.now() + repeatFor;
    const isAnswered = async () => {
      try {
        await this.ask(command, { timeout, module, always: true });
        this.holdQueue.released(keyOf(command));
      } catch (error) {
        return error instanceof RefusedError;
      }
      return true;
    };
    if ((await isAnswered()) || !this.isReachable) return;
    const repeat = async () => {
      let interval = FIRST_PROBE / 2;
      do {
        interval = Math.min(2 * interval, repeatFor / RETRIES);
        await this.recovery(interval);
      } while (!this.isClosed && this.isReachable && performance.now() < until && !(await isAnswered()));
    };
    this.keep(repeat());
  }

  /** Work beside the requests, which never fails: closing waits for it. */
  keep(work: Promise<void>): void {
    const kept = work.finally(() => this.repeating.delete(kept));
    this.repeating.add(kept);
  }

  /** A limiter uses it; its cache, if it has one, gets invalidations. */
  join(user: object, cache?: KeyCache): void {
    this.isClosed = false;
    this.users.add(user);
    if (cache) this.caches.add(cache);
  }

  /**
   * The last limiter to leave closes all connections but the caller's own. That waits, for a limited time, until
   * waiting requests are answered, holds released and kept records sent, and warns of what is lost.
   */
  async leave(user: object, cache?: KeyCache): Promise<void> {
    this.users.delete(user);
    if (cache) this.caches.delete(cache);
    if (this.users.size > 0) return;
    this.blocking?.close();
    for (const end of this.pausing) end();
    const trips = [...this.servers.values()].map(({ roundTrip }) => CLOSING_TRIPS * roundTrip);
    const until = performance.now() + Math.max(CLOSING, ...trips);
    while (!this.isSettled && this.isReachable && performance.now() < until) {
      void this.retryQueue.send();
      await pause(CLOSING_INTERVAL);
      if (this.users.size > 0) return;
    }
    warnOfLoss(this.retryQueue.giveUp());
    this.isClosed = true;
    this.hangUp();
    this.transport.close?.();
    await this.onLeft?.();
  }

  /** Wait for so many ms, or until no limiter uses it any more. */
  async pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
    let end = () => {};
    const left = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.pausing.add(end);
    try {
      await inTime(left, ms, signal);
    } finally {
      this.pausing.delete(end);
    }
  }

  /** Whether nobody waits for the server any more: no limiter uses it, or the caller has closed the client. */
  get isLeft(): boolean {
    return this.users.size === 0 || !this.isReachable;
  }

  /** Whether the caller's client is still open. */
  private get isReachable(): boolean {
    return this.transport.isOpen?.() !== false;
  }

  /** Whether closing has nothing to wait for. */
  private get isSettled(): boolean {
    return this.retryQueue.isEmpty && this.repeating.size === 0 && !this.blocking?.isUsed;
  }

  /** Close all connections but the caller's. */
  private hangUp(): void {
    this.blocking?.hangUp();
    for (const server of this.servers.values()) server.close();
    this.servers.clear();
    for (const end of this.awaiting) end();
  }

  /** Resolves when the server is back, or after so many ms. */
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

  /** Units of a key were given back: no limiter's cache may repeat a denial of it. */
  forget(key: string): void {
    for (const cache of this.caches) cache.forget(key);
  }
}
