/** The clients that a limiter may be given. */

import type { Transport } from "../transport/transport.js";
import * as glide from "./glide.js";
import * as io from "./ioredis.js";
import * as nodeRedis from "./node-redis.js";

/** Sends one command, whose first key is `key`, and resolves to its reply. */
export type Send = (args: string[], key: string) => Promise<unknown>;

/**
 * A client of the packages `redis`, `ioredis`, `iovalkey` or `@valkey/valkey-glide`, or a function that sends a command
 * with any other.
 */
export type Client =
  | Send
  | nodeRedis.NodeRedisClient
  | nodeRedis.NodeRedisPool
  | nodeRedis.NodeRedisCluster
  | nodeRedis.NodeRedisSentinel
  | io.IoredisClient
  | glide.GlideClient;

/** The way to a server through this client. */
export function transportOf(client: Client): Transport {
  if (typeof client === "function") {
    const send = client as Transport["send"]; // which is given texts, since it takes no bytes
    return {
      send,
      takesBytes: false,
      node: () => client,
      address: () => "the server",
      isOrdered: false,
      tracks: false,
    };
  }
  if (typeof client === "object" && client !== null) {
    if ("call" in client && typeof client.call === "function") return io.transport(client);
    if ("sendCommand" in client && typeof client.sendCommand === "function") return nodeRedis.transport(client);
    if ("customCommand" in client && typeof client.customCommand === "function") return glide.transport(client);
  }
  if (/RedisMock/.test((client as object | null)?.constructor?.name ?? "")) {
    throw new TypeError(
      "ioredis-mock does not run the script as a server does: use TestClock or FakeLimiter of swlimit/testing, or a server",
    );
  }
  throw new TypeError(
    "client must be a client of the packages redis, ioredis, iovalkey or @valkey/valkey-glide, or a function that sends " +
      `a command, not ${typeof client}`,
  );
}
