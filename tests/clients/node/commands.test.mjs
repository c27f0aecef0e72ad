/** Commands are those of tests/conformance/vectors/commands.json: their words, keys, calls of the script, and undos. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { COLD } from "../../../src/clients/node/dist/esm/core/warm-up.js";
import {
  isNewer,
  isRead,
  keyOf,
  keysOf,
  undoOf,
  warmsUp,
  wordsOf,
} from "../../../src/clients/node/dist/esm/protocol/commands.js";
import { isScripted, SHA, scriptCall } from "../../../src/clients/node/dist/esm/protocol/script-fallback.js";
import { vectors } from "./support.mjs";

/** The instant of what is dated. */
const NOW = 1_760_054_400_000;

// No limiter asks for TOP.
const entries = vectors("commands").filter(({ command }) => command !== "TOP");

function rate({ key, limit, window, resolution, cost = 1, partial = false, strict = false, warm_up, cold = COLD }) {
  const warmUp = warm_up ? { duration: warm_up, cold } : undefined;
  return { key, demand: { limit, window, resolution, cost, partial, strict, warmUp } };
}

const TYPED = {
  ALLOW: ({ block, ...fields }) => ({ ...rate(fields), block }),
  PEEK: rate,
  RECORD: ({ age, block, ...fields }) => ({ ...rate(fields), age, block }),
  ACQUIRE: ({ timeout, ...fields }) => ({ ...rate(fields), timeout }),
  MALLOW: ({ members, strict }) => ({ rates: members.map((member) => rate({ ...member, strict })) }),
  REFUND: ({ age, since, ...fields }) =>
    age === null && since === null ? fields : { ...fields, dated: age === null ? { since } : { age } },
  HOLD: ({ wait, ...fields }) => ({ ...fields, wait: wait ?? undefined }),
  ADMIT: ({ clauses, strict }) => ({
    clauses: clauses.map((clause) => (clause.kind === "RATE" ? { kind: "RATE", ...rate(clause) } : clause)),
    strict,
  }),
};

function typed({ command: name, fields }) {
  return { name, ...(TYPED[name]?.(fields) ?? fields) };
}

test("their words and keys", () => {
  assert.ok(entries.length > 100);
  for (const entry of entries) {
    const command = typed(entry);
    assert.deepEqual(wordsOf(command), entry.words);
    assert.deepEqual([keysOf(command), keyOf(command)], [entry.keys, entry.keys[0]]);
    assert.equal(isRead(command), entry.reads, entry.command);
    assert.equal(isNewer(command) || warmsUp(command), entry.since !== "0.1.0", entry.command);
  }
});

test("what the script gets", () => {
  for (const entry of entries) {
    const { script, keys, reads, words } = entry;
    const command = typed({ ...entry, fields: { ...entry.fields, wait: null } }); // nobody waits there
    assert.equal(isScripted(command), script !== null, String(words));
    if (!script) continue;
    const call = (takesBytes, at = null) => scriptCall(command, "EVALSHA_RO", takesBytes, at);
    const start = [reads ? "EVALSHA_RO" : "EVALSHA", SHA, String(keys.length), ...keys];
    const told = (account) => [...start, ...(typeof account === "string" ? [Buffer.from(account, "hex")] : account)];
    assert.deepEqual(call(true), told(script.packed ?? script.words));
    if (script.dated) assert.deepEqual(call(true, NOW), told(script.dated));
    const behindKeys = words.slice((entry.command === "MALLOW" ? 2 : 1) + keys.length);
    assert.deepEqual(call(false), told(script.words ?? [entry.command, ...behindKeys]));
  }
});

test("how they are undone", () => {
  for (const entry of entries) {
    const { fields, undo: cases, words } = entry;
    if ([fields, ...(fields.clauses ?? [])].some(({ own_id }) => own_id === false)) continue; // callers choose no ids
    const undo = undoOf(typed(entry));
    assert.equal(undo === null, cases.length === 0, String(words));
    for (const { reply, since = null, commands, repeat_for } of cases) {
      const after = undo.after(reply?.error ? new Error(reply.error) : reply, since);
      assert.deepEqual(after.map(wordsOf), commands, `${words} ${JSON.stringify(reply)}`);
      if (after.length > 0) assert.equal(undo.repeatFor, repeat_for ?? 0);
    }
  }
});
