/** One server (or cluster), as all limiters share it that were given the same client. */

import { Breaker } from "./breaker.js";
import { RefusedError, UnavailableError, understood } from "./errors.js";
import { Lanes } from "./lanes.js";
import { within } from "./timeout.js";
import { Tracking } from "./tracking.js";
import { type Client, type Transport, transportOf } from "./transport.js";

const servers = new WeakMap<object, Server>();

export class Server {
  readonly tracking: Tracking | null;
  /** Connections to wait on; null where the client opens none. */
  readonly lanes: Lanes | null;
  /** Whether its module is one without ACQUIRE. */
  lacksAcquire = false;
  private readonly breaker = new Breaker();

  /** The server behind a client. */
  static of(client: Client): Server {
    let server = servers.get(client);
    if (!server) {
      server = new Server(transportOf(client));
      servers.set(client, server);
    }
    return server;
  }

  private constructor(private readonly transport: Transport) {
    this.tracking = transport.tracks ? new Tracking(transport) : null;
    this.lanes = transport.open ? new Lanes(transport) : null;
  }

  /** The reply to a command; a RefusedError, or an UnavailableError after `timeout` ms at most. */
  async ask(args: string[], key: string, timeout: number): Promise<unknown> {
    if (this.breaker.isOpen) {
      this.breaker.look(() => this.look(key));
      throw new UnavailableError("the server has kept failing, and is not waited for");
    }
    try {
      const reply = await within(this.transport.send(args, key), timeout);
      this.breaker.succeeded();
      return reply;
    } catch (cause) {
      const error = understood(cause);
      if (error instanceof RefusedError) this.breaker.succeeded();
      else this.breaker.failed();
      throw error;
    }
  }

  /** Whether the node of a key answers. One that refuses is alive. */
  private async look(key: string): Promise<void> {
    try {
      await this.transport.send(["SWLIMIT.PEEK", key, "1", "1s", "1s"], key);
    } catch (cause) {
      const error = understood(cause);
      if (error instanceof UnavailableError) throw error;
    }
  }
}
