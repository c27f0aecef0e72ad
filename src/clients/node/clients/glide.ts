/** Clients of the package `@valkey/valkey-glide`, 2.2 or later. They show no connection, and send nothing twice. */

import { isPacked, type Word } from "../protocol/script-fallback.js";
import type { Transport } from "../transport/transport.js";

/** The used part of a client. */
export interface GlideClient {
  customCommand(args: Word[], options?: CommandOptions): Promise<unknown>;
}

/** The used options of a command. */
interface CommandOptions {
  /** Whether texts of the reply are bytes (0) or strings (1). */
  readonly decoder?: 0 | 1;
}

/** The used part of a client beyond sending commands. */
interface Glide {
  customCommand(args: Word[], options: CommandOptions & { readonly route?: object }): Promise<unknown>;
  readonly isClosed: boolean;
  /** In ms; then the client drops the reply. */
  readonly requestTimeout: number;
  readonly config: {
    readonly addresses: readonly { readonly host: string; readonly port?: number }[];
    readonly readFrom?: string;
  };
}

/** The codes of error replies by the names that the library gives them. It leaves other codes as they are. */
const CODES: Readonly<Record<string, string>> = {
  Ask: "ASK",
  BusyLoadingError: "LOADING",
  ClusterDown: "CLUSTERDOWN",
  CrossSlot: "CROSSSLOT",
  ExecAbortError: "EXECABORT",
  MasterDown: "MASTERDOWN",
  Moved: "MOVED",
  NoScriptError: "NOSCRIPT",
  PermissionDenied: "NOPERM",
  ReadOnly: "READONLY",
  ResponseError: "ERR",
  TryAgain: "TRYAGAIN",
};

export function transport(client: object): Transport {
  const { config, requestTimeout } = client as Glide;
  const isCluster = "invokeScriptWithRoute" in client;
  const { addresses, readFrom = "primary" } = config;
  if (!isCluster && readFrom !== "primary") {
    throw new TypeError(`the client reads from replicas, which decide nothing: make it with \`readFrom: "primary"\``);
  }
  return {
    send: async (words, key) => {
      const options = {
        decoder: isPacked(words) ? (0 as const) : (1 as const),
        // It knows no keys of module commands.
        ...(isCluster && { route: { type: "primarySlotKey", key } }),
      };
      try {
        return withMap(await (client as Glide).customCommand(words, options));
      } catch (error) {
        throw asReplied(error);
      }
    },
    node: () => client,
    address: () => addresses.map(({ host, port = 6379 }) => `${host}:${port}`).join(","),
    ...(isCluster && { knows: () => true }),
    isOpen: () => !(client as Glide).isClosed,
    givesUpAfter: requestTimeout,
    takesBytes: true,
    isOrdered: false,
    tracks: false,
  };
}

/** The reply; a map, which the library gives as a list of records, as a map. */
function withMap(reply: unknown): unknown {
  const isMap = Array.isArray(reply) && typeof reply[0] === "object" && "value" in reply[0];
  return isMap ? new Map(reply.map(({ key, value }) => [key, value])) : reply;
}

/** An error reply in the server's own words; any other error as it is. */
function asReplied(error: unknown): unknown {
  const { message } = error as Error;
  const [, name = "", text] = /^(?:An error was signalled by the server: - )?(\w+): (.*)$/s.exec(message) ?? [];
  const code = CODES[name] ?? (/^[A-Z]+$/.test(name) ? name : null);
  return code === null ? error : new Error(`${code} ${text}`, { cause: error });
}
