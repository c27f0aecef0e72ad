/**
 * Connections for requests that wait at the server. ACQUIRE and HOLD … WAIT block their connection, so they never use
 * the caller's. The number of connections is limited, and each serves one waiting request at a time.
 */

import { classify, ModuleMissingError, RefusedError, UnavailableError } from "../core/errors.js";
import { type Command, wordsOf } from "../protocol/commands.js";
import { within } from "../util/timeout.js";
import type { Connection, Transport } from "./transport.js";

/** The longest pause, in ms, of a request that waits without a connection of its own. */
export const POLL = 100;

/** Ends a wait at the server whose caller has given up. */
export type EndWait = (reply: Promise<unknown>) => Promise<unknown>;

export interface Wait {
  readonly key: string;
  /** The command, with a wait in ms. */
  command(ms: number): Command;
  /** ms until the wait ends. */
  left(): number;
  /** How much longer than its wait a reply may take, in ms. */
  readonly grace: number;
  /** The maximum number of waiting requests. */
  readonly maxWaiting: number;
  readonly signal: AbortSignal | undefined;
  /** Called before the command is sent. */
  starts(connection: Connection): EndWait;
}

interface IdleConnection {
  readonly node: object;
  readonly connection: Connection;
}

/** The wait goes on for another client with the same id. */
const REPLACED = /^UNBLOCKED (another client now waits for this id|this id waits elsewhere)/;

/** Replies after which the request is sent again. The key may be the script's now: then it is handed over first. */
const RETRIED = /^UNBLOCKED |too many clients are waiting|^WRONGTYPE /;

export class BlockingConnections {
  private readonly idle: IdleConnection[] = [];
  private readonly waiting = new Set<AbortController>();
  /** Connections on which the server still has to end a wait. */
  private readonly ending = new Set<Promise<IdleConnection>>();

  constructor(private readonly transport: Transport) {}

  /** The reply to a command that waits. Null when no connection is free, or the wait ended early: ask again soon. */
  async ask(wait: Wait): Promise<unknown> {
    const { key, left, grace, maxWaiting } = wait;
    if (this.waiting.size >= maxWaiting) return null;
    const closing = new AbortController();
    this.waiting.add(closing);
    const signal = wait.signal ? AbortSignal.any([wait.signal, closing.signal]) : closing.signal;
    const opening = this.connection(key, maxWaiting);
    let endWait: () => Promise<unknown> = async () => {};
    try {
      const idle = await within(opening, left() + grace, signal);
      const { connection } = idle;
      const ms = Math.floor(left());
      const end = wait.starts(connection);
      const sent = connection.send(wordsOf(wait.command(ms)));
      endWait = () => end(sent);
      const reply = await within(sent, ms + grace, signal);
      connection.hold(false);
      this.idle.push(idle);
      return reply;
    } catch (cause) {
      const ended = signal.aborted ? endWait() : Promise.resolve();
      // Closed even if it opens only later. The server gives back what it grants on a closed connection.
      const closed = ended.catch(() => {}).then(() => opening.then(close, () => {}));
      if (wait.signal?.aborted) throw wait.signal.reason;
      if (closing.signal.aborted) this.end(closed, opening);
      return this.ended(classify(cause));
    } finally {
      this.waiting.delete(closing);
    }
  }

  /** Whether any request waits, or the server still has to end its wait. */
  get isUsed(): boolean {
    return this.waiting.size > 0 || this.ending.size > 0;
  }

  /** Close also the connections on which a wait still has to end. */
  hangUp(): void {
    this.close();
    for (const connection of this.ending) connection.then(close, () => {});
  }

  /** End all waits, and close the idle connections. */
  close(): void {
    for (const closing of this.waiting) closing.abort();
    for (const idle of this.idle.splice(0)) close(idle);
  }

  private end(closed: Promise<void>, connection: Promise<IdleConnection>): void {
    this.ending.add(connection);
    void closed.finally(() => this.ending.delete(connection));
  }

  /** Null where the request is sent again, else an error. */
  private ended(error: Error): null {
    if (!(error instanceof RefusedError) || error instanceof ModuleMissingError) return null;
    if (REPLACED.test(error.message) || !RETRIED.test(error.message)) throw error;
    return null;
  }

  /** A connection to the node of a key: an idle one, or a new one. */
  private async connection(key: string, maxWaiting: number): Promise<IdleConnection> {
    const { node, open } = this.transport;
    if (!node || !open) throw new UnavailableError("this client opens no connections", "other");
    const at = node(key);
    for (const dead of this.idle.filter(({ connection }) => !connection.isOpen)) this.remove(dead);
    const idle = this.idle.find((one) => one.node === at);
    if (idle) {
      this.idle.splice(this.idle.indexOf(idle), 1);
      idle.connection.hold(true);
      return idle;
    }
    const [oldest] = this.idle;
    if (oldest && this.idle.length + this.waiting.size > maxWaiting) this.remove(oldest);
    return { node: at, connection: await open(at) };
  }

  private remove(idle: IdleConnection): void {
    this.idle.splice(this.idle.indexOf(idle), 1);
    close(idle);
  }
}

function close({ connection }: IdleConnection): void {
  if (connection.isOpen) connection.close();
}
