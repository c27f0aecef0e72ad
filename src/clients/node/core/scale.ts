/** Products beyond 2^53, exactly. */

import { MAX_EXACT } from "./duration.js";

/** a·b / c, rounded to a whole number. */
export function scale(a: number, b: number, c: number, rounded: "up" | "down"): number {
  const product = a * b;
  if (product <= MAX_EXACT) {
    const rest = product % c;
    return (product - rest) / c + (rounded === "up" && rest > 0 ? 1 : 0);
  }
  const exact = BigInt(a) * BigInt(b);
  return Number((rounded === "up" ? exact + BigInt(c) - 1n : exact) / BigInt(c));
}
