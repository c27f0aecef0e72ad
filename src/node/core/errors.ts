/** What can go wrong. */

import type { Decision } from "./decision.js";

/**
 * The server refused a command, for a reason that lies with the caller: wrong words, the wrong type of key, no right.
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

/** The script decides, in place of the module, and it does not have this command. */
export class NeedsModuleError extends ModuleMissingError {
  override name = "NeedsModuleError";

  constructor(command: string, cause?: Error) {
    super(cause ?? new Error(command));
    this.message = `${command} needs the module, and this server does not have it: load the module swlimit.`;
  }
}

/** The server could not be asked, or did not answer in time. Limiters then decide by `onFailure`. */
export class UnavailableError extends Error {
  override name = "UnavailableError";
}

/** The server was not asked, because it did not answer before. */
export class NotAskedError extends UnavailableError {
  override name = "NotAskedError";
}

/** Nothing was granted, and nobody looks at a decision. */
export class DeniedError extends Error {
  override name = "DeniedError";

  constructor(readonly decision: Decision) {
    super("denied: the limit is reached");
  }
}

/** A hold has ended before it was released: it could not be renewed in time, or somebody else has ended it. */
export class LostError extends Error {
  override name = "LostError";

  constructor() {
    super("the hold is lost");
  }
}

/** Replies that tell of the server's condition, and not of a mistake of the caller's. */
const CONDITION = new RegExp(
  "^(NOAUTH|WRONGPASS|LOADING|MASTERDOWN|READONLY|MISCONF|OOM|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER|MOVED|ASK|TRYAGAIN" +
    "|ERR max number of clients)\\b",
);

/** How error replies begin: a code in capitals. Errors of the network do not. */
const REPLY = /^[A-Z]{3,} /;

/** An error of a client library, as one of the above. */
export function understood(error: unknown): RefusedError | UnavailableError {
  const cause = error instanceof Error ? error : new Error(String(error));
  if (cause instanceof RefusedError || cause instanceof UnavailableError) return cause;
  const text = cause.message.replace(/^EXECABORT .*?: /, "");
  if (/^ERR unknown command .*swlimit/i.test(text)) return new ModuleMissingError(cause);
  if (REPLY.test(text) && !CONDITION.test(text)) return new RefusedError(cause.message, { cause });
  return new UnavailableError(cause.message, { cause });
}
