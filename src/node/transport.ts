/** How commands reach a server: through the caller's own client, of whatever library. */

import type { Socket } from "node:net";
import calculateSlot from "cluster-key-slot";

/** Sends one command, whose first key is `key`, and resolves to its reply. */
export type Send = (args: string[], key: string) => Promise<unknown>;

/** A connection that nobody else uses. */
export interface Connection {
  readonly isOpen: boolean;
  send(args: string[]): Promise<unknown>;
  /** Whether it keeps the process from ending. */
  hold(process: boolean): void;
  close(): void;
}

/** Who wants to hear what a connection with client tracking is told. */
export interface Listener {
  /** This key has changed; null: any may have. */
  invalidated(key: string | null): void;
  /** The connection is gone, and with it what it would have been told. */
  lost(): void;
}

/** A way to a server, or to the servers of a cluster. */
export interface Transport {
  readonly send: Send;
  /** The node that has a key; the same object as long as it is the same node. */
  readonly node?: (key: string) => object | Promise<object>;
  /** Opens a connection of its own to a node; with a listener, one that has client tracking on. */
  readonly open?: (node: object, listener?: Listener) => Promise<Connection>;
  /** Whether `open` knows what to do with a listener. */
  readonly tracks: boolean;
}

/** What is used of a client of the package `redis`. */
export interface NodeRedisClient {
  sendCommand(args: string[]): Promise<unknown>;
  duplicate(overrides?: object): unknown;
}

/** What is used of a pool of the package `redis`. */
export interface NodeRedisPool {
  sendCommand(args: string[]): Promise<unknown>;
}

/** What is used of a cluster of the package `redis`. */
export interface NodeRedisCluster {
  sendCommand(firstKey: string, isReadonly: boolean, args: string[]): Promise<unknown>;
  nodeClient(node: never): unknown;
}

/** What is used of a sentinel client of the package `redis`. */
export interface NodeRedisSentinel {
  sendCommand(isReadonly: boolean, args: string[]): Promise<unknown>;
  getMasterNode(): unknown;
}

/** What is used of a client or a cluster of the package `ioredis`. */
export interface IoredisClient {
  call(command: string, ...args: string[]): Promise<unknown>;
}

/** A client of the packages `redis` or `ioredis`, or a function that sends a command with any other. */
export type Client = Send | NodeRedisClient | NodeRedisPool | NodeRedisCluster | NodeRedisSentinel | IoredisClient;

/** The way to a server through this client. */
export function transportOf(client: Client): Transport {
  if (typeof client === "function") return { send: client, tracks: false };
  if ("call" in client && typeof client.call === "function") {
    return isIoredisCluster(client) ? ioredisCluster(client) : ioredis(client);
  }
  if (!("sendCommand" in client)) {
    throw new TypeError("client must be a client of the packages redis or ioredis, or a function that sends a command");
  }
  if ("getMasterNode" in client) return { send: (args) => client.sendCommand(false, args), tracks: false };
  if ("nodeClient" in client) return nodeRedisCluster(client);
  if ("duplicate" in client && "isReady" in client) return nodeRedis(client);
  return { send: (args) => (client as NodeRedisPool).sendCommand(args), tracks: false };
}

/** What is used of the clients that `duplicate` makes. */
interface Duplicate extends NodeRedisClient {
  readonly isReady: boolean;
  readonly options?: { readonly socket?: object };
  on(event: string, listener: (argument: never) => void): unknown;
  connect(): Promise<unknown>;
  destroy(): void;
  ref(): void;
  unref(): void;
}

function nodeRedis(client: NodeRedisClient): Transport {
  return { send: (args) => client.sendCommand(args), node: () => client, open: openNodeRedis, tracks: true };
}

function nodeRedisCluster(cluster: NodeRedisCluster): Transport {
  const send: Send = (args, key) => cluster.sendCommand(key, false, args);
  const { getNodeClientForKey } = cluster as { getNodeClientForKey?: (key: string) => Promise<object> };
  if (!getNodeClientForKey) return { send, tracks: false }; // before release 6
  return { send, node: (key) => getNodeClientForKey.call(cluster, key), open: openNodeRedis, tracks: true };
}

async function openNodeRedis(node: object, listener?: Listener): Promise<Connection> {
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
    send: (args) => connection.sendCommand(args),
    hold: (process) => (process ? connection.ref() : connection.unref()),
    close: () => connection.destroy(),
  };
}

/** What is used of a Redis or Cluster of ioredis beyond `call`. */
interface Ioredis extends IoredisClient {
  readonly options: { readonly host?: string; readonly port?: number };
  readonly slots: string[][];
  readonly stream: Socket;
  readonly status: string;
  nodes(role: "master"): Ioredis[];
  duplicate(overrides?: object): Ioredis;
  connect(): Promise<void>;
  disconnect(): void;
  on(event: string, listener: () => void): unknown;
}

function isIoredisCluster(client: IoredisClient): boolean {
  return (client as { isCluster?: boolean }).isCluster === true;
}

const callIoredis = (client: IoredisClient, [command, ...args]: string[]) => client.call(command as string, ...args);

function ioredis(client: IoredisClient): Transport {
  return { send: (args) => callIoredis(client, args), node: () => client, open: openIoredis, tracks: false };
}

/** It knows the keys of the server's own commands only: it would ask any node, and be sent on to another one. */
function ioredisCluster(client: IoredisClient): Transport {
  const cluster = client as Ioredis;
  const node = (key: string) => {
    const [address] = cluster.slots[calculateSlot(key)] ?? [];
    return cluster.nodes("master").find(({ options }) => `${options.host}:${options.port}` === address);
  };
  const send: Send = async (args, key) => {
    try {
      return await callIoredis(node(key) ?? cluster, args);
    } catch (error) {
      if (error instanceof Error && /^(MOVED|ASK|CLUSTERDOWN|TRYAGAIN) /.test(error.message)) {
        return callIoredis(cluster, args); // which follows, and learns where the slot is
      }
      throw error;
    }
  };
  return { send, node: (key) => node(key) ?? cluster, open: openIoredis, tracks: false };
}

async function openIoredis(node: object): Promise<Connection> {
  const connection = (node as Ioredis).duplicate({
    lazyConnect: true,
    enableOfflineQueue: false,
    retryStrategy: null,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
  });
  connection.on("error", () => {}); // whoever waits for a reply hears of it
  await connection.connect();
  return {
    get isOpen() {
      return connection.status === "ready";
    },
    send: (args) => callIoredis(connection, args),
    hold: (process) => void (process ? connection.stream.ref() : connection.stream.unref()),
    close: () => connection.disconnect(),
  };
}
