/** Why a server could not be asked: one word, the same in every language. */

/** Codes of error replies about the server's own troubles, which are reasons themselves. */
const CODES = [
  ...(["READONLY", "OOM", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN"] as const),
  ...(["BUSY", "FAILOVER"] as const),
];

export type Reason =
  | (typeof CODES)[number]
  | "auth"
  | "bad_reply"
  | "certificate"
  | "cluster"
  | "disconnected"
  | "module_missing"
  | "no_answer"
  | "other"
  | "refused"
  | "slow"
  | "too_many_clients"
  | "unresolved";

/** By the beginning of an error reply; null: the caller's mistake. */
const BY_REPLY: readonly [RegExp, Reason | null][] = [
  [/^(NOAUTH|WRONGPASS|ERR (invalid password|AUTH))\b/, "auth"],
  [/^ERR max number of clients\b/, "too_many_clients"],
  [/^ERR unknown command .*swlimit/i, "module_missing"],
  [/^(MOVED|ASK|TRYAGAIN) /, "cluster"],
  [/^(ERR|WRONGTYPE|NOPERM|UNBLOCKED|CROSSSLOT) /, null],
  ...CODES.map((code): [RegExp, Reason] => [new RegExp(`^${code}\\b`), code]),
  [/^[A-Z]{3,} /, "other"],
];

/** By the codes of the system and of TLS, and by the names of the libraries' errors. */
const BY_KIND: readonly [RegExp, Reason][] = [
  [/^(ECONNREFUSED|ENOENT|EACCES|EHOSTUNREACH|ENETUNREACH)$/, "refused"],
  [/^(ENOTFOUND|EAI_\w+)$/, "unresolved"],
  [/^(CERT_|UNABLE_TO_|ERR_TLS_|ERR_SSL_)|SELF_SIGNED|^(EPROTO|HOSTNAME_MISMATCH)$/, "certificate"],
  [/^(ETIMEDOUT|(Connection|Socket|Command)?TimeoutError)$/, "no_answer"],
  [/^(EPIPE|ECONNRESET|ECONNABORTED|ERR_STREAM_\w+|MaxRetriesPerRequestError)$/, "disconnected"],
  [/^(SocketClosedUnexpectedly|ClientClosed|ClientOffline|DisconnectsClient|ReconnectStrategy)Error$/, "disconnected"],
  [/^(Closing|Connection)Error$/, "disconnected"],
];

/** The reason that an error reply gives: null for the caller's mistakes, undefined for what is no error reply. */
export function reasonOfReply(text: string): Reason | null | undefined {
  return BY_REPLY.find(([beginning]) => beginning.test(text))?.[1];
}

/** The reason that an error of the system or of a library gives; undefined where it gives none. */
export function reasonOfError(error: unknown, depth = 0): Reason | undefined {
  if (typeof error !== "object" || error === null || depth > 5) return undefined;
  const {
    reason,
    code,
    name,
    constructor: type,
    cause,
    originalError,
    errors,
    message,
  } = error as Record<string, unknown>;
  if (typeof reason === "string") return reason as Reason;
  const inner = [cause, originalError, ...(Array.isArray(errors) ? errors : [])];
  const found = inner.map((one) => reasonOfError(one, depth + 1)).find((one) => one !== undefined);
  if (found) return found;
  const replied = typeof message === "string" ? reasonOfReply(message) : undefined;
  if (replied) return replied;
  const kinds = [code, name, (type as { name?: unknown } | undefined)?.name];
  return BY_KIND.find(([kind]) => kinds.some((one) => typeof one === "string" && kind.test(one)))?.[1];
}

/** A text of the server, as errors and logs quote it: at most 100 bytes, with everything unprintable escaped. */
export function quoted(text: string): string {
  const escaped = (sign: string) => {
    const code = sign.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  };
  const plain = text.slice(0, 101).replace(/[^ -~]/g, escaped);
  return plain.length > 100 ? `${plain.slice(0, 97)}...` : plain;
}
