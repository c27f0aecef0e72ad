/** The errors of limiters. */

import type { Decision } from "./decision.js";

/**
 * The server refused a command because of the caller: a wrong argument, a key of another type, a missing right.
 */
export class RefusedError extends Error {
  override name = "RefusedError";
}

/** The server does not have the module. */
export class ModuleMissingError extends RefusedError {
  override name = "ModuleMissingError";

  constructor(cause: Error) {
    super(
      "This server does not have the module swlimit. Start it with `loadmodule /path/to/swlimit.so` in its " +
        "configuration, or load it now with `MODULE LOAD /path/to/swlimit.so`.",
      { cause },
    );
  }
}

/** The script decides in place of the module, and it lacks this command; or the module is too old for it. */
export class NeedsModuleError extends ModuleMissingError {
  override name = "NeedsModuleError";

  constructor(command: string, cause?: Error, isOld = false) {
    super(cause ?? new Error(command));
    this.message = isOld
      ? `${command} needs a newer module than this server has: load a newer module swlimit.`
      : `${command} needs the module, and this server does not have it: load the module swlimit.`;
  }
}

/** The server could not be asked, or did not answer in time. Then `onFailure` decides. */
export class UnavailableError extends Error {
  override name = "UnavailableError";
}

/** The command was not sent. */
export class NotAskedError extends UnavailableError {
  override name = "NotAskedError";
}

/** The caller's deadline came first: that says nothing about the server. */
export class DeadlineError extends UnavailableError {
  override name = "DeadlineError";
}

/** A denial, where no decision is returned. */
export class DeniedError extends Error {
  override name = "DeniedError";

  constructor(readonly decision: Decision) {
    super("denied: the limit is reached");
  }
}

/** A hold ended before it was released: it could not be renewed in time, or somebody else ended it. */
export class LostError extends Error {
  override name = "LostError";

  constructor() {
    super("the hold is lost");
  }
}

/** Error replies about the server's state, and not about the caller's mistake. */
const CONDITION = new RegExp(
  "^(NOAUTH|WRONGPASS|LOADING|MASTERDOWN|READONLY|MISCONF|OOM|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER|MOVED|ASK|TRYAGAIN" +
    "|ERR max number of clients)\\b",
);

const ONE_TAG =
  ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too";

/** Error replies begin with a code in capitals; errors of the network do not. */
const REPLY = /^[A-Z]{3,} /;

/** Whether a server replied with this error, and has not executed the command. */
export function isReply(error: Error): boolean {
  return REPLY.test(error.message);
}

/** An error of a client library, as one of the above. */
export function classify(error: unknown): RefusedError | UnavailableError {
  const cause = error instanceof Error ? error : new Error(String(error));
  if (cause instanceof RefusedError || cause instanceof UnavailableError) return cause;
  const text = cause.message.replace(/^EXECABORT .*?: /, "");
  if (/^ERR unknown command .*swlimit/i.test(text)) return new ModuleMissingError(cause);
  if (text.startsWith("CROSSSLOT ")) return new RefusedError(cause.message + ONE_TAG, { cause });
  if (REPLY.test(text) && !CONDITION.test(text)) return new RefusedError(cause.message, { cause });
  return new UnavailableError(cause.message, { cause });
}
