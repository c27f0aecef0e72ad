/** Why a client can't connect: the last error that it has emitted since it was connected. */

import { errorMonitor } from "node:events";

interface Emitter {
  on(event: string | symbol, listener: (error: never) => void): unknown;
}

/** A function that returns the error; undefined while the client is connected, or has not tried. */
export function connectErrorOf(client: Emitter): () => unknown {
  let last: unknown;
  // It sees errors and handles none: the caller's own listeners do.
  client.on(errorMonitor, (error: unknown) => {
    last = error;
  });
  client.on("ready", () => {
    last = undefined;
  });
  return () => last;
}
