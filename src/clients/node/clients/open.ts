/** Clients that limiters open by themselves, from a URL. */

import type { Mode } from "../core/options.js";
import { LAST_PROBE } from "../transport/breaker.js";
import { Core } from "../transport/core.js";
import { inTime } from "../util/timeout.js";
import { type Client, transportOf } from "./client.js";

/** A client that is not connected yet. */
interface OpenedClient {
  readonly client: Client;
  /** Rejects when the server refuses the client. */
  connect(): Promise<unknown>;
  close(): Promise<void>;
}

/** The longest that connecting is waited for, in ms. */
const LONGEST = 1000;

/** What a server says to a client that it will not let in. */
const REFUSED = /^(WRONGPASS|NOAUTH|NOPERM|ERR (?!max number of clients))/;

/**
 * A limiter on a client of its own, of the package redis or, where that is not installed, ioredis. It ends with the
 * limiter. While the server does not answer, the client goes on connecting, and `onFailure` decides.
 */
export async function withOwnClient<Made extends { close(): Promise<void> }>(
  url: string,
  options: { readonly mode?: Mode },
  make: (client: Client) => Made,
): Promise<Made> {
  if (typeof url !== "string" || !/^rediss?:\/\//.test(url)) {
    throw new TypeError('url must be a text such as "redis://127.0.0.1:6379", with rediss: for TLS');
  }
  if (options.mode === "local") throw new TypeError('mode "local" asks no server: use a constructor, without a client');
  const opened = (await nodeRedis(url)) ?? (await ioredis(url));
  if (!opened) throw new Error("fromUrl needs the package redis or ioredis: run `npm install redis`");
  const made = make(opened.client);
  Core.of(opened.client, () => transportOf(opened.client)).onLeft = opened.close;
  try {
    await inTime(opened.connect(), LONGEST);
  } catch (error) {
    await made.close();
    throw error;
  }
  return made;
}

async function nodeRedis(url: string): Promise<OpenedClient | null> {
  const found = await installed<typeof import("redis")>("redis");
  if (!found) return null;
  let isClosed = false;
  const client = found.createClient({ url, socket: { reconnectStrategy: () => (isClosed ? false : LAST_PROBE) } });
  const refusal = refusalOf(client);
  return {
    client,
    connect: () => Promise.race([client.connect(), refusal]),
    close: async () => {
      isClosed = true;
      if (client.isReady) client.destroy();
      else client.once("ready", () => client.destroy()); // a connection that is being opened can't be ended
    },
  };
}

async function ioredis(url: string): Promise<OpenedClient | null> {
  const found = await installed<typeof import("ioredis")>("ioredis");
  if (!found) return null;
  const client = new found.Redis(url, { lazyConnect: true });
  const refusal = refusalOf(client);
  const ready = new Promise((resolve) => client.once("ready", resolve));
  return {
    client,
    connect: () => {
      client.connect().catch(() => {}); // it tries again
      return Promise.race([ready, refusal]);
    },
    close: async () => client.disconnect(),
  };
}

/** Rejects when the server refuses a client. Errors end nothing else: callers that wait for a reply get them. */
function refusalOf(client: { on(event: "error", listener: (error: Error) => void): unknown }): Promise<never> {
  return new Promise((_, reject) => {
    client.on("error", (error) => {
      if (REFUSED.test(error.message)) reject(error);
    });
  });
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
