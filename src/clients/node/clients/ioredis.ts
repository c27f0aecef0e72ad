/** Clients of the packages `ioredis` and `iovalkey`. */

import type { Socket } from "node:net";
import calculateSlot from "cluster-key-slot";
import { isPacked, type Word } from "../protocol/script-fallback.js";
import { announceFailover } from "../transport/server-health.js";
import type { Connection, InvalidationListener, Transport } from "../transport/transport.js";
import { within } from "../util/timeout.js";
import { connectErrorOf } from "./connect-error.js";
import { type Address, ASK_INTERVAL, type SentinelConnections, Sentinels } from "./sentinels.js";

/** The used part of a client or a cluster. */
export interface IoredisClient {
  call(command: string, ...args: (string | Buffer)[]): Promise<unknown>;
}

/** The used part of a Redis or Cluster beyond `call`. */
interface Ioredis extends IoredisClient {
  callBuffer?(command: string, ...args: (string | Buffer)[]): Promise<unknown>;
  readonly options: Options;
  readonly stream: Socket | undefined;
  readonly status: string;
  readonly condition?: { readonly select?: number } | undefined;
  duplicate(overrides?: object): Ioredis;
  connect(): Promise<void>;
  disconnect(): void;
  subscribe(channel: string): Promise<unknown>;
  on(event: string | symbol, listener: (...words: never[]) => void): unknown;
}

interface IoredisCluster extends Omit<Ioredis, "duplicate"> {
  readonly slots: string[][];
  readonly startupNodes: readonly (string | number | { readonly host?: string; readonly port?: number })[];
  nodes(role: "master"): Ioredis[];
  duplicate(startupNodes: [], overrides: object): IoredisCluster;
}

interface Options {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly name?: string;
  readonly db?: number;
  readonly autoResendUnfulfilledCommands?: boolean;
  /** With sentinels. */
  readonly sentinels?: readonly Partial<Address>[] | null;
  readonly role?: string;
  readonly tls?: object;
  readonly enableTLSForSentinelMode?: boolean;
  readonly sentinelUsername?: string;
  readonly sentinelPassword?: string;
  readonly sentinelTLS?: object;
  readonly natMap?: Record<string, Address> | ((key: string) => Address | null | undefined) | null;
  /** For clusters. */
  readonly redisOptions?: { readonly autoResendUnfulfilledCommands?: boolean };
  readonly clusterNodeRetryStrategy?: unknown;
  readonly retryDelayOnFailover?: number;
}

export function transport(client: IoredisClient): Transport {
  return (client as { isCluster?: boolean }).isCluster === true
    ? cluster(client as IoredisCluster)
    : (client as Ioredis).options?.sentinels
      ? behindSentinels(client as Ioredis)
      : single(client as Ioredis);
}

function call(client: Ioredis | IoredisCluster, words: Word[]): Promise<unknown> {
  const [command, ...args] = words as [string, ...Word[]];
  writeTogether(client.stream);
  return isPacked(words) && client.callBuffer ? client.callBuffer(command, ...args) : client.call(command, ...args);
}

/** ioredis writes each command by itself: let it write all commands of one turn of the event loop together. */
function writeTogether(stream: Socket | undefined): void {
  if (!stream || stream.writableCorked > 0) return;
  stream.cork();
  process.nextTick(() => stream.uncork());
}

/** Whether a client can return replies as bytes. */
const takesBytes = (client: object) => "callBuffer" in client && typeof client.callBuffer === "function";

const state = (node: object) => ((node as Ioredis).status === "ready" ? "ready" : "connecting");

const connection = (node: object) => (state(node) === "ready" ? (node as Ioredis).stream : undefined);

function address(node: object): string {
  const { options, startupNodes } = node as IoredisCluster;
  if (startupNodes) return startupNodes.map(addressOfSeed).join(",");
  const { host, port, path, name } = options;
  return path ?? name ?? `${host}:${port}`;
}

/** A node of a cluster as the caller named it: by address, port, or both. */
function addressOfSeed(seed: IoredisCluster["startupNodes"][number]): string {
  if (typeof seed !== "object") return String(seed);
  const { host = "127.0.0.1", port = 6379 } = seed;
  return `${host}:${port}`;
}

/**
 * The caller's client, or a duplicate that sends no command twice: after a lost connection nobody knows whether a
 * command was executed. The duplicate ends with the caller's client.
 */
class WithoutResending<Any extends { readonly status: string; disconnect(): void; on: Ioredis["on"] }> {
  private made: Any | null = null;
  /** Why the duplicate, or the client, can't connect. */
  connectError: () => unknown;

  constructor(
    private readonly client: Any,
    private readonly make: (() => Any) | null,
  ) {
    client.on("end", () => this.close());
    this.connectError = connectErrorOf(client);
  }

  get(): Any {
    if (!this.make || this.client.status === "end") return this.client;
    if (!this.made) {
      this.made = this.make();
      this.made.on("error", () => {}); // callers that wait for a reply get it
      this.connectError = connectErrorOf(this.made);
    }
    return this.made;
  }

  close(): void {
    this.made?.disconnect();
    this.made = null;
  }
}

/** The options of a duplicate that sends nothing twice. */
const NO_RESENDING = {
  lazyConnect: true,
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
  reconnectOnError: null,
};

/** Let a client not keep the process alive: the caller's own does. */
function inBackground(made: Ioredis): Ioredis {
  made.on("connect", () => made.stream?.unref());
  made.on("error", () => {}); // callers that wait for a reply get it
  return made;
}

function single(client: Ioredis): Transport {
  if (typeof client.duplicate !== "function" && client.options?.autoResendUnfulfilledCommands !== false) {
    throw new TypeError("the client resends unanswered commands: make it with `autoResendUnfulfilledCommands: false`");
  }
  const duplicate = () =>
    inBackground(client.duplicate({ ...NO_RESENDING, db: client.condition?.select ?? client.options.db }));
  const resendless = new WithoutResending(
    client,
    client.options.autoResendUnfulfilledCommands === false ? null : duplicate,
  );
  return {
    send: (args) => call(resendless.get(), args),
    node: () => client,
    address,
    open: openTo,
    state: () => state(resendless.get()),
    connectError: () => resendless.connectError(),
    connection: () => connection(resendless.get()),
    isOpen: () => client.status !== "end",
    ended: (listener) => client.on("end", listener),
    close: () => resendless.close(),
    takesBytes: takesBytes(client),
    isOrdered: true,
    tracks: true,
  };
}

/** The primary that sentinels announce. When it changes, the connection to the old one is closed at once. */
class FollowedPrimary {
  node: Ioredis | null = null;
  failovers = 0;
  private readonly sentinels: Sentinels;
  private found = () => {};
  /** Resolves when the first primary is known. */
  readonly first = new Promise<void>((resolve) => {
    this.found = resolve;
  });

  constructor(private readonly client: Ioredis) {
    const { name = "", sentinels } = client.options;
    const seeds = (sentinels ?? []).map(({ host = "127.0.0.1", port = 26379 }) => ({ host, port }));
    this.sentinels = new Sentinels(name, seeds, {
      connect: (address) => this.connections(address),
      role: (address) => this.role(address),
      changed: (primary) => this.follow(name, primary),
    });
  }

  close(): void {
    this.sentinels.close();
    this.node?.disconnect();
  }

  private follow(name: string, primary: Address): void {
    const { node: before } = this;
    this.node = this.clientOf(primary);
    this.found();
    if (!before) return;
    this.failovers++;
    announceFailover({ name, from: address(before), to: address(this.node) });
    before.disconnect();
  }

  private clientOf(server: Address): Ioredis {
    const { client } = this;
    const { natMap, tls, enableTLSForSentinelMode, db } = client.options;
    const key = `${server.host}:${server.port}`;
    const { host, port } = (typeof natMap === "function" ? natMap(key) : natMap?.[key]) ?? server;
    const at = { sentinels: null, name: null, host, port, tls: enableTLSForSentinelMode ? tls : undefined };
    return inBackground(client.duplicate({ ...NO_RESENDING, ...at, db: client.condition?.select ?? db }));
  }

  private async role(server: Address): Promise<string | null> {
    const asked = this.clientOf(server);
    try {
      const [role] = (await within(asked.call("ROLE"), ASK_INTERVAL)) as unknown[];
      return String(role);
    } catch {
      return null;
    } finally {
      asked.disconnect();
    }
  }

  private connections({ host, port }: Address): SentinelConnections {
    const { sentinelUsername: username, sentinelPassword: password, sentinelTLS: tls } = this.client.options;
    const open = () =>
      inBackground(
        this.client.duplicate({
          ...NO_RESENDING,
          ...{ sentinels: null, name: null, host, port, username, password, tls, db: 0, protocol: 2 },
          ...{ enableReadyCheck: false, retryStrategy: () => 1000 },
        }),
      );
    const [asking, subscribed] = [open(), open()];
    return {
      ask: (words) => call(asking, words),
      listen: (listener) => {
        subscribed.on("ready", listener);
        subscribed.on("message", listener);
        subscribed.subscribe("+switch-master").catch(() => {}); // ioredis repeats it on each connection
      },
      close: () => {
        asking.disconnect();
        subscribed.disconnect();
      },
    };
  }
}

function behindSentinels(client: Ioredis): Transport {
  let followed: FollowedPrimary | null = null;
  const close = () => {
    followed?.close();
    followed = null;
  };
  client.on("end", close);
  const follow = () => {
    followed ??= new FollowedPrimary(client);
    return followed;
  };
  return {
    send: async (args) => {
      if (client.status === "end") return call(client, args); // it throws the error
      const { node, first } = follow();
      if (!node) await first;
      return call(follow().node ?? client, args);
    },
    node: () => follow().node ?? client,
    knows: (node) => node === followed?.node,
    address,
    open: openTo,
    state: (node) => (node === client ? "connecting" : state(node)),
    connection,
    failovers: () => followed?.failovers ?? 0,
    isOpen: () => client.status !== "end",
    ended: (listener) => client.on("end", listener),
    close,
    takesBytes: takesBytes(client),
    isOrdered: true,
    tracks: true,
  };
}

/** A cluster client knows no keys of module commands: it would send them to any node, and be redirected. */
function cluster(client: IoredisCluster): Transport {
  const { redisOptions, clusterNodeRetryStrategy, retryDelayOnFailover } = client.options;
  const isOnce =
    retryDelayOnFailover === 0 &&
    (typeof clusterNodeRetryStrategy !== "function" || redisOptions?.autoResendUnfulfilledCommands === false);
  const duplicate = () =>
    client.duplicate([], {
      retryDelayOnFailover: 0,
      redisOptions: { ...redisOptions, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 },
    });
  const resendless = new WithoutResending(client, isOnce ? null : duplicate);
  const node = (key: string) => {
    const asked = resendless.get();
    const [address] = asked.slots[calculateSlot(key)] ?? [];
    return asked.nodes("master").find(({ options }) => `${options.host}:${options.port}` === address) ?? asked;
  };
  const send: Transport["send"] = async (args, key) => {
    try {
      return await call(node(key), args);
    } catch (error) {
      if (error instanceof Error && /^(MOVED|ASK|CLUSTERDOWN|TRYAGAIN) /.test(error.message)) {
        return call(resendless.get(), args); // which follows redirections, and learns the slot's node
      }
      throw error;
    }
  };
  /** The cluster client stands for its nodes until they are known. */
  const knows = (one: object) => {
    const asked = resendless.get();
    return one === asked ? asked.nodes("master").length === 0 : asked.nodes("master").includes(one as Ioredis);
  };
  return {
    send,
    node,
    address,
    knows,
    open: openTo,
    state,
    connection,
    isOpen: () => client.status !== "end",
    ended: (listener) => client.on("end", listener),
    close: () => resendless.close(),
    takesBytes: takesBytes(client),
    isOrdered: false,
    tracks: true,
  };
}

/** The channel of invalidations in RESP2. */
const INVALIDATIONS = "__redis__:invalidate";

/** A connection; with a listener, another one beside it that gets the invalidations of what is read on the first. */
async function openTo(node: object, listener?: InvalidationListener): Promise<Connection> {
  const opened: Ioredis[] = [];
  const close = () => {
    for (const one of opened) disconnect(one);
  };
  try {
    const connection = await opening(node as Ioredis, opened);
    const subscribed = listener && (await subscribing(node as Ioredis, opened, listener));
    if (subscribed) {
      await call(connection, ["CLIENT", "TRACKING", "ON", "REDIRECT", subscribed.id]);
      connection.on("close", () => listener.lost());
    }
    if ((node as Ioredis).status === "end") throw new Error("Connection is closed."); // by the caller
    return {
      get isOpen() {
        return opened.every(({ status }) => status === "ready");
      },
      send: async (words) => {
        if (subscribed && words[0] === "PING") await call(subscribed.client, words);
        return call(connection, words);
      },
      hold: (process) => {
        for (const { stream } of opened) process ? stream?.ref() : stream?.unref();
      },
      close,
    };
  } catch (error) {
    close();
    throw error;
  }
}

/** End a connection. ioredis keeps the process alive for 2 s to end one that has ended, or that was never made. */
function disconnect(connection: Ioredis): void {
  const { status, stream } = connection;
  if (status === "end") return;
  connection.disconnect();
  if (status === "connecting") stream?.destroy();
}

async function opening(node: Ioredis, opened: Ioredis[], options: object = {}): Promise<Ioredis> {
  const connection = node.duplicate({
    lazyConnect: true,
    enableOfflineQueue: false,
    retryStrategy: null,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    ...options,
  });
  opened.push(connection);
  const why = connectErrorOf(connection);
  connection.on("error", () => {}); // callers that wait for a reply get it
  try {
    await connection.connect();
  } catch (error) {
    throw why() ?? error;
  }
  return connection;
}

async function subscribing(node: Ioredis, opened: Ioredis[], listener: InvalidationListener) {
  const client = await opening(node, opened, { protocol: 2 });
  const id = String(await call(client, ["CLIENT", "ID"]));
  client.on("messageBuffer", (_: Buffer, keys: readonly Buffer[] | null) => {
    if (!keys) listener.invalidated(null);
    else for (const key of keys) listener.invalidated(String(key));
  });
  client.on("close", () => listener.lost());
  await client.subscribe(INVALIDATIONS);
  return { client, id };
}
