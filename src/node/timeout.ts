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

/** Whether a promise comes to something before so many ms have passed. */
export async function inTime(promise: Promise<void>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const found = await Promise.race([promise.then(() => true), late]);
  clearTimeout(timer);
  return found;
}
