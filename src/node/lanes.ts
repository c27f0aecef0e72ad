/**
 * Connections for clients that wait: ACQUIRE stalls the connection it goes over, so it never goes over one that others
 * use. A bounded number of them, each for one waiting key at a time.
 */

import { UnavailableError } from "./errors.js";
import { inTime, within } from "./timeout.js";
import type { Connection, Transport } from "./transport.js";

/** How to wait. */
interface Waiting {
  /** How much longer than its time a reply may take, in ms. */
  readonly grace: number;
  /** So many wait at most. */
  readonly most: number;
  readonly signal: AbortSignal | undefined;
  /** Called before the command is sent: what is to be done about it when the caller has given up. */
  leave(connection: Connection): (asking: Promise<unknown>) => Promise<unknown>;
}

interface Lane {
  readonly node: object;
  readonly connection: Connection;
}

export class Lanes {
  private readonly idle: Lane[] = [];
  private readonly waiting: (() => void)[] = [];
  private taken = 0;

  constructor(private readonly transport: Transport) {}

  /**
   * The reply to a command that may wait until `left()` is 0, over one of at most `most` connections; null if until then
   * none was free for it.
   */
  async ask(key: string, left: () => number, args: (ms: number) => string[], how: Waiting): Promise<unknown> {
    const { grace, signal, most } = how;
    if (!(await this.place(left(), how))) return null;
    const opening = this.lane(key, most);
    let leave: () => Promise<unknown> = async () => {};
    try {
      const lane = await within(opening, left() + grace, signal);
      const { connection } = lane;
      const ms = Math.floor(left());
      const leaving = signal && how.leave(connection);
      const asking = connection.send(args(ms));
      if (leaving) leave = () => leaving(asking);
      const reply = await within(asking, ms + grace, signal);
      connection.hold(false);
      this.idle.push(lane);
      return reply;
    } catch (error) {
      // Also one that opens later. A server gives back what it would grant to somebody who has gone.
      (signal?.aborted ? leave() : Promise.resolve()).catch(() => {}).then(() => opening.then(close, () => {}));
      throw error;
    } finally {
      this.release();
    }
  }

  /** Close the connections that nobody waits on. */
  close(): void {
    for (const lane of this.idle.splice(0)) close(lane);
  }

  /** Take one of the places, first come, first served; whether there was one in time. */
  private async place(ms: number, { most, signal }: Waiting): Promise<boolean> {
    if (this.taken < most) {
      this.taken++;
      return true;
    }
    let call = () => {};
    const turn = new Promise<void>((resolve) => {
      call = resolve;
      this.waiting.push(call);
    });
    let isMine = false;
    try {
      isMine = await inTime(turn, ms, signal);
      return isMine;
    } finally {
      if (!isMine) this.leave(call);
    }
  }

  private leave(call: () => void): void {
    const at = this.waiting.indexOf(call);
    if (at >= 0) this.waiting.splice(at, 1);
    else this.release(); // given just then
  }

  /** Give a place to the next one. */
  private release(): void {
    const next = this.waiting.shift();
    if (next) next();
    else this.taken--;
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
    if (oldest && this.idle.length + this.taken > most) this.remove(oldest);
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
