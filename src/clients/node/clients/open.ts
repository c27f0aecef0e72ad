/** Clients that limiters open by themselves, from a URL. */

import type { ClusterMode, Mode } from "../core/options.js";
import { LAST_PROBE } from "../transport/breaker.js";
import { Core } from "../transport/core.js";
import { LATE } from "../transport/server-connection.js";
import { inTime, within } from "../util/timeout.js";
import { type Client, transportOf } from "./client.js";
import { FollowingTransport } from "./following.js";

/** A client that is not connected yet. */
interface OpenedClient {
  readonly client: Client;
  /** Rejects when the server refuses the client. */
  connect(): Promise<unknown>;
  /** Calls the listener with each connection. */
  onReady(listener: () => void): void;
  close(): void;
}

/** Clients of one library for one URL. */
interface Library {
  single(): OpenedClient;
  cluster(): OpenedClient & { readonly primaries: () => Promise<unknown>[] };
}

/** The longest that connecting is waited for, in ms. */
const LONGEST = 1000;

/** What a server says to a client that it will not let in. */
const REFUSED = /^(WRONGPASS|NOAUTH|NOPERM|ERR (?!max number of clients))/;

/** What a URL says: of a server at an address, or behind a socket of this machine. */
interface Place {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly isEncrypted: boolean;
  readonly username?: string;
  readonly password?: string;
  readonly db: number;
}

/**
 * A limiter on a client of its own, of the package redis or, where that is not installed, ioredis. It ends with the
 * limiter. While the server does not answer, the client goes on connecting, and `onFailure` decides.
 */
export async function withOwnClient<Made extends { close(): Promise<void> }>(
  url: string,
  { cluster, mode }: { readonly cluster: ClusterMode; readonly mode?: Mode | undefined },
  make: (client: Client) => Made,
): Promise<Made> {
  const place = placeOf(url);
  if (mode === "local") throw new TypeError('mode "local" asks no server: use a constructor, without a client');
  const library = (await nodeRedis(place)) ?? (await ioredis(place));
  if (!library) throw new Error("fromUrl needs the package redis or ioredis: run `npm install redis`");
  const follows = cluster === "auto" && place.path === undefined;
  const opened = cluster === "on" ? library.cluster() : library.single();
  const closing = [opened];
  let looked: Promise<unknown> = Promise.resolve();
  const core = Core.of(opened.client, () => {
    const single = transportOf(opened.client);
    if (!follows) return single;
    const transport = new FollowingTransport(opened.client, single, async () => {
      const found = await openCluster(library);
      closing.push(found);
      setTimeout(() => opened.close(), LATE).unref(); // when it owes no replies
      return transportOf(found.client);
    });
    opened.onReady(() => {
      looked = transport.connected();
    });
    return transport;
  });
  const made = make(opened.client);
  core.onLeft = async () => {
    for (const one of closing) one.close();
  };
  try {
    await inTime(
      opened.connect().then(() => looked),
      LONGEST,
    );
  } catch (error) {
    await made.close();
    throw error;
  }
  return made;
}

/** The client of a cluster, of which a server can be reached at an address that the cluster names. */
async function openCluster(library: Library): Promise<OpenedClient> {
  const cluster = library.cluster();
  try {
    await within(cluster.connect(), LONGEST);
    await within(Promise.any(cluster.primaries()), LONGEST);
    return cluster;
  } catch (error) {
    cluster.close();
    throw error;
  }
}

function placeOf(url: unknown): Place {
  if (typeof url !== "string" || !/^(rediss?|unix):\/\//.test(url)) {
    throw new TypeError(
      'url must be a text such as "redis://127.0.0.1:6379", with rediss: for TLS, or "unix:///run/redis.sock"',
    );
  }
  const isSocket = url.startsWith("unix:");
  // A URL of a socket has no host, and one without a host has no user.
  const read = new URL(isSocket ? url.replace(/^unix:\/\/([^/]*)\//, "redis://$1localhost/") : url);
  const { hostname, port, protocol, username, password, pathname, searchParams } = read;
  const place = isSocket
    ? { path: decodeURIComponent(pathname) }
    : { host: hostname.replace(/^\[(.*)\]$/, "$1") || "127.0.0.1", port: Number(port || 6379) };
  const db = Number(searchParams.get("db") ?? (isSocket ? 0 : pathname.slice(1)));
  if (!Number.isInteger(db) || db < 0) throw new RangeError("url has a database that is no number");
  return {
    ...place,
    isEncrypted: protocol === "rediss:",
    ...(username && { username: decodeURIComponent(username) }),
    ...(password && { password: decodeURIComponent(password) }),
    db,
  };
}

async function nodeRedis({ host, port, path, isEncrypted, db, ...login }: Place): Promise<Library | null> {
  const found = await installed<typeof import("redis")>("redis");
  if (!found) return null;
  let isClosed = false;
  const settings = {
    ...(isEncrypted && { tls: true as const }),
    reconnectStrategy: () => (isClosed ? (false as const) : LAST_PROBE),
  };
  const at = path === undefined ? { host, port } : { path };
  return {
    single: () => {
      const client = found.createClient({ socket: { ...at, ...settings } as object, database: db, ...login });
      const refusal = refusalOf(client);
      return {
        client: client as Client,
        connect: () => Promise.race([client.connect(), refusal]),
        onReady: (listener) => client.on("ready", listener),
        close: () => {
          isClosed = true;
          if (client.isReady) client.destroy();
          else client.once("ready", () => client.destroy()); // a connection that is being opened can't be ended
        },
      };
    },
    cluster: () => {
      const client = found.createCluster({
        rootNodes: [{ socket: at as object }],
        defaults: { socket: settings as object, ...login },
        minimizeConnections: true, // a server that can't be reached holds up no others
      });
      const refusal = refusalOf(client);
      return {
        client: client as Client,
        connect: () => Promise.race([client.connect(), refusal]),
        onReady: () => {},
        primaries: () => client.masters.map(async (one) => client.nodeClient(one)),
        close: () => {
          isClosed = true;
          if (client.isOpen) client.destroy();
        },
      };
    },
  };
}

async function ioredis({ host, port, path, isEncrypted, ...login }: Place): Promise<Library | null> {
  const found = await installed<typeof import("ioredis")>("ioredis");
  if (!found) return null;
  const { db, ...user } = login;
  const tls = isEncrypted ? { tls: {} } : {};
  const at = path === undefined ? { host: host as string, port: port as number } : { path };
  const opened = (client: InstanceType<typeof found.Redis> | InstanceType<typeof found.Cluster>): OpenedClient => {
    const refusal = refusalOf(client);
    const ready = new Promise((resolve) => client.once("ready", resolve));
    return {
      client,
      connect: () => {
        client.connect().catch(() => {}); // it tries again
        return Promise.race([ready, refusal]);
      },
      onReady: (listener) => client.on("ready", listener),
      close: () => client.disconnect(),
    };
  };
  return {
    single: () => opened(new found.Redis({ ...at, ...login, ...tls, lazyConnect: true })),
    cluster: () => {
      const client = new found.Cluster([at as { host: string; port: number }], {
        lazyConnect: true,
        retryDelayOnFailover: 0,
        dnsLookup: (address, callback) => callback(null, address), // TLS checks the name
        redisOptions: { ...user, ...tls, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 },
      });
      return { ...opened(client), primaries: () => client.nodes("master").map((one) => one.ping()) };
    },
  };
}

/** Rejects when the server refuses a client. Errors end nothing else: callers that wait for a reply get them. */
function refusalOf(client: { on(event: "error", listener: (error: Error) => void): unknown }): Promise<never> {
  const refusal = new Promise<never>((_, reject) => {
    client.on("error", (error) => {
      if (REFUSED.test(error.message)) reject(error);
    });
  });
  refusal.catch(() => {}); // after it has connected, the callers get it
  return refusal;
}

/** A package; null where it is not installed. Bundlers leave it out: they fail where they can't find it. */
async function installed<Module>(name: string): Promise<Module | null> {
  try {
    return (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)) as Module;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const isMissing = code === "ERR_MODULE_NOT_FOUND" || code === "MODULE_NOT_FOUND";
    if (isMissing && message.includes(`'${name}'`)) return null;
    throw error;
  }
}
