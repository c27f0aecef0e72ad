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
import { BoundedMap } from "../util/bounded-map.js";
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
  warmsUp,
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

/** What a module replies that does not know WARMUP: behind the quota of one of several limits it expects another limit. */
const NO_WARM_UP = /^ERR (syntax error near 'WARMUP'|limit must be )/;

/** The module's error for keys of the script, and the script's for keys of the module. */
const WRONG_TYPE = /^WRONGTYPE\b/;

/** A command is sent at most so often: meanwhile the module may be loaded, or the script forgotten. */
export const SCRIPT_TRIES = 5;

/** The script's maximum of subintervals. */
export const SCRIPT_SUBINTERVALS = 4096;

const says = (error: unknown, text: RegExp) => error instanceof Error && text.test(error.message);

/** Whether a server lacks the command to which it replied with this error. */
export const isUnknown = (error: unknown) => says(error, UNKNOWN);

/** The module is looked for, and a script by its hash, once in so many ms, up to a half earlier or later. */
export const LOOK = 60_000;

/** Of so many keys it is known that the script's text was sent for them. */
const MAX_TEXTS = 1000;

/** What the health of a server learns. */
interface ScriptHealth {
  tookOver(key: string): void;
  losesScripts(): void;
}

/** When to look next. */
export const nextLook = () => performance.now() + LOOK * (0.5 + Math.random());

/** What the connections to one server share: which texts it was sent, and when the module is looked for. */
export class ServerScripts {
  /** The texts that are under way: one at a time. */
  readonly loading = new Map<Script, Promise<unknown>>();
  private readonly texts = new BoundedMap<true>(MAX_TEXTS);
  /** Until then each request carries the text. */
  private textsUntil: number | null = null;
  private looked: number | null = null;

  constructor(readonly health: ScriptHealth) {}

  /** Whether each request carries the text: the server has lost one that it had executed. */
  get isForgetful(): boolean {
    return this.textsUntil !== null && performance.now() < this.textsUntil;
  }

  /** The text is sent for this key. */
  sendsText(key: string): void {
    if (this.texts.has(key)) {
      this.textsUntil = nextLook();
      this.health.losesScripts();
    }
    this.texts.set(key, true);
  }

  /** The server has executed a script by its hash. */
  knows(): void {
    this.textsUntil = null;
  }

  /** Whether to ask in the module's words now, while the script decides. */
  looksForModule(): boolean {
    this.looked ??= nextLook();
    if (performance.now() < this.looked) return false;
    this.looked = nextLook();
    return true;
  }
}

export class Dialect {
  /** What decides; null until that is known. */
  backend: "module" | "script" | null = null;
  private readOnly = "EVALSHA_RO";
  /** The script may not call TIME, so this machine's clock decides. */
  private usesOwnClock = false;
  private isLoaded = false;
  /** The module lacks commands that newer ones have. */
  private isOld = false;

  /** `takesBytes`: whether words and replies may be bytes, which cost the script less. */
  constructor(
    private readonly send: Send,
    private readonly takesBytes: boolean,
    private readonly scripts: ServerScripts,
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
      const isScript = use === "never" || (this.backend === "script" && !this.scripts.looksForModule());
      const byScript = isScript && isScripted(command);
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
    if (warmsUp(command) && says(error, NO_WARM_UP)) {
      throw new NeedsModuleError("WARMUP", error as Error, true);
    }
    if (!says(error, WRONG_TYPE) || tries === 0) throw error;
    let isMoved = false;
    for (const key of keysOf(command)) {
      const reply = await this.run(TAKING_OVER, ["EVALSHA", TAKING_OVER.sha, "1", key], key);
      if (Number(reply) !== 1) continue;
      isMoved = true;
      this.scripts.health.tookOver(key);
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
      const isKnown = use === "auto" && this.isLoaded && !this.scripts.isForgetful;
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

  /** The reply to a call of a script. Where the server lacks the script, one request at a time carries its text. */
  private async run(script: Script, words: Word[], key: string): Promise<unknown> {
    const { scripts } = this;
    while (!scripts.isForgetful) {
      try {
        const reply = await this.send(words, key);
        scripts.knows();
        return reply;
      } catch (error) {
        if (!says(error, NO_SCRIPT)) throw error;
      }
      const loading = scripts.loading.get(script);
      if (!loading) break;
      await loading.catch(() => {});
    }
    scripts.sendsText(key);
    const sent = this.send(withText(words, script), key);
    scripts.loading.set(script, sent);
    try {
      return await sent;
    } finally {
      if (scripts.loading.get(script) === sent) scripts.loading.delete(script);
    }
  }
}

/** Whether the script can decide in place of the module. */
export function isScripted({ name }: Command): boolean {
  return name !== "ACQUIRE";
}

/** The same call with the script's text: it loads where it runs. */
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
  if (reply.length < 24) return reply.toString("latin1");
  const { limit } = (command as CommandNamed<"ALLOW" | "PEEK">).demand;
  const [first, second, resetAfter] = [0, 8, 16].map((at) => reply.readDoubleLE(at)) as [number, number, number];
  return first > 0 ? [first, limit, second, 0, resetAfter] : [0, limit, Math.abs(first), second, resetAfter];
}

/** What a demand is packed as beside the flags, or keeps it from being packed. */
type Unflagged = "limit" | "window" | "resolution" | "cost" | "warmUp";

/** Where a demand's options stand among the packed flags; an option without a place here does not compile. */
const FLAGS: { readonly [option in Exclude<keyof Demand, Unflagged>]: number } = {
  partial: 2,
  strict: 4,
};

/** Beside the flags of its demands: a MALLOW, all or nothing. */
const ALL = 8;

/**
 * ALLOW, PEEK, or MALLOW of several keys as one word, which the server reads faster than several; null where that is
 * impossible.
 */
function pack(command: Command, instant: number | null): Buffer | null {
  if (command.name !== "ALLOW" && command.name !== "PEEK" && command.name !== "MALLOW") return null;
  if ((command.name === "ALLOW" && command.block > 0) || warmsUp(command)) return null;
  const demands = command.name === "MALLOW" ? command.rates.map(({ demand }) => demand) : [command.demand];
  if (command.name === "MALLOW" && demands.length < 2) return null;
  const numbers = demands.flatMap(({ limit, window, resolution, cost }) => [
    limit,
    resolution,
    window / resolution,
    cost,
  ]);
  if (demands.some(({ window, resolution }) => window / resolution > SCRIPT_SUBINTERVALS)) return null;
  if (instant !== null) numbers.push(instant);
  const { partial, strict } = demands[0] as Demand;
  const packed = Buffer.allocUnsafe(1 + 8 * numbers.length);
  packed[0] = (command.name === "PEEK" ? 0 : 1) + (strict ? FLAGS.strict : 0);
  packed[0] += command.name === "MALLOW" ? ALL : partial ? FLAGS.partial : 0;
  numbers.forEach((number, place) => {
    writeInteger(packed, number, 1 + 8 * place);
  });
  return packed;
}

/** A whole number of up to 2^53 − 1, in 8 bytes. */
function writeInteger(bytes: Buffer, number: number, at: number): void {
  bytes.writeUInt32LE(number % 2 ** 32, at);
  bytes.writeUInt32LE(Math.floor(number / 2 ** 32), at + 4);
}
