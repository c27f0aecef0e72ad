/** Clients of the package `redis`, release 5 or later. */

import calculateSlot from "cluster-key-slot";
import { isPacked, type Word } from "../protocol/script-fallback.js";
import { announceFailover } from "../transport/server-health.js";
import type { Connection, InvalidationListener, Transport } from "../transport/transport.js";
import { connectErrorOf } from "./connect-error.js";
import { ASK_INTERVAL } from "./sentinels.js";

/** The used part of a client. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  sendCommand(args: Word[], options?: SendOptions): Promise<unknown>;
  duplicate(overrides?: object): unknown;
}

/** The used part of a pool. */
export interface NodeRedisPool {
  sendCommand(args: Word[], options?: SendOptions): Promise<unknown>;
}

/** The used part of a cluster. */
export interface NodeRedisCluster {
  sendCommand(firstKey: string, isReadonly: boolean, args: Word[], options?: SendOptions): Promise<unknown>;
  nodeClient(node: never): unknown;
}

/** The used part of a sentinel client. */
export interface NodeRedisSentinel {
  sendCommand(isReadonly: boolean, args: Word[], options?: SendOptions): Promise<unknown>;
  getMasterNode(): unknown;
}

/** The used options of a command. */
interface SendOptions {
  /** The JavaScript type for each type of reply. */
  readonly typeMapping?: { readonly [type: number]: typeof Buffer };
  /** How long a command may wait to be written, in ms; 0: without limit. */
  readonly timeout?: number;
}

/** Strings, whose type byte is `$`, as bytes. */
const AS_BYTES: SendOptions = { typeMapping: { 36: Buffer } };

/** A connected client writes at once. Its own timeout for that would cost a timer for each command. */
const AT_ONCE: SendOptions = { timeout: 0 };

const AT_ONCE_AS_BYTES: SendOptions = { ...AT_ONCE, ...AS_BYTES };

function optionsOf(words: Word[], isReady = false): SendOptions | undefined {
  if (isPacked(words)) return isReady ? AT_ONCE_AS_BYTES : AS_BYTES;
  return isReady ? AT_ONCE : undefined;
}

type Any = NodeRedisClient | NodeRedisPool | NodeRedisCluster | NodeRedisSentinel;

export function transport(client: Any): Transport {
  if (!("destroy" in client)) {
    throw new TypeError("client is from an old release of the package redis: swlimit needs release 5 or later");
  }
  if ("getMasterNode" in client) return sentinel(client as Sentinel);
  if ("nodeClient" in client) return cluster(client);
  if ("duplicate" in client && "isReady" in client) return single(client as Duplicate);
  return pool(client as NodeRedisPool & Pool);
}

/** The used part of a client from `duplicate`. */
interface Duplicate extends NodeRedisClient {
  readonly options?: { readonly socket?: object };
  readonly isOpen: boolean;
  /** Changes with each connection of the client. */
  readonly socketEpoch: number;
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): void;
  ref(): void;
  unref(): void;
}

function single(client: Duplicate): Transport {
  const connectError = connectErrorOf(client);
  return {
    send: (args) => client.sendCommand(args, optionsOf(args, client.isReady)),
    node: () => client,
    address,
    open: openTo,
    state: () => (client.isReady ? "ready" : "connecting"),
    connectError: () => (client.isReady ? undefined : connectError()),
    connection: () => (client.isReady ? client.socketEpoch : undefined),
    isOpen: () => client.isOpen,
    ended: (listener) => client.on("end", listener),
    takesBytes: true,
    isOrdered: true,
    tracks: true,
  };
}

/** The used part of a sentinel client, and of its duplicates. */
interface Sentinel extends NodeRedisSentinel {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  duplicate(overrides: object): Sentinel;
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): unknown;
}

/** A sentinel client's event about a change. */
interface TopologyChange {
  readonly type: string;
  readonly node: { readonly host: string; readonly port: number };
}

/**
 * Uses a duplicate of the caller's client that resends no unanswered commands: they may have been executed. It ends
 * with the caller's client; release 5 has no event for that.
 */
function sentinel(client: Sentinel): Transport {
  let made: { readonly duplicate: Sentinel; readonly ready: Promise<unknown>; readonly watch: NodeJS.Timeout } | null =
    null;
  let failovers = 0;
  const close = () => {
    const ended = made;
    made = null;
    clearInterval(ended?.watch);
    ended?.ready.then(() => ended.duplicate.destroy()).catch(() => {});
  };
  const open = () => {
    const duplicate = client.duplicate({ maxCommandRediscovers: 0, scanInterval: ASK_INTERVAL });
    duplicate.on("error", () => {}); // callers that wait for a reply get it
    let before = "";
    duplicate.on("topology-change", ({ type, node }: TopologyChange) => {
      if (type !== "MASTER_CHANGE") return;
      const to = `${node.host}:${node.port}`;
      if (before !== "" && before !== to) {
        failovers++;
        announceFailover({ name: "the sentinels", from: before, to });
      }
      before = to;
    });
    const ready = duplicate.connect();
    ready.catch(() => {
      if (made?.duplicate === duplicate) close();
    });
    return { duplicate, ready, watch: setInterval(() => client.isOpen || close(), ASK_INTERVAL).unref() };
  };
  return {
    ...whole(client, "the sentinels' primary"),
    send: async (args) => {
      if (!client.isOpen) return client.sendCommand(false, args, optionsOf(args)); // it throws the error
      made ??= open();
      await made.ready;
      return made.duplicate.sendCommand(false, args, optionsOf(args));
    },
    state: () => (made?.duplicate.isReady ? "ready" : "connecting"),
    isOpen: () => client.isOpen,
    failovers: () => failovers,
    close,
  };
}

interface Pool {
  readonly tasksQueueLength?: number;
}

function pool(client: NodeRedisPool & Pool): Transport {
  return {
    ...whole(client, "the pool's server"),
    send: (args) => client.sendCommand(args, optionsOf(args)),
    state: () => ((client.tasksQueueLength ?? 0) > 0 ? "queued" : "ready"),
  };
}

/** A client that hides its connections. */
function whole(client: object, name: string) {
  return { node: () => client, address: () => name, takesBytes: true, isOrdered: false, tracks: false };
}

/** The address of a client, or of a node of a cluster. */
interface Located {
  readonly address?: string;
  readonly options?: { readonly socket?: { readonly host?: string; readonly port?: number; readonly path?: string } };
}

function address(node: object): string {
  const { address, options } = node as Located;
  const { host = "localhost", port = 6379, path } = options?.socket ?? {};
  return address ?? path ?? `${host}:${port}`;
}

/** The used part of a cluster beyond sending commands. */
interface Topology {
  readonly isOpen: boolean;
  readonly slots: { readonly master?: { readonly client?: { readonly isReady?: boolean } } }[];
  readonly masters: object[];
  nodeClient(node: object): object | Promise<object>;
}

function cluster(client: NodeRedisCluster): Transport {
  const { slots } = client as unknown as Topology;
  if (!Array.isArray(slots)) throw new TypeError("client is a cluster whose slots are unknown");
  const topology = client as unknown as Topology; // its properties change with the cluster
  const master = (key: string) => topology.slots[calculateSlot(key)]?.master;
  return {
    send: async (args, key) => {
      const node = master(key);
      if (node && args[0] === "INFO") {
        return ((await topology.nodeClient(node)) as NodeRedisClient).sendCommand(args); // release 6 asks all nodes for it
      }
      return client.sendCommand(key, false, args, optionsOf(args, node?.client?.isReady));
    },
    node: (key) => master(key) ?? client,
    address,
    isOpen: () => topology.isOpen,
    knows: (node) => topology.isOpen && topology.masters.includes(node),
    connection: (node) => {
      const { client } = node as { readonly client?: Duplicate };
      return client?.isReady ? `${client.socketEpoch}` : undefined;
    },
    open: async (node, listener) => {
      // For what is no node, it would make a client that nobody ends.
      if (node === client) throw new Error("The client is closed, or knows no server of the slot");
      return openTo(await topology.nodeClient(node), listener);
    },
    takesBytes: true,
    isOrdered: false, // a command without a key may go to any node
    tracks: true,
  };
}

async function openTo(node: object, listener?: InvalidationListener): Promise<Connection> {
  const { options } = node as Duplicate;
  const connection = (node as Duplicate).duplicate({
    socket: { ...options?.socket, reconnectStrategy: false }, // another one is opened when needed
    disableOfflineQueue: true,
    clientSideCache: undefined,
    ...(listener && { RESP: 3, emitInvalidate: true }),
  }) as Duplicate;
  const lost = () => listener?.lost();
  connection.on("error", lost);
  connection.on("end", lost);
  connection.on("terminated", lost);
  connection.on("invalidate", (key: unknown) => listener?.invalidated(key === null ? null : String(key)));
  await connection.connect();
  if (!(node as Duplicate).isOpen) {
    connection.destroy();
    throw new Error("The client is closed"); // by the caller
  }
  return {
    get isOpen() {
      return connection.isReady;
    },
    send: (args) => connection.sendCommand(args, optionsOf(args, connection.isReady)),
    hold: (process) => (process ? connection.ref() : connection.unref()),
    close: () => connection.isReady && connection.destroy(),
  };
}
