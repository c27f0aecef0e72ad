/** Rates as text, such as "100/minute", and the keys of several rates. */

import { MAX_EXACT, MAX_WINDOW, shown } from "./duration.js";
import { hasTag } from "./keys.js";

/** Units per window, in ms. */
export interface ParsedRate {
  readonly limit: number;
  readonly window: number;
}

const UNITS = new Map(
  Object.entries({
    ms: 1,
    "s sec second seconds": 1000,
    "m min minute minutes": 60_000,
    "h hour hours": 3_600_000,
    "d day days": 86_400_000,
  }).flatMap(([names, ms]) => names.split(" ").map((name) => [name, ms] as const)),
);
const SPACES = /^[ \t\r\n]+|[ \t\r\n]+$/g;
const WITHOUT_UNIT = /^[0-9]+([ \t\r\n]*\/([ \t\r\n]*[0-9]+)?)?$/i;
const OF_NGINX = /^[0-9]+[ \t\r\n]*r[ \t\r\n]*\/[ \t\r\n]*[sm]$/i;
const RATE = /^([0-9]+)[ \t\r\n]*\/[ \t\r\n]*([0-9]+)?[ \t\r\n]*([a-z]+)$/i;
const CALENDAR = /^(month|year)s?$/;

/** Rates such as "100/hour; 5/second", in the text's order. */
export function parseRates(text: string): [ParsedRate, ...ParsedRate[]] {
  if (typeof text !== "string") throw new TypeError(`rates must be a text such as "100/minute", not ${shown(text)}`);
  const whole = trimmed(text);
  if (whole === "") throw new RangeError("no rate: write one such as 100/minute");
  const parts = whole.split(/[;,]/).map(trimmed);
  if (parts.includes("")) throw refused(whole, "has a separator without a rate: write such as 100/hour; 5/second");
  const rates = parts.map(parsed) as [ParsedRate, ...ParsedRate[]];
  for (const [at, { window }] of rates.entries()) {
    const first = rates.findIndex((rate) => rate.window === window);
    if (first < at) throw refused(`${parts[first]}' and '${parts[at]}`, "have the same window: keep the lower limit");
  }
  return rates;
}

/** Exactly one rate. */
export function parseRate(text: string): ParsedRate {
  const rates = parseRates(text);
  const [rate] = rates;
  if (rates.length > 1) throw refused(trimmed(text), `has ${rates.length} rates, and a limiter takes one: use Limits`);
  return rate;
}

/** The key of one of several rates: all of a key are in one slot of a cluster. */
export function keyOfRate(prefix: string, key: string, window: number): string {
  if (typeof key !== "string") throw new TypeError(`key must be a string, not ${shown(key)}`);
  if (key === "") throw new RangeError("key must not be empty");
  return hasTag(prefix + key) ? `${prefix}${key}:${window}` : `${prefix}{${key}}:${window}`;
}

function parsed(text: string): ParsedRate {
  if (WITHOUT_UNIT.test(text)) throw refused(text, "has no unit: write one such as 100/minute or 5/10s");
  if (OF_NGINX.test(text)) {
    throw refused(
      text,
      "is written as for nginx, where 10r/s admits one request per 100 ms: write that as 1/100ms, or ten at once as " +
        "10/second",
    );
  }
  const [, limit, count = 1, name] = RATE.exec(text) ?? [];
  if (name === undefined) throw refused(text, "is no rate: write one such as 100/minute or 5/10s");
  const unit = name.toLowerCase();
  const [, period] = CALENDAR.exec(unit) ?? [];
  if (period) {
    const remedy = `write days, such as 100/30 days, or use a budget for a calendar ${period}`;
    throw refused(text, `has no fixed length: ${remedy}`);
  }
  const ms = UNITS.get(unit);
  if (ms === undefined) throw refused(text, "has an unknown unit: write ms, second, minute, hour or day");
  const rate = { limit: Number(limit), window: Number(count) * ms };
  if (rate.limit > MAX_EXACT) throw refused(text, `has a limit above ${MAX_EXACT}: write at most that`);
  if (rate.window === 0) throw refused(text, "has no window: write at least 1 ms");
  if (rate.window > MAX_WINDOW) throw refused(text, "has a window above 3650 days: write at most that");
  return rate;
}

function trimmed(text: string): string {
  return text.replace(SPACES, "");
}

function refused(text: string, why: string): RangeError {
  return new RangeError(`'${text}' ${why}`);
}
