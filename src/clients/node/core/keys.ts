/** Keys as the server has them, and as this process remembers them. */

import { createHash } from "node:crypto";
import { shown } from "./duration.js";

/** Longer keys are remembered by their hash, which limits memory in bytes, too. */
const LONGEST = 128;

const TAGGED = /^[^{]*\{[^}]+\}/;

/**
 * A key at the server. Lone surrogates are replaced as they are when sent, so that an invalidation names the same key.
 */
export function keyWithPrefix(prefix: string, key: string): string {
  if (typeof key !== "string") throw new TypeError(`key must be a string, not ${shown(key)}`);
  const name = prefix + key;
  return name.isWellFormed() ? name : name.toWellFormed();
}

/** Whether a part in braces decides the slot that a cluster keeps this key in. */
export function hasTag(name: string): boolean {
  return TAGGED.test(name);
}

/** What stands for a key in this process's memory. */
export function shortKey(name: string): string {
  return name.length <= LONGEST ? name : createHash("sha256").update(name).digest("base64");
}

/** The same text in memory of its own: a part of a request's text would keep all of that text. */
export function independentCopy(text: string): string {
  return Buffer.from(text).toString();
}
