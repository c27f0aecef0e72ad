/**
 * One server: a single one, or a primary of a cluster. It owns every exchange with it, so that late replies are handled
 * however long ago their callers gave up.
 */

import {
  ClusterClientError,
  classify,
  DeadlineError,
  ModuleMissingError,
  NeedsModuleError,
  NotAskedError,
  RefusedError,
  UnavailableError,
} from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import { reasonOfError } from "../core/reasons.js";
import { type AnyCommand, checkReply, decides, keyOf, serverCommand, wordsOf } from "../protocol/commands.js";
import { Dialect, isUnknown, nextLook, type Send, ServerScripts } from "../protocol/script-fallback.js";
import { within } from "../util/timeout.js";
import { afterLoopTurns, type Batch, BatchTimeouts, type PendingReply } from "./batch-timeouts.js";
import { Breaker } from "./breaker.js";
import { InvalidationConnection, type KeyCache } from "./invalidation.js";
import { ServerConnection } from "./server-connection.js";
import { ServerHealth } from "./server-health.js";
import type { InvalidationListener, Transport } from "./transport.js";

/** The longest that a probe takes, in ms. */
export const PROBE_TIMEOUT = 500;

/** The longest that a connection takes to come up before the breaker opens, in ms. */
export const CONNECTING = 1000;

/** The breaker opens when a command is unanswered and nothing was received for so many timeouts. */
export const SILENT_TIMEOUTS = 3;

/** The pause between probes of a slow server, in ms. */
export const SLOW_PROBE = 500;

/** What of the mean round trip a new one is. */
const SMOOTHING = 1 / 8;

/** What a probe asks of the last key that failed: any write would do, and this one changes nothing. */
const PROBE = { limit: 0, window: 1, resolution: 1, strict: false, cost: 1, partial: false };

export interface RequestOptions {
  /** The longest to wait for the reply from when the command is written, in ms. */
  readonly timeout: number;
  /** The longest that the caller waits, in ms. A caller that leaves earlier says nothing about the server. */
  readonly deadline?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Whether the module or the script decides; "auto" by default. */
  readonly module?: ModuleUse | undefined;
  /** Send it even while the breaker is open. */
  readonly always?: boolean | undefined;
  /** Send it on this connection only, a value of `Server.connection`: another one may lead to another server. */
  readonly over?: unknown;
  /** Called with the reply that may still come after the caller has left. */
  readonly late?: ((reply: Promise<LateReply>) => void) | undefined;
  /** Whether a late reply is undone since an instant of the server's clock. */
  readonly isDated?: boolean | undefined;
}

/** A reply whose caller has left. */
export interface LateReply {
  readonly reply: unknown;
  /** An instant of the server's clock before the grant; null where it is unknown. */
  readonly since: number | null;
  /** The connection on which it came. */
  readonly connection: unknown;
}

/** Sends a command, and resolves to its reply. */
export type Ask = (command: AnyCommand, options: RequestOptions) => Promise<unknown>;

export interface ServerOwner {
  /** They get the invalidations of the server. */
  readonly caches: ReadonlySet<KeyCache>;
  /** The server answers again. */
  recovered(): void;
}

export class Server {
  readonly breaker: Breaker;
  readonly health: ServerHealth;
  /** The connection for invalidations; null where the client can open none. */
  readonly invalidations: InvalidationConnection | null;
  /** The longest recent round trip, in ms. */
  roundTrip = 0;
  /** @internal */ readonly timeouts = new BatchTimeouts();
  /** The mean round trip in ms, late replies included. */
  private meanRoundTrip: number | null = null;
  private readonly scripts: ServerScripts;
  /** The caller's client. */
  private readonly client: ServerConnection;
  /** Used while the caller's client is not. */
  private replacement: ServerConnection | null = null;
  private opening: Promise<void> | null = null;
  /** What was opened in place of the caller's client, and may owe replies still. */
  private readonly opened = new Set<ServerConnection>();
  /** Requests that wait for a connection, or for their turn on it. */
  private readonly queue: Exchange[] = [];
  private connectingSince: number | null = null;
  private hasServed = false;
  private isClosed = false;
  /** The write whose failure was counted last. */
  private failedWrite: Batch | null = null;
  /** The writes in a row whose replies came late, and the last of them. */
  private lateWrites = 0;
  private lateWrite: Batch | null = null;
  /** When it was asked last whether a slow server is in time again, and whether that is under way. */
  private slowAsked = Number.NEGATIVE_INFINITY;
  private isAskingSlow = false;
  /** The timeout that replies came too late for. */
  private slowTimeout = 0;
  private longestTimeout = 0;
  /** The last key that failed, and how it was asked for. */
  private key = "";
  /** When INFO is read again. */
  private looksAt = Number.NEGATIVE_INFINITY;
  private use: ModuleUse = "auto";

  constructor(
    private readonly transport: Transport,
    private readonly node: object,
    owner: ServerOwner,
  ) {
    const { open, tracks } = transport;
    const send: Send = (words, key) => transport.send(words, key);
    this.health = new ServerHealth(transport.address(node), () => this.backend, transport.failovers);
    this.scripts = new ServerScripts(this.health);
    this.client = new ServerConnection(this.speaking(send), send, () => transport.connection?.(node), null);
    this.breaker = new Breaker(
      this.health,
      () => this.probe(),
      () => owner.recovered(),
    );
    const connect = open && tracks ? (listener: InvalidationListener) => open(node, listener) : null;
    this.invalidations =
      connect &&
      new InvalidationConnection(
        connect,
        owner.caches,
        this.health,
        (send) => this.speaking(send),
        () => this.isKnown,
      );
  }

  /** What decides there; null until that is known. */
  get backend(): Dialect["backend"] {
    return this.newest.dialect.backend;
  }

  /** Whether it still belongs to the cluster. */
  get isKnown(): boolean {
    return this.transport.knows?.(this.node) !== false;
  }

  /** The connection on which commands go out now; undefined when that is unknown, or there is none. */
  get connection(): unknown {
    return this.newest.identity();
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(command: AnyCommand, options: RequestOptions): Promise<unknown> {
    const { timeout, deadline, module = "auto", always, over } = options;
    this.use = module;
    if (over !== undefined && over !== this.connection) {
      return refused(new NotAskedError("the connection has changed, perhaps to another server", "disconnected"));
    }
    const { opened } = this.breaker;
    if (opened && !always) {
      this.key = keyOf(command);
      this.breaker.schedule();
      return refused(new NotAskedError(opened.message, opened.reason));
    }
    if (deadline !== undefined && deadline <= 0) return refused(new DeadlineError());
    if (timeout > this.longestTimeout) this.longestTimeout = timeout;
    const mean = this.meanRoundTrip;
    if (mean !== null && mean > timeout && !always && decides(command)) {
      this.key = keyOf(command);
      this.slowTimeout = timeout;
      this.askWhetherSlow();
      return refused(new NotAskedError(this.health.setSlow(mean, timeout), "slow"));
    }
    return new Promise((resolve, reject) => {
      const exchange = new Exchange(this, command, options, resolve, reject);
      const connection = this.queue.length === 0 ? this.usable() : null;
      if (connection && !connection.isFull) exchange.send(connection, this.state(connection));
      else this.wait(exchange);
    });
  }

  close(): void {
    this.isClosed = true;
    this.breaker.stop();
    this.invalidations?.close();
    this.dropReplacement();
    for (const connection of this.opened) connection.close();
    for (const exchange of this.queue.splice(0)) {
      exchange.refuse(new NotAskedError("the limiter is closed", "disconnected"));
    }
  }

  /** @internal A reply came that is no error. */
  served(exchange: Exchange): void {
    this.hasServed = true;
    this.answered(exchange);
    if (performance.now() >= this.looksAt) this.look(exchange);
  }

  /** Read what the server says of its memory, once in about a minute. */
  private look({ command, connection }: Exchange): void {
    this.looksAt = nextLook();
    const info = serverCommand(keyOf(command), "INFO");
    connection?.dialect.ask(info, this.use).then(
      (text) => this.health.informed(String(text)),
      (error) => this.health.refused(info, error),
    );
  }

  /** A reply came, or an error that is the caller's. */
  private answered({ sent, isLate, isAlone, timeout, batch, connection }: Exchange): void {
    if (isLate && this.breaker.isOutdated(sent)) return;
    const now = performance.now();
    const took = now - sent;
    if (isAlone && connection?.isQuiet) {
      const mean = this.meanRoundTrip ?? took;
      const next = mean + SMOOTHING * (took - mean);
      // What came in time does not make the link slow; of several late ones in a row, the mean comes too late.
      if (isLate) this.lateReply(batch, Math.max(next, this.lateWrites > 0 ? took : 0), timeout);
      else this.setRoundTrip(Math.min(next, timeout));
    }
    this.health.answered(took, isLate);
    if (isLate) return;
    this.lateWrites = 0;
    if (connection) connection.receivedInTime = now;
    this.roundTrip = Math.max(took, 0.9 * this.roundTrip);
    this.breaker.succeeded();
  }

  /** @internal Record an error reply or a lost connection; the error for the caller. */
  failed(cause: unknown, exchange: Exchange): Error {
    const { command, connection, isLate, state, batch } = exchange;
    const error = this.named(classify(cause), state);
    if (error instanceof RefusedError) this.answered(exchange);
    else if (!isLate) {
      this.key = keyOf(command);
      connection?.dialect.forget(); // the next connection may lead to another server
      if (error.reason === "READONLY" && this.transport.open) connection?.giveUp();
      this.count(batch, error);
    }
    return error;
  }

  /** @internal A reply has not come within its timeout; the error for the caller. */
  overdue(exchange: Exchange): UnavailableError {
    const { command, sent, timeout, state, connection, batch } = exchange;
    this.key = keyOf(command);
    const now = performance.now();
    const error = late(timeout);
    if (state === "queued") return error;
    if (state === "connecting") {
      const refusal = this.refusal();
      if (refusal) this.count(batch, refusal);
      else if (this.connectingSince !== null && now - this.connectingSince >= CONNECTING) this.breaker.open(error);
      else this.health.decidedWithout(error);
      return refusal ?? error;
    }
    const isSlow = this.meanRoundTrip !== null && this.meanRoundTrip > timeout;
    if (isSlow || (connection && now - connection.receivedInTime < timeout)) return error;
    this.count(batch, error, sent);
    const check = () => {
      if (exchange.isOver || (connection && connection.received >= sent)) return;
      const silence = new UnavailableError(`nothing received for ${SILENT_TIMEOUTS * timeout} ms`, "no_answer");
      this.breaker.open(silence, sent);
    };
    setTimeout(() => afterLoopTurns(check), (SILENT_TIMEOUTS - 1) * timeout).unref();
    return error;
  }

  /** @internal Send what waits, as far as there is a connection and room on it. */
  sendQueued(): void {
    while (this.queue.length > 0) {
      const connection = this.queue[0]?.isOver ? null : this.usable();
      if (this.queue[0]?.isOver) this.queue.shift();
      else if (!connection || connection.isFull) return;
      else this.queue.shift()?.send(connection, this.state(connection));
    }
  }

  /** @internal Whether replies come in on the connection that requests wait for. */
  isReceiving(timeout: number): boolean {
    return performance.now() - this.newest.receivedInTime < timeout;
  }

  /** @internal The server refuses TIME. */
  lacksClock(error: unknown): void {
    this.health.refused(serverCommand("", "TIME"), error);
  }

  private get newest(): ServerConnection {
    return this.replacement ?? this.client;
  }

  private speaking(send: Send): Dialect {
    return new Dialect(send, this.transport.takesBytes, this.scripts);
  }

  /** The error that the caller gets: one that says what to do, until this client was served once. */
  private named(error: RefusedError | UnavailableError, state: State): RefusedError | UnavailableError {
    if (error instanceof ModuleMissingError && !(error instanceof NeedsModuleError) && this.hasServed) {
      // A module that has served before is expected back.
      return new UnavailableError(error.message, "module_missing", { cause: error });
    }
    if (!(error instanceof UnavailableError)) return error;
    if (error.reason === "cluster" && !this.transport.knows && !this.hasServed) return new ClusterClientError(error);
    return state === "connecting" ? (this.refusal() ?? error) : error;
  }

  /** Why the caller's client could not connect the last time; null where that is unknown. */
  private refusal(): UnavailableError | null {
    const cause = this.transport.connectError?.(this.node);
    const reason = reasonOfError(cause);
    return reason ? new UnavailableError(`cannot connect to ${this.health.address}`, reason, { cause }) : null;
  }

  /** One write is one failure at most, however many requests it carried. */
  private count(batch: Batch | null, error: UnavailableError, sent?: number): void {
    if (batch && this.failedWrite === batch) return;
    this.failedWrite = batch;
    this.health.decidedWithout(error);
    this.breaker.failed(error, sent);
  }

  /** Whether the command is written at once, or waits for the connection or for the caller's other commands. */
  private state(connection: ServerConnection): State {
    if (connection !== this.client) return "ready";
    const state = this.transport.state?.(this.node) ?? "ready";
    if (state !== "connecting") this.connectingSince = null;
    else this.connectingSince ??= performance.now();
    return state;
  }

  /** The connection that takes new commands; null while one is being opened. */
  private usable(): ServerConnection | null {
    const { replacement, client } = this;
    if (replacement?.isUsable) return replacement;
    if (replacement) this.dropReplacement();
    const isConnecting = this.transport.state?.(this.node) === "connecting";
    if (!this.transport.open || (client.isUsable && !(isConnecting && this.refusal()))) return client;
    this.opening ??= this.open().finally(() => {
      this.opening = null;
      this.sendQueued();
    });
    return null;
  }

  private wait(exchange: Exchange): void {
    this.queue.push(exchange);
    exchange.waitForTurn();
  }

  /** Open a connection in place of the one that was given up. */
  private async open(): Promise<void> {
    const { transport, node } = this;
    try {
      this.replace(await (transport.open as NonNullable<Transport["open"]>)(node));
    } catch (cause) {
      const error = classify(cause);
      const reason = error instanceof UnavailableError ? error.reason : "other";
      const failure = new NotAskedError(`cannot connect to ${this.health.address}`, reason, { cause });
      this.health.decidedWithout(failure);
      this.breaker.failed(failure);
      for (const exchange of this.queue.splice(0)) exchange.refuse(failure);
    }
  }

  private replace(fresh: Awaited<ReturnType<NonNullable<Transport["open"]>>>): void {
    if (this.isClosed) {
      fresh.close(); // it was being opened
      return;
    }
    this.dropReplacement();
    fresh.hold(false);
    const send: Send = (words) => fresh.send(words);
    const identity = () => (fresh.isOpen ? fresh : undefined);
    this.replacement = new ServerConnection(this.speaking(send), send, identity, fresh);
    for (const connection of this.opened) if (connection.identity() === undefined) this.opened.delete(connection);
    this.opened.add(this.replacement);
  }

  private dropReplacement(): void {
    this.replacement?.giveUp();
    this.replacement = null;
  }

  private lateReply(batch: Batch | null, mean: number, timeout: number): void {
    this.setRoundTrip(mean);
    if (batch !== this.lateWrite) this.lateWrites++;
    this.lateWrite = batch;
    if (mean > timeout) this.health.setSlow(mean, timeout);
    this.slowTimeout = timeout;
  }

  private setRoundTrip(mean: number): void {
    this.meanRoundTrip = mean;
    if (mean <= this.slowTimeout) this.health.setFast();
  }

  /** Learn whether replies come in time again, beside requests that are decided without the server. */
  private askWhetherSlow(): void {
    const now = performance.now();
    if (this.isAskingSlow || now - this.slowAsked < SLOW_PROBE) return;
    this.isAskingSlow = true;
    this.slowAsked = now;
    const connection = this.usable() ?? this.client;
    const send: Send = (words, key) => connection.dialect.ask(serverCommand(key, ...(words as string[])), this.use);
    const asked = within(this.askProbe(send), Math.max(PROBE_TIMEOUT, this.longestTimeout));
    const over = () => {
      this.isAskingSlow = false;
      this.setRoundTrip(performance.now() - now);
    };
    asked.then(over, (error) => {
      if (classify(error) instanceof RefusedError) over();
      else this.isAskingSlow = false;
    });
  }

  /** Send a write that changes nothing; one of the server's own where the module is missing. */
  private askProbe(send: Send): Promise<unknown> {
    const { key, use } = this;
    const plain = () => send(["SETRANGE", key, "0", ""], key);
    if (use === "never") return plain();
    return send(wordsOf({ name: "ALLOW", key, demand: PROBE, block: 0 }), key).catch((error) => {
      if (use === "always" || !isUnknown(error)) throw error;
      return plain();
    });
  }

  /** Ask over a new connection. */
  private async probe(): Promise<"back" | "unwanted"> {
    const { transport, node } = this;
    if (!this.isKnown) return "unwanted";
    const ends = performance.now() + PROBE_TIMEOUT;
    const left = () => ends - performance.now();
    const answers = async (send: Send, ms: number) => {
      try {
        await within(this.askProbe(send), ms);
      } catch (cause) {
        const error = classify(cause);
        // Where a key has moved, the server of a cluster's client is there.
        const hasMoved = error instanceof UnavailableError && error.reason === "cluster" && transport.knows;
        if (hasMoved) return;
        if (error instanceof UnavailableError || error instanceof ModuleMissingError) throw error;
      }
    };
    const own: Send = (words, key) => transport.send(words, key);
    if (!transport.open) {
      await answers(own, left());
      return "back";
    }
    const opening = transport.open(node);
    try {
      const fresh = await within(opening, left());
      await answers((words) => fresh.send(words), left());
      // The caller's client may be connected to a dead server. If it does not answer, the new connection replaces it.
      const isOwnBack =
        this.client.isUsable &&
        (await answers(own, left() / 2).then(
          () => true,
          () => false,
        ));
      if (!isOwnBack) this.replace(fresh);
      else {
        this.dropReplacement();
        fresh.close();
      }
      return "back";
    } catch (error) {
      opening.then(
        (connection) => connection.close(),
        () => {},
      );
      throw error;
    }
  }
}

/** A promise that is rejected: nothing was sent. */
function refused(error: UnavailableError): Promise<never> {
  return Promise.reject(error);
}

function late(timeout: number): UnavailableError {
  return new UnavailableError(`no reply within ${timeout} ms`, "no_answer");
}

type State = "ready" | "connecting" | "queued";

/** A command and its reply, however long that takes. Its caller may leave meanwhile. */
class Exchange implements PendingReply {
  isOver = false;
  /** Whether its timeout has passed since it was written. */
  isLate = false;
  sent = 0;
  /** How its connection was when it was sent. */
  state: State = "ready";
  /** Whether it was sent behind few others: then the round trip is the link's. */
  isAlone = false;
  /** Null until it is sent. */
  connection: ServerConnection | null = null;
  /** The commands that were written, or began to wait, with it. */
  batch: Batch | null = null;
  private reply: Promise<unknown> | null = null;
  private hasLeft = false;
  private readonly stopLeaving: (() => void) | null;

  constructor(
    private readonly server: Server,
    readonly command: AnyCommand,
    private readonly options: RequestOptions,
    private readonly resolve: (reply: unknown) => void,
    private readonly reject: (why: unknown) => void,
  ) {
    const { signal, deadline, timeout } = options;
    this.stopLeaving = signal || (deadline !== undefined && deadline < timeout) ? this.leaveInTime() : null;
  }

  get timeout(): number {
    return this.options.timeout;
  }

  /** Wait for a connection, or for a turn on one. */
  waitForTurn(): void {
    this.batch = this.server.timeouts.add(this, this.timeout);
  }

  send(connection: ServerConnection, state: State): void {
    const { command, server } = this;
    const { module = "auto", isDated } = this.options;
    this.batch?.over(); // it no longer waits
    this.connection = connection;
    this.state = state;
    this.isAlone = state === "ready" && connection.isQuiet;
    if (isDated) connection.readClock(keyOf(command), (error) => server.lacksClock(error));
    this.sent = performance.now();
    connection.sent(this.sent);
    this.batch = server.timeouts.add(this, this.timeout);
    this.reply = connection.dialect.ask(command, module);
    this.reply.then(
      (reply) => {
        try {
          checkReply(command, reply);
        } catch (error) {
          return this.fail(connection, error);
        }
        this.end(connection);
        server.served(this);
        this.resolve(reply);
        server.sendQueued();
      },
      (error) => this.fail(connection, error),
    );
  }

  overdue(): void {
    const { server, timeout } = this;
    if (this.connection) {
      this.isLate = true;
      this.leave(server.overdue(this));
    } else if (server.isReceiving(timeout)) {
      this.waitForTurn(); // others' replies are coming in, and its turn will
    } else {
      this.refuse(new NotAskedError(`no connection within ${timeout} ms`, "no_answer"));
    }
  }

  /** It waits no longer, and is never sent. */
  refuse(why: unknown): void {
    this.isOver = true;
    this.batch?.over();
    this.stopLeaving?.();
    if (this.hasLeft) return;
    this.hasLeft = true;
    this.reject(why);
  }

  private fail(connection: ServerConnection, error: unknown): void {
    this.end(connection);
    this.reject(this.server.failed(error, this));
    this.server.sendQueued();
  }

  private end(connection: ServerConnection): void {
    this.isOver = true;
    this.batch?.over();
    this.stopLeaving?.();
    connection.over();
  }

  /** The caller leaves when its signal aborts, or at its deadline. Call what this returns to cancel that. */
  private leaveInTime(): () => void {
    const { signal, deadline, timeout } = this.options;
    const abort = () => this.leave(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) queueMicrotask(abort); // while the command was written
    const end = () => setImmediate(() => this.leave(new DeadlineError()));
    const timer = deadline !== undefined && deadline < timeout ? setTimeout(end, deadline) : undefined;
    return () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
  }

  private leave(why: unknown): void {
    const { connection, sent, options } = this;
    if (!connection) this.refuse(why);
    if (!connection || this.isOver || this.hasLeft) return;
    this.hasLeft = true;
    const late = async (): Promise<LateReply> => {
      await null; // it may be just being sent
      const reply = await this.reply;
      await connection.known();
      return { reply, since: connection.instantBefore(sent), connection: connection.identity() };
    };
    options.late?.(late());
    this.reject(why);
  }
}
