/**
 * One server that grants: a single one, or a primary of a cluster. What is known of it is owned here and by no request:
 * what was sent is heard of, however long ago its caller gave up.
 */

import {
  ModuleMissingError,
  NeedsModuleError,
  NotAskedError,
  RefusedError,
  UnavailableError,
  understood,
} from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import { Dialect } from "../protocol/script-fallback.js";
import { within } from "../util/timeout.js";
import { type Awaited, Patience } from "./batch-timeout.js";
import { Breaker } from "./circuit-breaker.js";
import { type Memory, Tracked } from "./invalidation.js";
import { Health } from "./server-health.js";
import type { Connection, Listener, Transport } from "./transport.js";

/** A probe is given up after so many ms. */
const PROBE_TIMEOUT = 500;

/** A connection may take so many ms to come up before that says something of the server. */
const CONNECTING = 1000;

/** The server is away when something is unanswered and nothing was heard for so many timeouts. */
const SILENT_TIMEOUTS = 3;

const REDIRECTION = /^(MOVED|ASK|TRYAGAIN) /;

export interface AskOptions {
  /** The longest to wait from when the command is written, in ms. */
  readonly timeout: number;
  /** The longest that its caller waits, in ms. That it does not wait longer says nothing about the server. */
  readonly patience?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Whether the module is asked, or the script; "auto" as a rule. */
  readonly module?: ModuleUse | undefined;
  /** Ask also while the server is known not to answer. */
  readonly always?: boolean | undefined;
  /** Ask on this connection only, as `Primary.connection` said: another one may lead to another server. */
  readonly over?: unknown;
  /** Told of what still comes when the caller has been sent away. */
  readonly late?: ((reply: Promise<unknown>) => void) | undefined;
}

/** Asks for the reply to a command about a key. */
export type Ask = (args: string[], key: string, options: AskOptions) => Promise<unknown>;

/** Who hears what becomes of a primary. */
export interface Owner {
  /** What is told when a key changes. */
  readonly memories: ReadonlySet<Memory>;
  /** It answers again. */
  recovered(): void;
}

/** A connection in place of the caller's client. */
interface Line {
  readonly connection: Connection;
  readonly dialect: Dialect;
}

export class Primary {
  readonly breaker: Breaker;
  readonly health: Health;
  /** The connection on which it tells of changes; null where the client opens none that does. */
  readonly tracked: Tracked | null;
  /** The longest that a reply took lately, in ms. */
  roundTrip = 0;
  private readonly patience = new Patience();
  /** What is asked in place of the caller's client, since that stopped answering. */
  private line: Line | null = null;
  /** How the caller's client is asked. */
  private readonly dialect: Dialect;
  private heard = 0;
  private connectingSince: number | null = null;
  private hasServed = false;
  /** The last key that failed, and how it was asked for. */
  private key = "";
  private use: ModuleUse = "auto";

  constructor(
    private readonly transport: Transport,
    private readonly node: object,
    owner: Owner,
  ) {
    const { open, tracks, takesBytes } = transport;
    this.dialect = new Dialect((words, key) => transport.send(words, key), takesBytes);
    this.health = new Health(
      transport.address(node),
      () => (this.line?.dialect ?? this.dialect).backend,
      transport.failovers,
    );
    this.breaker = new Breaker(
      this.health,
      () => this.probe(),
      () => owner.recovered(),
    );
    const connect = open && tracks ? (listener: Listener) => open(node, listener) : null;
    this.tracked = connect && new Tracked(connect, owner.memories, this.health, takesBytes, () => this.isKnown);
  }

  /** Whether it is still one of the cluster's. */
  get isKnown(): boolean {
    return this.transport.knows?.(this.node) !== false;
  }

  /** The connection on which commands go out now; undefined where that cannot be told, or there is none. */
  get connection(): unknown {
    return this.line?.connection ?? this.transport.connection?.(this.node);
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(
    args: string[],
    key: string,
    { timeout, patience, signal, module = "auto", always, over, late }: AskOptions,
  ): Promise<unknown> {
    this.use = module;
    if (over !== undefined && over !== this.connection) {
      return Promise.reject(new NotAskedError("another server may be asked now"));
    }
    if (this.breaker.isOpen && !always) {
      this.key = key;
      this.breaker.look();
      return Promise.reject(new NotAskedError(`the server does not answer: ${this.breaker.reason}`));
    }
    if (patience !== undefined && patience <= 0) {
      return Promise.reject(new NotAskedError("no time is left to ask the server"));
    }
    const sent = performance.now();
    const state = this.line ? "ready" : this.state(sent);
    const reply = this.send(args, key, module);
    return new Promise((resolve, reject) => {
      const exchange = new Exchange(this, { key, sent, timeout, state }, reply, late, reject);
      const batch = this.patience.wait(exchange, timeout);
      const leaving = signal || (patience !== undefined && patience < timeout) ? exchange.left(signal, patience) : null;
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
          reject(this.refused(understood(cause), key, sent, exchange.isLate));
        },
      );
    });
  }

  close(): void {
    this.breaker.stop();
    this.tracked?.close();
    this.leaveLine();
  }

  /** What is known of the way there: ready, busy connecting, or busy with the caller's other commands. */
  private state(now: number): "ready" | "connecting" | "queued" {
    const state = this.transport.state?.(this.node) ?? "ready";
    if (state !== "connecting") this.connectingSince = null;
    else this.connectingSince ??= now;
    return state;
  }

  private send(args: string[], key: string, module: ModuleUse): Promise<unknown> {
    if (this.line && !this.line.connection.isOpen) this.leaveLine();
    return this.line ? this.sendOver(this.line, args, key, module) : this.dialect.ask(args, key, module);
  }

  private async sendOver({ dialect }: Line, args: string[], key: string, module: ModuleUse): Promise<unknown> {
    try {
      return await dialect.ask(args, key, module);
    } catch (error) {
      if (!(error instanceof Error && REDIRECTION.test(error.message))) throw error;
      this.leaveLine();
      return this.dialect.ask(args, key, module); // which follows
    }
  }

  private leaveLine(): void {
    if (this.line?.connection.isOpen) this.line.connection.close();
    this.line = null;
  }

  private answered(sent: number, isLate: boolean): void {
    this.heard = performance.now();
    this.health.answered(isLate, this.heard - sent);
    if (isLate) return;
    this.roundTrip = Math.max(this.heard - sent, 0.9 * this.roundTrip);
    this.breaker.succeeded();
  }

  /** What an error reply is to the caller. */
  private refused(error: Error, key: string, sent: number, isLate: boolean): Error {
    if (error instanceof ModuleMissingError && !(error instanceof NeedsModuleError) && this.hasServed) {
      return this.refused(away(error), key, sent, isLate);
    }
    if (error instanceof RefusedError) this.answered(sent, isLate);
    else if (!isLate) {
      this.key = key;
      this.dialect.forget(); // the next connection may be to another server
      if (/^READONLY/.test(error.message)) this.breaker.open(error.message);
      else this.breaker.failed(error.message);
    }
    return error;
  }

  /** @internal A reply has not come within its timeout. */
  overdue({ key, sent, timeout, state }: Asked, exchange: Exchange): void {
    this.key = key;
    const now = performance.now();
    if (state === "queued") return;
    if (state === "connecting") {
      const { connectingSince } = this;
      if (connectingSince !== null && now - connectingSince >= CONNECTING) this.breaker.open("cannot connect");
      return;
    }
    this.breaker.failed(`no reply within ${timeout} ms`);
    const look = () => {
      if (exchange.isOver || this.heard >= sent) return;
      this.breaker.open(`nothing heard for ${SILENT_TIMEOUTS * timeout} ms`);
    };
    setTimeout(look, (SILENT_TIMEOUTS - 1) * timeout).unref();
  }

  /** Ask over a connection made anew, for a write that is otherwise denied without a trace. */
  private async probe(): Promise<"back" | "unwanted"> {
    const { transport, node, key } = this;
    if (!this.isKnown) return "unwanted";
    const ends = performance.now() + PROBE_TIMEOUT;
    const left = () => ends - performance.now();
    const { use } = this;
    const words = ["SWLIMIT.ALLOW", key, "0", "1ms", "1ms"];
    /** The script denies also where nothing can be written. */
    const ask = async (dialect: Dialect) => {
      const reply = await dialect.ask(words, key, use);
      if (dialect.backend === "script") await dialect.ask(["SETRANGE", key, "0", ""], key, use);
      return reply;
    };
    const answers = async (send: () => Promise<unknown>, ms: number) => {
      try {
        await within(send(), ms);
      } catch (cause) {
        const error = understood(cause);
        if (REDIRECTION.test(error.message)) return; // the key has moved, and the server is there
        if (error instanceof UnavailableError || error instanceof ModuleMissingError) throw error;
      }
    };
    if (!transport.open) {
      await answers(() => ask(this.dialect), left());
      return "back";
    }
    const opening = transport.open(node);
    try {
      const fresh = await within(opening, left());
      const dialect = new Dialect((words) => fresh.send(words), transport.takesBytes);
      await answers(() => ask(dialect), left());
      // The caller's client may be connected to what has gone. If it does not answer, the new connection takes its place.
      const own = answers(() => ask(this.dialect), left() / 2).then(
        () => true,
        () => false,
      );
      this.leaveLine();
      if (await own) fresh.close();
      else {
        fresh.hold(false);
        this.line = { connection: fresh, dialect };
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

/** What was asked, when, for how long, and what was known of the way there. */
interface Asked {
  readonly key: string;
  readonly sent: number;
  readonly timeout: number;
  readonly state: "ready" | "connecting" | "queued";
}

/** A command and its reply, however long that takes, and the caller who may have left meanwhile. */
class Exchange implements Awaited {
  isOver = false;
  isLate = false;
  private hasLeft = false;

  constructor(
    private readonly primary: Primary,
    private readonly asked: Asked,
    private readonly reply: Promise<unknown>,
    private readonly late: AskOptions["late"],
    private readonly reject: (why: unknown) => void,
  ) {}

  overdue(): void {
    this.isLate = true;
    this.primary.overdue(this.asked, this);
    this.leave(new UnavailableError(`no reply within ${this.asked.timeout} ms`));
  }

  /** The caller leaves when its signal says so, or after so many ms; what ends that. */
  left(signal: AbortSignal | undefined, patience: number | undefined): () => void {
    const abort = () => this.leave(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) queueMicrotask(abort); // while it was written
    const deadline = () => setImmediate(() => this.leave(new UnavailableError("the caller's deadline")));
    const timer = patience !== undefined && patience < this.asked.timeout ? setTimeout(deadline, patience) : undefined;
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

/** A module that has been there is away, and not missing. */
function away(error: Error): UnavailableError {
  return new UnavailableError(error.message, { cause: error });
}
