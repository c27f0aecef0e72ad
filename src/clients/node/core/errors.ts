/** The errors of limiters. */

import type { Decision } from "./decision.js";
import { quoted, type Reason, reasonOfError, reasonOfReply } from "./reasons.js";

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

  constructor(
    message: string,
    /** Why: one word, the same in every language. */
    readonly reason: Reason,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** The command was not sent. */
export class NotAskedError extends UnavailableError {
  override name = "NotAskedError";
}

/** The caller's deadline came first: that says nothing about the server. */
export class DeadlineError extends UnavailableError {
  override name = "DeadlineError";

  constructor() {
    super("the caller's deadline came before the reply", "no_answer");
  }
}

/** The server belongs to a cluster, and the client does not follow its redirections. */
export class ClusterClientError extends RefusedError {
  override name = "ClusterClientError";

  constructor(cause: Error) {
    super(
      "this server belongs to a cluster, and the client does not follow redirections: use createCluster of the " +
        "package redis, Cluster of the packages ioredis and iovalkey, or GlideClusterClient of @valkey/valkey-glide",
      { cause },
    );
  }
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

const ONE_TAG =
  ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too";

/** Whether a server replied with this error, and has not executed the command. */
export function isReply(error: Error): boolean {
  return reasonOfReply(error.message) !== undefined;
}

/** An error of a client library, as one of the above. */
export function classify(error: unknown): RefusedError | UnavailableError {
  const cause = error instanceof Error ? error : new Error(String(error));
  if (cause instanceof RefusedError || cause instanceof UnavailableError) return cause;
  const text = cause.message.replace(/^EXECABORT .*?: /, "");
  const reason = reasonOfReply(text);
  if (reason === "module_missing") return new ModuleMissingError(cause);
  if (text.startsWith("CROSSSLOT ")) return new RefusedError(cause.message + ONE_TAG, { cause });
  if (reason === null) return new RefusedError(cause.message, { cause });
  return new UnavailableError(quoted(cause.message), reason ?? reasonOfError(cause) ?? "other", { cause });
}
