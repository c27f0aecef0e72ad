/** Not waiting for ever. */

import { UnavailableError } from "./errors.js";

/** What a promise comes to, if it does so within so many ms; else an UnavailableError. */
export function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    // Timers run before input is read: after a stall of the event loop, a reply that is there already still counts.
    let immediate: NodeJS.Immediate | undefined;
    const timer = setTimeout(() => {
      immediate = setImmediate(() => reject(new UnavailableError(`no reply within ${ms} ms`)));
    }, ms);
    const end = () => {
      clearTimeout(timer);
      clearImmediate(immediate);
    };
    promise.then(
      (value) => {
        end();
        resolve(value);
      },
      (error) => {
        end();
        reject(error);
      },
    );
  });
}
