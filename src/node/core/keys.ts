/** Keys as the server has them, and as this process remembers them. */

import { createHash } from "node:crypto";

/** Longer names are remembered by their hash, so that memory is bounded in bytes, too. */
const LONGEST = 128;

/**
 * The name of a key at the server. Half a surrogate pair has no bytes of its own: it becomes what is sent, so that
 * an invalidation names the same key.
 */
export function nameOf(prefix: string, key: string): string {
  if (typeof key !== "string") throw new TypeError(`key must be a string, not ${String(key)}`);
  const name = prefix + key;
  return name.isWellFormed() ? name : name.toWellFormed();
}

/** What stands for a name in this process. */
export function remembered(name: string): string {
  return name.length <= LONGEST ? name : createHash("sha256").update(name).digest("base64");
}

/** The same text in memory of its own: part of a request would keep all of that request. */
export function copied(text: string): string {
  return Buffer.from(text).toString();
}
