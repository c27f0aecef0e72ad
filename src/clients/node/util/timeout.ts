/** Waiting for a limited time. */

/** The longest that a timer of Node.js can be set to; a longer one would fire at once. */
export const LONGEST_TIMER = 2 ** 31 - 1;

/** The promise's result; an error when it takes longer than so many ms, or the signal aborts. */
export function within<T>(promise: Promise<T>, ms: number, signal?: AbortSignal): Promise<T> {
  return first(promise, ms, signal, (_, reject) => reject(new Error(`no reply within ${ms} ms`)));
}

/** Whether a promise resolves within so many ms. */
export function inTime(promise: Promise<unknown>, ms: number, signal?: AbortSignal): Promise<boolean> {
  const found = promise.then(() => true);
  return first(found, ms, signal, (resolve) => resolve(false));
}

/** Wait for so many ms, or until the signal aborts. */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  await inTime(new Promise(() => {}), ms, signal);
}

/** Settles with the promise, by `late` after so many ms, or with the signal. */
function first<T>(
  promise: Promise<T>,
  ms: number,
  signal: AbortSignal | undefined,
  late: (resolve: (value: T) => void, reject: (error: unknown) => void) => void,
): Promise<T> {
  return new Promise((resolve, reject) => {
    // Timers run before input is read. After a stall of the event loop, a reply that has already come still counts.
    let immediate: NodeJS.Immediate | undefined;
    const timer = setTimeout(
      () => {
        immediate = setImmediate(() => {
          end();
          late(resolve, reject);
        });
      },
      Math.min(ms, LONGEST_TIMER),
    );
    const abort = () => {
      end();
      reject(signal?.reason);
    };
    const end = () => {
      clearTimeout(timer);
      clearImmediate(immediate);
      signal?.removeEventListener("abort", abort);
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
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort);
  });
}
