/** What was really used of an admission's parts, by position or by name. */

import { integer, shown } from "../core/duration.js";
import { HoldLimiter } from "./hold.js";
import type { Part } from "./member.js";

/** The names of the parts that have units to settle: all but holds. */
export type NameOf<P> = P extends { readonly limiter: HoldLimiter }
  ? never
  : P extends { readonly name?: infer Name }
    ? Extract<Name, string>
    : never;

/** Used units by name. What is missing, or undefined, is unknown: it stays as it was reserved. */
export type Usage<Name extends string = string> = [Name] extends [never]
  ? Record<string, never>
  : { readonly [N in Name]?: number | undefined };

/** Check the names of parts. */
export function checkNames(parts: readonly Part[]): void {
  const names = parts.map(({ name }) => name).filter((name) => name !== undefined);
  for (const name of names) {
    if (typeof name !== "string" || name === "") throw new TypeError(`name must be a text, not ${shown(name)}`);
  }
  if (new Set(names).size < names.length) throw new TypeError("two parts have the same name");
}

/** The known used units by name, once they are checked. */
export function knownUsage(parts: readonly Part[], usage: object): Record<string, number> {
  const names = new Set(settledOf(parts).map(({ name }) => name));
  const known = Object.entries(usage).filter(([, units]) => units !== undefined);
  for (const [name, units] of known) {
    if (!names.has(name)) throw new TypeError(`no part with units to settle is called ${name}`);
    integer(units, name, 0);
  }
  return Object.fromEntries(known);
}

/** The units that were used of each part but holds: as they were given, by position or by name. */
export function usedUnits(parts: readonly Part[], used: readonly unknown[]): number[] {
  const settled = settledOf(parts);
  const usage = used.find((one) => typeof one === "object" && one !== null);
  if (usage) {
    if (used.length > 1) throw new TypeError("settle takes names or positions, not both");
    const known = knownUsage(parts, usage);
    return settled.map(({ name = "", cost = 1 }) => known[name] ?? cost);
  }
  for (const units of used) integer(units as number, "used", 0);
  if (used.length === settled.length) return used as number[];
  throw new TypeError(`settle takes names, or the used units of each limit except holds: ${settled.length} numbers`);
}

function settledOf(parts: readonly Part[]): Part[] {
  return parts.filter(({ limiter }) => !(limiter instanceof HoldLimiter));
}
