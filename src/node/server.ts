/** One server (or cluster), as all limiters share it that were given the same client. */

import { Backlog } from "./backlog.js";
import type { ServerState } from "./health.js";
import { Lanes } from "./lanes.js";
import { type AskOptions, type Owner, Primary } from "./primary.js";
import { Renewals } from "./renewals.js";
import { type Client, type Transport, transportOf } from "./transport.js";

const servers = new WeakMap<object, Server>();

/** Who remembers something of keys. */
export interface Memory {
  readonly size: number;
  forget(name: string): void;
  forgetAll(): void;
}

export class Server implements Owner {
  /** Connections to wait on; null where the client opens none. */
  readonly lanes: Lanes | null;
  readonly backlog: Backlog;
  /** The holds of this process. */
  readonly renewals: Renewals;
  readonly memories = new Set<Memory>();
  private readonly users = new Set<object>();
  private readonly primaries = new Map<object, Primary>();

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
    this.lanes = transport.open ? new Lanes(transport) : null;
    this.backlog = new Backlog(this);
    this.renewals = new Renewals(this);
  }

  /** Whether commands of one turn of the event loop arrive at one server, and in order. */
  get isOrdered(): boolean {
    return this.transport.isOrdered;
  }

  /** The reply to a command: a RefusedError, or an UnavailableError when it does not come in time. */
  ask(args: string[], key: string, options: AskOptions): Promise<unknown> {
    return this.primary(key).ask(args, key, options);
  }

  /** The primary that has a key. */
  primary(key: string): Primary {
    const node = this.transport.node(key);
    let primary = this.primaries.get(node);
    if (!primary) {
      this.primaries.forEach((departed, other) => {
        if (departed.isKnown) return;
        this.primaries.delete(other);
        departed.close();
      });
      primary = new Primary(this.transport, node, this);
      this.primaries.set(node, primary);
    }
    return primary;
  }

  /** How those are that have been asked so far. */
  get states(): ServerState[] {
    return [...this.primaries.values()].filter(({ isKnown }) => isKnown).map(({ health }) => health.state);
  }

  /** One of them answers again. */
  recovered(): void {
    void this.backlog.send();
  }

  /** Somebody uses it, and may want to be told of changes. */
  join(user: object, memory?: Memory): void {
    this.users.add(user);
    if (memory) this.memories.add(memory);
  }

  /** Without anybody who uses it, the connections beside the caller's are closed. */
  leave(user: object, memory?: Memory): void {
    this.users.delete(user);
    if (memory) this.memories.delete(memory);
    if (this.users.size > 0) return;
    this.lanes?.close();
    for (const primary of this.primaries.values()) primary.close();
    this.primaries.clear();
  }

  /** Something was given back: what was known of a key is known no longer, by any limiter. */
  forget(name: string): void {
    for (const memory of this.memories) memory.forget(name);
  }
}
