/**
 * How a connection is asked: in the module's commands, or, where the server lacks the module, by a script that decides
 * the same. It learns which from the server's replies, and forgets it when the server may be another one.
 */

import { createHash } from "node:crypto";
import { ModuleMissingError, NeedsModuleError } from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import type { Demand } from "../core/window.js";
import {
  type AnyCommand,
  argumentsOf,
  type Command,
  type CommandNamed,
  fullName,
  isRead,
  keyOf,
  keysOf,
  takesHold,
  wordsOf,
} from "./commands.js";
import { SCRIPT } from "./script-text.js";

/** A word of a command: text, or bytes. */
export type Word = string | Buffer;

type Send = (words: Word[], key: string) => Promise<unknown>;

export const SHA = createHash("sha1").update(SCRIPT).digest("hex");

/** The commands that the script has; ADMIT only without a hold. */
const SCRIPTED: ReadonlySet<string> = new Set(
  "ALLOW PEEK RECORD REFUND BLOCK UNBLOCK INFO MALLOW BUDGET ADMIT".split(" "),
);

/** Errors of servers that lack a command. Managed servers have their own texts. */
const UNKNOWN = /^ERR (unknown command|command is not available|unsupported command)/i;

/** The error of a server that has a command, of which it got only the name. */
const KNOWN = /^ERR wrong number of arguments/i;

/** The script's error when it may not call TIME. */
const NO_CLOCK = "ERR no clock: ";

/** A command is sent at most so often: meanwhile the module may be loaded, or the script forgotten. */
export const SCRIPT_TRIES = 5;

/** The script's maximum of subintervals. */
export const SCRIPT_SUBINTERVALS = 4096;

export class Dialect {
  /** What decides; null until that is known. */
  backend: "module" | "script" | null = null;
  private readOnly = "EVALSHA_RO";
  /** The script may not call TIME, so this machine's clock decides. */
  private usesOwnClock = false;
  private loading: Promise<unknown> | null = null;
  private isLoaded = false;
  /** Commands that the server lacks. */
  private readonly lacks = new Set<Command["name"]>();

  /** `takesBytes`: whether words and replies may be bytes, which cost the script less. */
  constructor(
    private readonly send: Send,
    private readonly takesBytes: boolean,
  ) {}

  ask(command: AnyCommand, use: ModuleUse): Promise<unknown> {
    if (use === "always" || command.name === null) return this.send(wordsOf(command), keyOf(command));
    if (use === "never" || this.backend !== "module" || this.lacks.size > 0) return this.find(command, use);
    return this.send(wordsOf(command), keyOf(command)).catch((error) => {
      if (!(error instanceof Error && UNKNOWN.test(error.message))) throw error;
      this.forget();
      return this.find(command, use);
    });
  }

  /** Start over: the server may be another one. */
  forget(): void {
    this.backend = null;
    this.isLoaded = false;
    this.readOnly = "EVALSHA_RO";
    this.usesOwnClock = false;
    this.lacks.clear();
  }

  private async find(command: Command, use: ModuleUse): Promise<unknown> {
    const key = keyOf(command);
    let isLacking = false;
    for (let round = 1; ; round++) {
      const words = this.words(command, use);
      try {
        const reply = await this.send(words, key);
        const isScript = words[1] === SHA;
        this.backend ??= isScript ? "script" : "module";
        if (isScript) this.isLoaded = true;
        return unpacked(reply, command);
      } catch (error) {
        if (round === SCRIPT_TRIES || !(error instanceof Error)) throw error;
        if (error.message.startsWith("NOSCRIPT")) {
          if (isLacking) return unpacked(await this.send(withScript(words), key), command);
          isLacking = true;
        }
        await this.mend(error, command, words, use);
      }
    }
  }

  /** What to send now; one word only checks whether the server has the command. */
  private words(command: Command, use: ModuleUse): Word[] {
    const { name } = command;
    const byScript = use === "never" || this.backend === "script";
    if (this.lacks.has(name) || (byScript && !isScripted(command))) {
      if (use === "never") throw needsModule(command);
      return [fullName(command)]; // the module may be loaded by now
    }
    if (!byScript) return wordsOf(command);
    const at = this.usesOwnClock && name !== "INFO" ? Date.now() : null;
    return scriptCall(command, this.readOnly, this.takesBytes, at);
  }

  /** Prepare for another try, or fail. */
  private async mend(error: Error, command: Command, words: Word[], use: ModuleUse): Promise<void> {
    const isCheck = words.length === 1;
    if (error.message.startsWith("NOSCRIPT")) {
      // A server that has lost its scripts may be another one.
      if (use === "auto" && this.isLoaded) this.forget();
      else await this.load(keyOf(command));
      return;
    }
    if (error.message.startsWith(NO_CLOCK) && command.name !== "INFO") {
      this.usesOwnClock = true;
      return;
    }
    if (isCheck && KNOWN.test(error.message)) {
      this.forget();
      return;
    }
    if (!UNKNOWN.test(error.message)) throw error;
    if (isCheck) throw needsModule(command, error);
    const [sent] = words;
    if (sent === "EVALSHA_RO") {
      this.readOnly = "EVALSHA";
      return;
    }
    if (sent === "EVALSHA") {
      this.forget();
      throw new ModuleMissingError(error);
    }
    if (SCRIPTED.has(command.name)) {
      this.backend = "script";
      return;
    }
    this.lacks.add(command.name);
    throw needsModule(command, error);
  }

  private async load(key: string): Promise<void> {
    this.loading ??= this.send(["SCRIPT", "LOAD", SCRIPT], key).finally(() => {
      this.loading = null;
    });
    await this.loading;
    this.isLoaded = true;
  }
}

const needsModule = (command: Command, cause?: Error) =>
  new NeedsModuleError(command.name === "ADMIT" ? `${fullName(command)} of a hold` : fullName(command), cause);

/** Whether the script can decide in place of the module. */
export function isScripted(command: Command): boolean {
  return SCRIPTED.has(command.name) && !takesHold(command);
}

/**
 * The same call with the script's text. It goes where the key is; a load names no key, and in a cluster that has just
 * changed it may have gone to another node.
 */
function withScript([call, , ...words]: Word[]): Word[] {
  return [(call as string).replace("SHA", ""), SCRIPT, ...words];
}

/** A call of the script in place of a command; `at`: the instant, where this machine's clock decides. */
export function scriptCall(command: Command, readOnly: string, takesBytes: boolean, at: number | null): Word[] {
  const keys = keysOf(command);
  const words: Word[] = [isRead(command) ? readOnly : "EVALSHA", SHA, String(keys.length), ...keys];
  const packed = takesBytes ? pack(command, at) : null;
  if (packed) return [...words, packed];
  return [...words, command.name, ...argumentsOf(command), ...(at === null ? [] : ["AT", String(at)])];
}

/** Whether the last word is bytes, which ask for a reply of bytes. */
export const isPacked = (words: Word[]): boolean => words.at(-1) instanceof Buffer;

/** The module's reply, where the script has packed it into bytes. */
function unpacked(reply: unknown, command: Command): unknown {
  if (!(reply instanceof Buffer)) return reply;
  const { limit } = (command as CommandNamed<"ALLOW" | "PEEK">).demand;
  const [first, second, resetAfter] = [0, 8, 16].map((at) => reply.readDoubleLE(at)) as [number, number, number];
  return first > 0 ? [first, limit, second, 0, resetAfter] : [0, limit, Math.abs(first), second, resetAfter];
}

/** Where a demand's options stand among the packed flags; an option without a place here does not compile. */
const FLAGS: { readonly [option in Exclude<keyof Demand, "limit" | "window" | "resolution" | "cost">]: number } = {
  partial: 2,
  strict: 4,
};

/** ALLOW or PEEK as one word, which the server reads faster than several; null where that is impossible. */
function pack(command: Command, instant: number | null): Buffer | null {
  if (command.name !== "ALLOW" && command.name !== "PEEK") return null;
  if (command.name === "ALLOW" && command.block > 0) return null;
  const { limit, window, resolution, cost, partial, strict } = command.demand;
  const subintervals = window / resolution;
  if (subintervals > SCRIPT_SUBINTERVALS) return null;
  const packed = Buffer.allocUnsafe(instant === null ? 33 : 41);
  packed[0] = (command.name === "ALLOW" ? 1 : 0) + (partial ? FLAGS.partial : 0) + (strict ? FLAGS.strict : 0);
  writeInteger(packed, limit, 1);
  writeInteger(packed, resolution, 9);
  writeInteger(packed, subintervals, 17);
  writeInteger(packed, cost, 25);
  if (instant !== null) writeInteger(packed, instant, 33);
  return packed;
}

/** A whole number of up to 2^53 − 1, in 8 bytes. */
function writeInteger(bytes: Buffer, number: number, at: number): void {
  bytes.writeUInt32LE(number % 2 ** 32, at);
  bytes.writeUInt32LE(Math.floor(number / 2 ** 32), at + 4);
}
