/** Clients of the package `redis`, release 5 or later. */

import calculateSlot from "cluster-key-slot";
import { isPacked, type Word } from "./dialect.js";
import type { Connection, Listener, Transport } from "./transport.js";

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
  if ("getMasterNode" in client) {
    return {
      ...whole(client, "the sentinels' primary"),
      send: (args) => client.sendCommand(false, args, optionsOf(args)),
    };
  }
  if ("nodeClient" in client) return cluster(client);
  if ("duplicate" in client && "isReady" in client) return single(client);
  return pool(client as NodeRedisPool & Pool);
}

/** What is used of the clients that `duplicate` makes. */
interface Duplicate extends NodeRedisClient {
  readonly options?: { readonly socket?: object };
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): void;
  ref(): void;
  unref(): void;
}

function single(client: NodeRedisClient): Transport {
  return {
    send: (args) => client.sendCommand(args, optionsOf(args, client.isReady)),
    node: () => client,
    address,
    open: openTo,
    state: () => (client.isReady ? "ready" : "connecting"),
    takesBytes: true,
    isOrdered: true,
    tracks: true,
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
    knows: (node) => known.masters.includes(node),
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
  return {
    get isOpen() {
      return connection.isReady;
    },
    send: (args) => connection.sendCommand(args, optionsOf(args, connection.isReady)),
    hold: (process) => (process ? connection.ref() : connection.unref()),
    close: () => connection.isReady && connection.destroy(),
  };
}
