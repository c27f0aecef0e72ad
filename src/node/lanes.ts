/**
 * Connections for clients that wait: ACQUIRE stalls the connection it goes over, so it never goes over one that others
 * use. A bounded number of them, each for one waiting key at a time.
 */

import { UnavailableError } from "./errors.js";
import { inTime, within } from "./timeout.js";
import type { Connection, Transport } from "./transport.js";

const MOST = 8;

interface Lane {
  readonly node: object;
  readonly connection: Connection;
}

export class Lanes {
  private readonly idle: Lane[] = [];
  private readonly waiting: (() => void)[] = [];
  private taken = 0;

  constructor(private readonly transport: Transport) {}

  /** The reply to a command that may wait until `left()` is 0; null if until then no connection was free for it. */
  async ask(key: string, left: () => number, args: (ms: number) => string[], grace: number): Promise<unknown> {
    if (!(await this.place(left()))) return null;
    const opening = this.lane(key);
    try {
      const lane = await within(opening, left() + grace);
      const ms = Math.floor(left());
      const reply = await within(lane.connection.send(args(ms)), ms + grace);
      lane.connection.hold(false);
      this.idle.push(lane);
      return reply;
    } catch (error) {
      // Also one that opens later. A server gives back what it grants to somebody who has gone.
      opening.then(close, () => {});
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
  private async place(ms: number): Promise<boolean> {
    if (this.taken < MOST) {
      this.taken++;
      return true;
    }
    let call = () => {};
    const turn = new Promise<void>((resolve) => {
      call = resolve;
      this.waiting.push(call);
    });
    if (await inTime(turn, ms)) return true;
    const at = this.waiting.indexOf(call);
    if (at >= 0) this.waiting.splice(at, 1);
    else this.release(); // given just then
    return false;
  }

  /** Give a place to the next one. */
  private release(): void {
    const next = this.waiting.shift();
    if (next) next();
    else this.taken--;
  }

  /** A connection to the node of a key: an idle one, or a new one. */
  private async lane(key: string): Promise<Lane> {
    const { node, open } = this.transport;
    if (!node || !open) throw new UnavailableError("this client opens no connections");
    const at = await node(key);
    for (const dead of this.idle.filter(({ connection }) => !connection.isOpen)) this.remove(dead);
    const idle = this.idle.find((lane) => lane.node === at);
    if (idle) {
      this.idle.splice(this.idle.indexOf(idle), 1);
      idle.connection.hold(true);
      return idle;
    }
    const [oldest] = this.idle;
    if (oldest && this.idle.length + this.taken > MOST) this.remove(oldest);
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
