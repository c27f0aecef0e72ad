/**
 * Connections for clients that wait: ACQUIRE stalls the connection it goes over, so it never goes over one that others
 * use. A bounded number of them, each for one waiting key at a time.
 */

import { ModuleMissingError, RefusedError, UnavailableError, understood } from "../core/errors.js";
import { within } from "../util/timeout.js";
import type { Connection, Transport } from "./transport.js";

/** Whoever waits without a place in the server's queue asks it again after so many ms at most. */
export const POLL = 100;

/** What is to be done about a wait whose caller has given up. */
export type Leave = (asking: Promise<unknown>) => Promise<unknown>;

/** How to wait. */
interface Waiting {
  /** How much longer than its time a reply may take, in ms. */
  readonly grace: number;
  /** So many wait at most. */
  readonly most: number;
  readonly signal: AbortSignal | undefined;
  /** Called before the command is sent. */
  leave(connection: Connection): Leave;
}

interface Lane {
  readonly node: object;
  readonly connection: Connection;
}

/** This id's wait goes on for somebody else. */
const ELSEWHERE = /^UNBLOCKED (another client now waits for this id|this id waits elsewhere)/;

/** Replies after which one asks anew: the wait was ended by what a request survives, or the server's queue is full. */
const ANEW = /^UNBLOCKED |too many clients are waiting/;

export class Lanes {
  private readonly idle: Lane[] = [];
  private readonly taken = new Set<AbortController>();
  constructor(private readonly transport: Transport) {}

  /**
   * The reply to a command that may wait until `left()` is 0, over one of at most `most` connections. Null when none is
   * free, or the wait has ended without a decision: ask anew then, a little later.
   */
  async ask(key: string, left: () => number, args: (ms: number) => string[], how: Waiting): Promise<unknown> {
    const { grace, most } = how;
    if (this.taken.size >= most) return null;
    const closing = new AbortController();
    this.taken.add(closing);
    const signal = how.signal ? AbortSignal.any([how.signal, closing.signal]) : closing.signal;
    const opening = this.lane(key, most);
    let leave: () => Promise<unknown> = async () => {};
    try {
      const lane = await within(opening, left() + grace, signal);
      const { connection } = lane;
      const ms = Math.floor(left());
      const leaving = how.leave(connection);
      const asking = connection.send(args(ms));
      leave = () => leaving(asking);
      const reply = await within(asking, ms + grace, signal);
      connection.hold(false);
      this.idle.push(lane);
      return reply;
    } catch (cause) {
      // Also one that opens later. A server gives back what it would grant to somebody who has gone.
      const left = signal.aborted ? leave() : Promise.resolve();
      const closed = left.catch(() => {}).then(() => opening.then(close, () => {}));
      if (how.signal?.aborted) throw how.signal.reason;
      if (closing.signal.aborted) await closed;
      return this.ended(understood(cause));
    } finally {
      this.taken.delete(closing);
    }
  }

  /** Whether anybody waits. */
  get isUsed(): boolean {
    return this.taken.size > 0;
  }

  /** End all waits, and close the connections. */
  close(): void {
    for (const closing of this.taken) closing.abort();
    for (const lane of this.idle.splice(0)) close(lane);
  }

  /** Null where a wait is to begin anew; an error where it is not. */
  private ended(error: Error): null {
    const isOver = error instanceof RefusedError && (ELSEWHERE.test(error.message) || !ANEW.test(error.message));
    if (isOver || error instanceof ModuleMissingError) throw error;
    return null;
  }

  /** A connection to the node of a key: an idle one, or a new one. */
  private async lane(key: string, most: number): Promise<Lane> {
    const { node, open } = this.transport;
    if (!node || !open) throw new UnavailableError("this client opens no connections");
    const at = node(key);
    for (const dead of this.idle.filter(({ connection }) => !connection.isOpen)) this.remove(dead);
    const idle = this.idle.find((lane) => lane.node === at);
    if (idle) {
      this.idle.splice(this.idle.indexOf(idle), 1);
      idle.connection.hold(true);
      return idle;
    }
    const [oldest] = this.idle;
    if (oldest && this.idle.length + this.taken.size > most) this.remove(oldest);
    return { node: at, connection: await open(at) };
  }

  private remove(lane: Lane): void {
    this.idle.splice(this.idle.indexOf(lane), 1);
    close(lane);
  }
}

function close({ connection }: Lane): void {
  if (connection.isOpen) connection.close();
}
