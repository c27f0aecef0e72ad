/** The words of commands, and the reply that most of them have. */

import { RefusedError } from "./errors.js";
import type { Demand, Reply } from "./window.js";

/** A quota and what is demanded of it. */
export function quotaWords({ limit, window, resolution, cost, partial, strict }: Demand): string[] {
  const words = [String(limit), `${window}ms`, `${resolution}ms`];
  if (cost !== 1) words.push("COST", String(cost));
  if (partial) words.push("PARTIAL");
  if (strict) words.push("STRICT");
  return words;
}

/** Of a block of so many ms, if any. */
export function blockWords(block: number): string[] {
  return block > 0 ? ["BLOCK", `${block}ms`] : [];
}

/** The instant that TIME says, in ms of Unix time. */
export function instantOf(time: unknown): number {
  const [seconds, micros] = (time as unknown[]).map(Number) as [number, number];
  return seconds * 1000 + Math.floor(micros / 1000);
}

/** A reply of five integers, which some clients give as texts. */
export function replyOf(reply: unknown): Reply {
  if (!Array.isArray(reply) || reply.length !== 5) throw new RefusedError(`unexpected reply: ${JSON.stringify(reply)}`);
  return (typeof reply[0] === "number" ? reply : reply.map(Number)) as Reply;
}
