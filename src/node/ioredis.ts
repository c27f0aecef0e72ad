/** Clients of the package `ioredis`. */

import type { Socket } from "node:net";
import calculateSlot from "cluster-key-slot";
import { isPacked, type Word } from "./dialect.js";
import type { Connection, Transport } from "./transport.js";

/** What is used of a client or a cluster. */
export interface IoredisClient {
  call(command: string, ...args: (string | Buffer)[]): Promise<unknown>;
}

/** What is used of a Redis or Cluster beyond `call`. */
interface Ioredis extends IoredisClient {
  callBuffer?(command: string, ...args: (string | Buffer)[]): Promise<unknown>;
  readonly options: { readonly host?: string; readonly port?: number; readonly path?: string; readonly name?: string };
  readonly slots: string[][];
  readonly stream: Socket | undefined;
  readonly status: string;
  nodes(role: "master"): Ioredis[];
  duplicate(overrides?: object): Ioredis;
  connect(): Promise<void>;
  disconnect(): void;
  on(event: string, listener: () => void): unknown;
}

export function transport(client: IoredisClient): Transport {
  return (client as { isCluster?: boolean }).isCluster === true
    ? cluster(client as Ioredis)
    : single(client as Ioredis);
}

function call(client: Ioredis, words: Word[]): Promise<unknown> {
  const [command, ...args] = words as [string, ...Word[]];
  writeTogether(client.stream);
  return isPacked(words) && client.callBuffer ? client.callBuffer(command, ...args) : client.call(command, ...args);
}

/** ioredis makes a system call of each command: have it make one of all that are asked in this turn of the event loop. */
function writeTogether(stream: Socket | undefined): void {
  if (!stream || stream.writableCorked > 0) return;
  stream.cork();
  process.nextTick(() => stream.uncork());
}

/** Whether a client gives replies of bytes as they are. */
const takesBytes = (client: Ioredis) => typeof client.callBuffer === "function";

const state = (node: object) => ((node as Ioredis).status === "ready" ? "ready" : "connecting");

function address(node: object): string {
  const { host, port, path, name } = (node as Ioredis).options;
  return path ?? name ?? `${host}:${port}`;
}

function single(client: Ioredis): Transport {
  return {
    send: (args) => call(client, args),
    node: () => client,
    address,
    open: openTo,
    state,
    takesBytes: takesBytes(client),
    isOrdered: true,
    tracks: false,
  };
}

/** It knows the keys of the server's own commands only: it would ask any node, and be sent on to another one. */
function cluster(client: Ioredis): Transport {
  const node = (key: string) => {
    const [address] = client.slots[calculateSlot(key)] ?? [];
    return client.nodes("master").find(({ options }) => `${options.host}:${options.port}` === address) ?? client;
  };
  const send: Transport["send"] = async (args, key) => {
    try {
      return await call(node(key), args);
    } catch (error) {
      if (error instanceof Error && /^(MOVED|ASK|CLUSTERDOWN|TRYAGAIN) /.test(error.message)) {
        return call(client, args); // which follows, and learns where the slot is
      }
      throw error;
    }
  };
  const knows = (one: object) => one === client || client.nodes("master").includes(one as Ioredis);
  return {
    send,
    node,
    address,
    knows,
    open: openTo,
    state,
    takesBytes: takesBytes(client),
    isOrdered: false,
    tracks: false,
  };
}

async function openTo(node: object): Promise<Connection> {
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
    send: (args) => call(connection, args),
    hold: (process) => void (process ? connection.stream?.ref() : connection.stream?.unref()),
    close: () => connection.disconnect(),
  };
}
