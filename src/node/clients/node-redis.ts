/** Clients of the package `redis`, release 5 or later. */

import calculateSlot from "cluster-key-slot";
import { isPacked, type Word } from "../protocol/script-fallback.js";
import { saysFailover } from "../transport/server-health.js";
import type { Connection, Listener, Transport } from "../transport/transport.js";

/** What is used of a client. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  sendCommand(args: Word[], options?: SendOptions): Promise<unknown>;
  duplicate(overrides?: object): unknown;
}

/** What is used of a pool. */
export interface NodeRedisPool {
  sendCommand(args: Word[], options?: SendOptions): Promise<unknown>;
}

/** What is used of a cluster. */
export interface NodeRedisCluster {
  sendCommand(firstKey: string, isReadonly: boolean, args: Word[], options?: SendOptions): Promise<unknown>;
  nodeClient(node: never): unknown;
}

/** What is used of a sentinel client. */
export interface NodeRedisSentinel {
  sendCommand(isReadonly: boolean, args: Word[], options?: SendOptions): Promise<unknown>;
  getMasterNode(): unknown;
}

/** What is used of a command's options. */
interface SendOptions {
  /** How replies of a type of the protocol are given. */
  readonly typeMapping?: { readonly [type: number]: typeof Buffer };
  /** How long it may wait to be written, in ms; 0: as long as it takes. */
  readonly timeout?: number;
}

/** Strings, which begin with `$`, as they are. */
const AS_BYTES: SendOptions = { typeMapping: { 36: Buffer } };

/** While a client is connected it writes at once. The timeout of its own until then would cost each command a timer. */
const AT_ONCE: SendOptions = { timeout: 0 };

const AT_ONCE_AS_BYTES: SendOptions = { ...AT_ONCE, ...AS_BYTES };

function optionsOf(words: Word[], isReady = false): SendOptions | undefined {
  if (isPacked(words)) return isReady ? AT_ONCE_AS_BYTES : AS_BYTES;
  return isReady ? AT_ONCE : undefined;
}

type Any = NodeRedisClient | NodeRedisPool | NodeRedisCluster | NodeRedisSentinel;

export function transport(client: Any): Transport {
  if (!("destroy" in client)) {
    throw new TypeError("client is of an old release of the package redis: swlimit needs release 5 or later");
  }
  if ("getMasterNode" in client) return sentinel(client as Sentinel);
  if ("nodeClient" in client) return cluster(client);
  if ("duplicate" in client && "isReady" in client) return single(client as Duplicate);
  return pool(client as NodeRedisPool & Pool);
}

/** What is used of the clients that `duplicate` makes. */
interface Duplicate extends NodeRedisClient {
  readonly options?: { readonly socket?: object };
  readonly isOpen: boolean;
  /** Another number for each connection that the client has had. */
  readonly socketEpoch: number;
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): void;
  ref(): void;
  unref(): void;
}

function single(client: Duplicate): Transport {
  return {
    send: (args) => client.sendCommand(args, optionsOf(args, client.isReady)),
    node: () => client,
    address,
    open: openTo,
    state: () => (client.isReady ? "ready" : "connecting"),
    connection: () => (client.isReady ? client.socketEpoch : undefined),
    isOpen: () => client.isOpen,
    ended: (listener) => client.on("end", listener),
    takesBytes: true,
    isOrdered: true,
    tracks: true,
  };
}

/** What is used of a sentinel client, and of what its `duplicate` makes. */
interface Sentinel extends NodeRedisSentinel {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  duplicate(overrides: object): Sentinel;
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): unknown;
}

/** What a sentinel client says of a change. */
interface Topology {
  readonly type: string;
  readonly node: { readonly host: string; readonly port: number };
}

/** The sentinel is asked so often, in ms, which server is the primary: its word of a change may be lost. */
const ASKED_EVERY = 1000;

/**
 * By a client like the caller's, which does not send again what is unanswered: nobody knows whether that was executed. It
 * ends with the caller's, of which release 5 says nothing.
 */
function sentinel(client: Sentinel): Transport {
  let made: { readonly like: Sentinel; readonly ready: Promise<unknown>; readonly watch: NodeJS.Timeout } | null = null;
  let failovers = 0;
  const close = () => {
    const ended = made;
    made = null;
    clearInterval(ended?.watch);
    ended?.ready.then(() => ended.like.destroy()).catch(() => {});
  };
  const open = () => {
    const like = client.duplicate({ maxCommandRediscovers: 0, scanInterval: ASKED_EVERY });
    like.on("error", () => {}); // whoever waits for a reply hears of it
    let before = "";
    like.on("topology-change", ({ type, node }: Topology) => {
      if (type !== "MASTER_CHANGE") return;
      const to = `${node.host}:${node.port}`;
      if (before !== "" && before !== to) {
        failovers++;
        saysFailover({ name: "the sentinels", from: before, to });
      }
      before = to;
    });
    const ready = like.connect();
    ready.catch(() => {
      if (made?.like === like) close();
    });
    return { like, ready, watch: setInterval(() => client.isOpen || close(), ASKED_EVERY).unref() };
  };
  return {
    ...whole(client, "the sentinels' primary"),
    send: async (args) => {
      if (!client.isOpen) return client.sendCommand(false, args, optionsOf(args)); // which says so
      made ??= open();
      await made.ready;
      return made.like.sendCommand(false, args, optionsOf(args));
    },
    state: () => (made?.like.isReady ? "ready" : "connecting"),
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

/** What is known of where a client, or a node of a cluster, is. */
interface Place {
  readonly address?: string;
  readonly options?: { readonly socket?: { readonly host?: string; readonly port?: number; readonly path?: string } };
}

function address(node: object): string {
  const { address, options } = node as Place;
  const { host = "localhost", port = 6379, path } = options?.socket ?? {};
  return address ?? path ?? `${host}:${port}`;
}

/** What is used of a cluster beyond what is asked of it. */
interface Slots {
  readonly isOpen: boolean;
  readonly slots: { readonly master?: { readonly client?: { readonly isReady?: boolean } } }[];
  readonly masters: object[];
  nodeClient(node: object): object | Promise<object>;
}

function cluster(client: NodeRedisCluster): Transport {
  const { slots } = client as unknown as Slots;
  if (!Array.isArray(slots)) throw new TypeError("client is a cluster of which the slots cannot be told");
  const known = client as unknown as Slots; // its properties change with the cluster
  const master = (key: string) => known.slots[calculateSlot(key)]?.master;
  return {
    send: (args, key) => client.sendCommand(key, false, args, optionsOf(args, master(key)?.client?.isReady)),
    node: (key) => master(key) ?? client,
    address,
    isOpen: () => known.isOpen,
    knows: (node) => known.isOpen && known.masters.includes(node),
    connection: (node) => {
      const { client } = node as { readonly client?: Duplicate };
      return client?.isReady ? `${client.socketEpoch}` : undefined;
    },
    open: async (node, listener) => openTo(await known.nodeClient(node), listener),
    takesBytes: true,
    isOrdered: false, // a command without a key may go to any node
    tracks: true,
  };
}

async function openTo(node: object, listener?: Listener): Promise<Connection> {
  const { options } = node as Duplicate;
  const connection = (node as Duplicate).duplicate({
    socket: { ...options?.socket, reconnectStrategy: false }, // once lost, another one is opened when it is wanted
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
    throw new Error("The client is closed"); // by whoever it is of
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
