/** What can go wrong, apart from a denial. */

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

/**
 * The server could not be asked, or could not answer in time. Decisions are then made by the limiter's failure
 * policy.
 */
export class UnavailableError extends Error {
  override name = "UnavailableError";
}

/**
 * The replies that say what the caller did wrong. All others are conditions of the server (OOM, LOADING, READONLY …).
 */
const REFUSAL = /^(ERR|WRONGTYPE|CROSSSLOT|NOPERM|NOAUTH|WRONGPASS)\b/;

/** An error of a client library, as one of the above. */
export function understood(error: unknown): RefusedError | UnavailableError {
  const cause = error instanceof Error ? error : new Error(String(error));
  if (cause instanceof RefusedError || cause instanceof UnavailableError) return cause;
  if (/^ERR unknown command .*swlimit/i.test(cause.message)) return new ModuleMissingError(cause);
  if (REFUSAL.test(cause.message)) return new RefusedError(cause.message, { cause });
  return new UnavailableError(cause.message, { cause });
}
