/**
 * How a connection is asked: in the module's commands, or, where the server lacks the module, by a script that decides
 * the same. It learns which from the server's replies, and forgets it when the server may be another one. A server whose
 * module is too old for a command is never asked by the script: its keys are the module's.
 *
 * Once the module is loaded, keys that the script has written are handed over to it when they are asked for.
 */

import { createHash } from "node:crypto";
import { classify, ModuleMissingError, NeedsModuleError, RefusedError } from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import type { Demand } from "../core/window.js";
import {
  type AnyCommand,
  argumentsOf,
  type Command,
  type CommandNamed,
  fullName,
  isNewer,
  isRead,
  keyOf,
  keysOf,
  wordsOf,
} from "./commands.js";
import { SCRIPT, TAKEOVER } from "./script-text.js";

/** A word of a command: text, or bytes. */
export type Word = string | Buffer;

/** Sends a command to the server that has a key. */
export type Send = (words: Word[], key: string) => Promise<unknown>;

interface Script {
  readonly text: string;
  readonly sha: string;
}

const [DECIDING, TAKING_OVER] = [SCRIPT, TAKEOVER].map((text) => ({
  text,
  sha: createHash("sha1").update(text).digest("hex"),
})) as [Script, Script];

export const SHA = DECIDING.sha;

/** Errors of servers that lack a command. Managed servers have their own texts. */
const UNKNOWN = /^ERR (unknown command|command is not available|unsupported command)/i;

/** The script's error when it may not call TIME. */
const NO_CLOCK = /^ERR no clock: /;

const NO_SCRIPT = /^NOSCRIPT\b/;

/** The module's error for keys of the script, and the script's for keys of the module. */
const WRONG_TYPE = /^WRONGTYPE\b/;

/** A command is sent at most so often: meanwhile the module may be loaded, or the script forgotten. */
export const SCRIPT_TRIES = 5;

/** The script's maximum of subintervals. */
export const SCRIPT_SUBINTERVALS = 4096;

const says = (error: unknown, text: RegExp) => error instanceof Error && text.test(error.message);

/** Whether a server lacks the command to which it replied with this error. */
export const isUnknown = (error: unknown) => says(error, UNKNOWN);

export class Dialect {
  /** What decides; null until that is known. */
  backend: "module" | "script" | null = null;
  private readOnly = "EVALSHA_RO";
  /** The script may not call TIME, so this machine's clock decides. */
  private usesOwnClock = false;
  private readonly loading = new Map<Script, Promise<unknown>>();
  private isLoaded = false;
  /** The module lacks commands that newer ones have. */
  private isOld = false;

  /**
   * `takesBytes`: whether words and replies may be bytes, which cost the script less; `tookOver` is called with each key
   * of the script that the module has now.
   */
  constructor(
    private readonly send: Send,
    private readonly takesBytes: boolean,
    private readonly tookOver: (key: string) => void,
  ) {}

  ask(command: AnyCommand, use: ModuleUse): Promise<unknown> {
    if (command.name === null) return this.send(wordsOf(command), keyOf(command));
    if (use === "never" || (use === "auto" && this.backend !== "module")) return this.find(command, use);
    return this.send(wordsOf(command), keyOf(command)).then(
      (reply) => {
        this.backend ??= "module";
        return reply;
      },
      (error) => {
        if (use === "always" || !isUnknown(error)) return this.handOver(command, error);
        if (this.isOld && isNewer(command)) throw new NeedsModuleError(fullName(command), error, true);
        this.forget();
        return this.find(command, use);
      },
    );
  }

  /** Start over: the server may be another one. */
  forget(): void {
    this.backend = null;
    this.isLoaded = false;
    this.isOld = false;
    this.readOnly = "EVALSHA_RO";
    this.usesOwnClock = false;
  }

  private async find(command: Command, use: ModuleUse): Promise<unknown> {
    for (let round = 1; ; round++) {
      const byScript = isScripted(command) && (use === "never" || this.backend === "script");
      if (use === "never" && !byScript) throw new NeedsModuleError(fullName(command));
      try {
        if (byScript) return await this.askScript(command, use);
        const reply = await this.askModule(command);
        this.backend = "module"; // also when it was loaded just now
        return reply;
      } catch (error) {
        if (round === SCRIPT_TRIES || !(error instanceof Error)) throw error;
        await this.mend(error, command, byScript);
      }
    }
  }

  /** Prepare for another try, or fail. */
  private async mend(error: Error, command: Command, byScript: boolean): Promise<void> {
    if (byScript && NO_SCRIPT.test(error.message)) {
      this.forget(); // a server that has lost its scripts may be another one
    } else if (byScript && NO_CLOCK.test(error.message) && command.name !== "INFO") {
      this.usesOwnClock = true;
    } else if (!isUnknown(error)) {
      throw error;
    } else if (!byScript) {
      if (!isScripted(command)) throw new NeedsModuleError(fullName(command), error);
      if (isNewer(command) && (await this.hasModule(command))) {
        this.backend = "module";
        this.isOld = true;
        throw new NeedsModuleError(fullName(command), error, true);
      }
      this.backend = "script";
    } else if (isRead(command) && this.readOnly === "EVALSHA_RO") {
      this.readOnly = "EVALSHA";
    } else {
      this.forget();
      throw new ModuleMissingError(error);
    }
  }

  /** Whether the server knows a command that every module has: without arguments, it is an error, and does nothing. */
  private async hasModule(command: Command): Promise<boolean> {
    try {
      await this.send(["SWLIMIT.PEEK"], keyOf(command));
    } catch (error) {
      if (!(classify(error) instanceof RefusedError)) throw error;
      return !isUnknown(error);
    }
    return true;
  }

  private askModule(command: Command): Promise<unknown> {
    return this.send(wordsOf(command), keyOf(command)).catch((error) => this.handOver(command, error));
  }

  /** The module's reply once it has the keys that the script has written, where they were what it refused. */
  private async handOver(command: Command, error: unknown, tries = SCRIPT_TRIES): Promise<unknown> {
    if (!says(error, WRONG_TYPE) || tries === 0) throw error;
    let isMoved = false;
    for (const key of keysOf(command)) {
      const reply = await this.run(TAKING_OVER, ["EVALSHA", TAKING_OVER.sha, "1", key], key);
      if (Number(reply) !== 1) continue;
      isMoved = true;
      this.tookOver(key);
    }
    const again = this.send(wordsOf(command), keyOf(command));
    // Such a key may have been emptied meanwhile, and made again by a client of the script.
    return isMoved ? again.catch((cause) => this.handOver(command, cause, tries - 1)) : again;
  }

  /** The script's reply, or the module's where another client has handed the key over to it. */
  private async askScript(command: Command, use: ModuleUse): Promise<unknown> {
    const key = keyOf(command);
    const at = this.usesOwnClock && command.name !== "INFO" ? Date.now() : null;
    const words = scriptCall(command, this.readOnly, this.takesBytes, at);
    try {
      const isKnown = use === "auto" && this.isLoaded;
      const reply = await (isKnown ? this.send(words, key) : this.run(DECIDING, words, key));
      this.backend ??= "script";
      this.isLoaded = true;
      return unpacked(reply, command);
    } catch (error) {
      if (!says(error, WRONG_TYPE)) throw error;
      const reply = await this.askModule(command).catch((cause) => {
        throw isUnknown(cause) ? error : cause;
      });
      if (use === "auto") this.backend = "module";
      return reply;
    }
  }

  /** The reply to a call of a script, which is loaded where the server lacks it. */
  private run(script: Script, words: Word[], key: string): Promise<unknown> {
    const orElse = (send: () => Promise<unknown>) => (error: unknown) => {
      if (!says(error, NO_SCRIPT)) throw error;
      return send();
    };
    return this.send(words, key)
      .catch(orElse(() => this.load(script, key).then(() => this.send(words, key))))
      .catch(orElse(() => this.send(withText(words, script), key)));
  }

  private load(script: Script, key: string): Promise<unknown> {
    let loading = this.loading.get(script);
    if (!loading) {
      loading = this.send(["SCRIPT", "LOAD", script.text], key).finally(() => this.loading.delete(script));
      this.loading.set(script, loading);
    }
    return loading;
  }
}

/** Whether the script can decide in place of the module. */
export function isScripted({ name }: Command): boolean {
  return name !== "ACQUIRE";
}

/**
 * The same call with the script's text. It goes where the key is; a load names no key, and in a cluster that has just
 * changed it may have gone to another node.
 */
function withText([call, , ...words]: Word[], { text }: Script): Word[] {
  return [(call as string).replace("SHA", ""), text, ...words];
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
