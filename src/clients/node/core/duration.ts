/** Durations, as the commands read them, and checks of numbers. */

/** The longest window, in ms: 3650 days. */
export const MAX_WINDOW = 3650 * 24 * 60 * 60 * 1000;

/** The largest limit, cost, count and instant: 2^53 − 1. */
export const MAX_EXACT = Number.MAX_SAFE_INTEGER;

/** The maximum of subintervals that a server can be configured to allow. */
export const MAX_SUBINTERVALS = 1_000_000;

const UNITS: Record<string, number> = { ms: 1, "": 1000, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * A duration: a whole number of ms, or a text such as "250ms", "60s", "5m", "1h", "7d". A text without a unit is
 * seconds.
 */
export type Duration = number | string;

/** The duration of a text, in ms; null when it is no duration from 0 ms to 3650 days. */
export function parseDuration(text: string): number | null {
  const found = /^([0-9]+)(ms|[smhd]?)$/i.exec(text);
  if (!found || text.endsWith("\n")) return null;
  const ms = Number(found[1]) * (UNITS[(found[2] as string).toLowerCase()] as number);
  return ms <= MAX_WINDOW ? ms : null;
}

/** The shortest text of a duration. */
export function durationText(ms: number): string {
  const [unit, length] = Object.entries(UNITS).findLast(([unit, length]) => unit !== "" && ms % length === 0) as [
    string,
    number,
  ];
  return `${ms / length}${unit}`;
}

/** A wrong value as its error shows it: a text in quotes. */
export function shown(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "function") return "a function";
  return Array.isArray(value) ? "a list" : String(value);
}

/** A duration in ms, of at least `least`; the error names `what`. */
export function milliseconds(duration: Duration, what: string, least = 1): number {
  const ms = typeof duration === "string" ? parseDuration(duration) : duration;
  if (Number.isSafeInteger(ms) && (ms as number) >= 0 && (ms as number) < least) {
    throw new RangeError(`${what} must be at least ${least} ms, not ${shown(duration)}`);
  }
  if (ms === null || !Number.isSafeInteger(ms) || ms < least || ms > MAX_WINDOW) {
    throw new RangeError(
      `${what} must be a duration such as "250ms", "60s" or "1h", or whole milliseconds, not ${shown(duration)}`,
    );
  }
  return ms;
}

/** A whole number from `least` to 2^53 − 1; the error names `what`. */
export function integer(value: number, what: string, least: number): number {
  if (!Number.isSafeInteger(value) || value < least) {
    throw new RangeError(`${what} must be an integer between ${least} and ${MAX_EXACT}, not ${shown(value)}`);
  }
  return value;
}

/** True or false, and no other value; the error names `what`. */
export function flag(value: boolean, what: string): boolean {
  if (typeof value !== "boolean") throw new TypeError(`${what} must be true or false, not ${shown(value)}`);
  return value;
}

/** The length of a subinterval: the given one, or the default. */
export function resolutionOf(window: number, asked: Duration | undefined): number {
  const resolution = asked === undefined ? usualResolution(window) : milliseconds(asked, "resolution");
  if (window % resolution !== 0) throw new RangeError("resolution must divide the window evenly");
  if (window / resolution > MAX_SUBINTERVALS) {
    throw new RangeError(
      `window / resolution is ${window / resolution} subintervals, above what any server allows (${MAX_SUBINTERVALS})`,
    );
  }
  return resolution;
}

/** The default: the largest divisor of the window with 12 … 4096 subintervals; otherwise the window. */
export function usualResolution(window: number): number {
  for (let subintervals = 12; subintervals <= 4096; subintervals++) {
    if (window % subintervals === 0) return window / subintervals;
  }
  return window;
}

/**
 * How long a limiter may wait, in ms, for a caller that waits for `left` ms: less by a tenth, but at least by 1 and at
 * most by 5 ms.
 */
export function callerDeadline(left: number): number {
  return left < 2 ? 0 : left - Math.min(5, Math.max(1, left / 10));
}
