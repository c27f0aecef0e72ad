/**
 * Connections for clients that wait: ACQUIRE stalls the connection it goes over, so it never goes over one that others
 * use. A bounded number of them, each for one waiting key at a time.
 */

import { UnavailableError } from "./errors.js";
import { within } from "./timeout.js";
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

  /** The reply to a command for which up to `ms` are waited, from the moment on that a connection is free for it. */
  async ask(key: string, ms: () => number, args: (left: number) => string[], grace: number): Promise<unknown> {
    await this.free(ms());
    let lane: Lane | undefined;
    try {
      lane = await within(this.open(key), Math.max(1, ms()) + grace);
      const left = Math.max(0, Math.floor(ms()));
      const reply = await within(lane.connection.send(args(left)), left + grace);
      lane.connection.hold(false);
      this.idle.push(lane);
      return reply;
    } catch (error) {
      lane?.connection.close(); // a server gives back what it grants to somebody who has gone
      throw error;
    } finally {
      this.taken--;
      this.waiting.shift()?.();
    }
  }

  /** Close the connections that nobody waits on. */
  close(): void {
    for (const { connection } of this.idle.splice(0)) connection.close();
  }

  /** Take one of the places, first come, first served. */
  private async free(ms: number): Promise<void> {
    if (this.taken >= MOST) {
      let called = () => {};
      const turn = new Promise<void>((resolve) => {
        called = resolve;
        this.waiting.push(resolve);
      });
      await within(turn, ms).catch(() => {
        const at = this.waiting.indexOf(called);
        if (at >= 0) this.waiting.splice(at, 1);
        else this.waiting.shift()?.(); // called just then: pass it on
        throw new UnavailableError("no connection to wait on became free in time");
      });
    }
    this.taken++;
  }

  private async open(key: string): Promise<Lane> {
    const { node, open } = this.transport;
    if (!node || !open) throw new UnavailableError("this client opens no connections");
    const at = await node(key);
    const place = this.idle.findIndex((lane) => lane.node === at);
    if (place >= 0) {
      const lane = this.idle.splice(place, 1)[0] as Lane;
      lane.connection.hold(true);
      return lane;
    }
    if (this.idle.length + this.taken > MOST) this.idle.shift()?.connection.close();
    return { node: at, connection: await open(at) };
  }
}
