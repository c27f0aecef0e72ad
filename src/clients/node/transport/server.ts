/**
 * One server: a single one, or a primary of a cluster. It owns every exchange with it, so that late replies are handled
 * however long ago their callers gave up.
 */

import {
  classify,
  DeadlineError,
  ModuleMissingError,
  NeedsModuleError,
  NotAskedError,
  RefusedError,
  UnavailableError,
} from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import { type AnyCommand, keyOf, wordsOf } from "../protocol/commands.js";
import { Dialect, isUnknown, type Send } from "../protocol/script-fallback.js";
import { within } from "../util/timeout.js";
import { BatchTimeouts, type PendingReply } from "./batch-timeouts.js";
import { CircuitBreaker } from "./circuit-breaker.js";
import { InvalidationConnection, type KeyCache } from "./invalidation.js";
import { ServerHealth } from "./server-health.js";
import type { Connection, InvalidationListener, Transport } from "./transport.js";

/** A probe is given up after so many ms. */
export const PROBE_TIMEOUT = 500;

/** A connection may take so many ms to come up before the breaker opens. */
export const CONNECTING = 1000;

/** The breaker opens when a command is unanswered and nothing was received for so many timeouts. */
export const SILENT_TIMEOUTS = 3;

/** What a probe asks of the last key that failed: any write would do, and this one changes nothing. */
const PROBE = { limit: 0, window: 1, resolution: 1, strict: false, cost: 1, partial: false };

const REDIRECTION = /^(MOVED|ASK|TRYAGAIN) /;

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
  readonly late?: ((reply: Promise<unknown>) => void) | undefined;
}

/** Sends a command, and resolves to its reply. */
export type Ask = (command: AnyCommand, options: RequestOptions) => Promise<unknown>;

export interface ServerOwner {
  /** They get the invalidations of the server. */
  readonly caches: ReadonlySet<KeyCache>;
  /** The server answers again. */
  recovered(): void;
}

/** A connection in place of the caller's client. */
interface Replacement {
  readonly connection: Connection;
  readonly dialect: Dialect;
}

export class Server {
  readonly breaker: CircuitBreaker;
  readonly health: ServerHealth;
  /** The connection for invalidations; null where the client can open none. */
  readonly invalidations: InvalidationConnection | null;
  /** The longest recent round trip, in ms. */
  roundTrip = 0;
  private readonly timeouts = new BatchTimeouts();
  /** Used since the caller's client stopped answering. */
  private replacement: Replacement | null = null;
  /** The dialect of the caller's client. */
  private readonly dialect: Dialect;
  private received = 0;
  private connectingSince: number | null = null;
  private hasServed = false;
  /** The last key that failed, and how it was asked for. */
  private key = "";
  private use: ModuleUse = "auto";

  constructor(
    private readonly transport: Transport,
    private readonly node: object,
    owner: ServerOwner,
  ) {
    const { open, tracks, takesBytes } = transport;
    this.dialect = this.speaking((words, key) => transport.send(words, key));
    this.health = new ServerHealth(transport.address(node), () => this.backend, transport.failovers);
    this.breaker = new CircuitBreaker(
      this.health,
      () => this.probe(),
      () => owner.recovered(),
    );
    const connect = open && tracks ? (listener: InvalidationListener) => open(node, listener) : null;
    this.invalidations =
      connect && new InvalidationConnection(connect, owner.caches, this.health, takesBytes, () => this.isKnown);
  }

  /** What decides there; null until that is known. */
  get backend(): Dialect["backend"] {
    return (this.replacement?.dialect ?? this.dialect).backend;
  }

  /** Whether it still belongs to the cluster. */
  get isKnown(): boolean {
    return this.transport.knows?.(this.node) !== false;
  }

  /** The connection on which commands go out now; undefined when that is unknown, or there is none. */
  get connection(): unknown {
    return this.replacement?.connection ?? this.transport.connection?.(this.node);
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(
    command: AnyCommand,
    { timeout, deadline, signal, module = "auto", always, over, late }: RequestOptions,
  ): Promise<unknown> {
    this.use = module;
    if (over !== undefined && over !== this.connection) {
      return Promise.reject(new NotAskedError("the connection has changed, perhaps to another server"));
    }
    const key = keyOf(command);
    if (this.breaker.isOpen && !always) {
      this.key = key;
      this.breaker.schedule();
      return Promise.reject(new NotAskedError(`the server does not answer: ${this.breaker.reason}`));
    }
    if (deadline !== undefined && deadline <= 0) {
      return Promise.reject(new NotAskedError("no time is left to ask the server"));
    }
    const sent = performance.now();
    const state = this.replacement ? "ready" : this.state(sent);
    const reply = this.send(command, module);
    return new Promise((resolve, reject) => {
      const exchange = new Exchange(this, { key, sent, timeout, state }, reply, late, reject);
      const batch = this.timeouts.add(exchange, timeout);
      const leaving = signal || (deadline !== undefined && deadline < timeout) ? exchange.left(signal, deadline) : null;
      const end = () => {
        exchange.isOver = true;
        batch.over();
        leaving?.();
      };
      reply.then(
        (value) => {
          end();
          this.hasServed = true;
          this.answered(sent, exchange.isLate);
          resolve(value);
        },
        (cause) => {
          end();
          reject(this.failed(classify(cause), key, sent, exchange.isLate));
        },
      );
    });
  }

  close(): void {
    this.breaker.stop();
    this.invalidations?.close();
    this.dropReplacement();
  }

  private speaking(send: Send): Dialect {
    return new Dialect(send, this.transport.takesBytes, (key) => this.health.tookOver(key));
  }

  /** Whether the command is written at once, or waits for the connection or for the caller's other commands. */
  private state(now: number): "ready" | "connecting" | "queued" {
    const state = this.transport.state?.(this.node) ?? "ready";
    if (state !== "connecting") this.connectingSince = null;
    else this.connectingSince ??= now;
    return state;
  }

  private send(command: AnyCommand, module: ModuleUse): Promise<unknown> {
    if (this.replacement && !this.replacement.connection.isOpen) this.dropReplacement();
    return this.replacement ? this.sendOver(this.replacement, command, module) : this.dialect.ask(command, module);
  }

  private async sendOver({ dialect }: Replacement, command: AnyCommand, module: ModuleUse): Promise<unknown> {
    try {
      return await dialect.ask(command, module);
    } catch (error) {
      if (!(error instanceof Error && REDIRECTION.test(error.message))) throw error;
      this.dropReplacement();
      return this.dialect.ask(command, module); // the caller's client follows redirections
    }
  }

  private dropReplacement(): void {
    if (this.replacement?.connection.isOpen) this.replacement.connection.close();
    this.replacement = null;
  }

  private answered(sent: number, isLate: boolean): void {
    this.received = performance.now();
    this.health.answered(isLate, this.received - sent);
    if (isLate) return;
    this.roundTrip = Math.max(this.received - sent, 0.9 * this.roundTrip);
    this.breaker.succeeded();
  }

  /** Record an error reply or a lost connection; the error for the caller. */
  private failed(error: Error, key: string, sent: number, isLate: boolean): Error {
    if (error instanceof ModuleMissingError && !(error instanceof NeedsModuleError) && this.hasServed) {
      // A module that has served before is expected back.
      return this.failed(new UnavailableError(error.message, { cause: error }), key, sent, isLate);
    }
    if (error instanceof RefusedError) this.answered(sent, isLate);
    else if (!isLate) {
      this.key = key;
      this.dialect.forget(); // the next connection may lead to another server
      if (/^READONLY/.test(error.message)) this.breaker.open(error.message);
      else this.breaker.failed(error.message);
    }
    return error;
  }

  /** @internal A reply has not come within its timeout. */
  overdue({ key, sent, timeout, state }: PendingRequest, exchange: Exchange): void {
    this.key = key;
    const now = performance.now();
    if (state === "queued") return;
    if (state === "connecting") {
      const { connectingSince } = this;
      if (connectingSince !== null && now - connectingSince >= CONNECTING) this.breaker.open("cannot connect");
      return;
    }
    this.breaker.failed(`no reply within ${timeout} ms`);
    const check = () => {
      if (exchange.isOver || this.received >= sent) return;
      this.breaker.open(`nothing received for ${SILENT_TIMEOUTS * timeout} ms`);
    };
    setTimeout(check, (SILENT_TIMEOUTS - 1) * timeout).unref();
  }

  /** Ask over a new connection. */
  private async probe(): Promise<"back" | "unwanted"> {
    const { transport, node, key } = this;
    if (!this.isKnown) return "unwanted";
    const ends = performance.now() + PROBE_TIMEOUT;
    const left = () => ends - performance.now();
    const { use } = this;
    const { send: own } = transport;
    /** Send a write that changes nothing; one of the server's own where the module is missing. */
    const ask = (send: Send) => {
      const plain = () => send(["SETRANGE", key, "0", ""], key);
      if (use === "never") return plain();
      return send(wordsOf({ name: "ALLOW", key, demand: PROBE, block: 0 }), key).catch((error) => {
        if (use === "always" || !isUnknown(error)) throw error;
        return plain();
      });
    };
    const answers = async (send: () => Promise<unknown>, ms: number) => {
      try {
        await within(send(), ms);
      } catch (cause) {
        const error = classify(cause);
        if (REDIRECTION.test(error.message)) return; // the key has moved, and the server is there
        if (error instanceof UnavailableError || error instanceof ModuleMissingError) throw error;
      }
    };
    if (!transport.open) {
      await answers(() => ask(own), left());
      return "back";
    }
    const opening = transport.open(node);
    try {
      const fresh = await within(opening, left());
      const send: Send = (words) => fresh.send(words);
      await answers(() => ask(send), left());
      // The caller's client may be connected to a dead server. If it does not answer, the new connection replaces it.
      const ownAnswers = answers(() => ask(own), left() / 2).then(
        () => true,
        () => false,
      );
      this.dropReplacement();
      if (await ownAnswers) fresh.close();
      else {
        fresh.hold(false);
        this.replacement = { connection: fresh, dialect: this.speaking(send) };
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

/** A request that was sent, and the state of the connection then. */
interface PendingRequest {
  readonly key: string;
  readonly sent: number;
  readonly timeout: number;
  readonly state: "ready" | "connecting" | "queued";
}

/** A command and its reply, however long that takes. Its caller may leave meanwhile. */
class Exchange implements PendingReply {
  isOver = false;
  isLate = false;
  private hasLeft = false;

  constructor(
    private readonly server: Server,
    private readonly request: PendingRequest,
    private readonly reply: Promise<unknown>,
    private readonly late: RequestOptions["late"],
    private readonly reject: (why: unknown) => void,
  ) {}

  overdue(): void {
    this.isLate = true;
    this.server.overdue(this.request, this);
    this.leave(new UnavailableError(`no reply within ${this.request.timeout} ms`));
  }

  /** The caller leaves when its signal aborts, or after `deadline` ms. Call what this returns to cancel that. */
  left(signal: AbortSignal | undefined, deadline: number | undefined): () => void {
    const abort = () => this.leave(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) queueMicrotask(abort); // while the command was written
    const end = () => setImmediate(() => this.leave(new DeadlineError("the caller's deadline")));
    const timer = deadline !== undefined && deadline < this.request.timeout ? setTimeout(end, deadline) : undefined;
    return () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
  }

  private leave(why: unknown): void {
    if (this.isOver || this.hasLeft) return;
    this.hasLeft = true;
    this.late?.(this.reply);
    this.reject(why);
  }
}
