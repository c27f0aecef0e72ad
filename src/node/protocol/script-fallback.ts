/**
 * How one connection is asked: in the module's commands, or where the server does not know them by the script that
 * decides the same. It is found out by asking, and forgotten when the server is another one.
 */

import { createHash } from "node:crypto";
import { ModuleMissingError, NeedsModuleError } from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import { SCRIPT } from "./script-text.js";

/** A word of a command: text, or bytes. */
export type Word = string | Buffer;

type Send = (words: Word[], key: string) => Promise<unknown>;

export const SHA = createHash("sha1").update(SCRIPT).digest("hex");

/** The module's commands that the script has, too; ADMIT unless it names a hold. */
const SCRIPTED = new Set("ALLOW PEEK RECORD REFUND BLOCK UNBLOCK INFO MALLOW BUDGET ADMIT".split(" "));

const PREFIX = "SWLIMIT.";

/** Whether an error says that there is no such command. Managed servers say it in words of their own. */
const UNKNOWN = /^ERR (unknown command|command is not available|unsupported command)/i;

/** The error of a server that knows a command of which it was told the name alone. */
const KNOWN = /^ERR wrong number of arguments/i;

/** With this the script says that it could not ask for the time. */
const NO_CLOCK = "ERR no clock: ";

/** A command is sent so often at most: the module may come, and scripts be forgotten, meanwhile. */
const ROUNDS = 5;

/** The most subintervals that the script has. */
const MOST_SUBINTERVALS = 4096;

export class Dialect {
  /** Which of them decides; null until that is known. */
  backend: "module" | "script" | null = null;
  private readOnly = "EVALSHA_RO";
  /** The script may not ask the server for the time, so that this machine's clock decides. */
  private usesOwnClock = false;
  private loading: Promise<unknown> | null = null;
  private isLoaded = false;
  /** Commands that the server does not know. */
  private readonly lacks = new Set<string>();

  /** `takesBytes`: whether words may be bytes, and replies, which cost the script less. */
  constructor(
    private readonly send: Send,
    private readonly takesBytes: boolean,
  ) {}

  /** The reply to a command of the module's, or to any other one. */
  ask(args: string[], key: string, use: ModuleUse): Promise<unknown> {
    const [name] = args as [string];
    if (use === "always" || !name.startsWith(PREFIX)) return this.send(args, key);
    if (use === "never" || this.backend !== "module" || this.lacks.size > 0) return this.find(args, key, use);
    return this.send(args, key).catch((error) => {
      if (!(error instanceof Error && UNKNOWN.test(error.message))) throw error;
      this.forget();
      return this.find(args, key, use);
    });
  }

  /** Find out anew: the connection, or the server, may be another one. */
  forget(): void {
    this.backend = null;
    this.isLoaded = false;
    this.readOnly = "EVALSHA_RO";
    this.usesOwnClock = false;
    this.lacks.clear();
  }

  private async find(args: string[], key: string, use: ModuleUse): Promise<unknown> {
    let isLacking = false;
    for (let round = 1; ; round++) {
      const words = this.words(args, use);
      try {
        const reply = await this.send(words, key);
        const isScript = words !== args;
        this.backend ??= isScript ? "script" : "module";
        if (isScript) this.isLoaded = true;
        return unpacked(reply, args);
      } catch (error) {
        if (round === ROUNDS || !(error instanceof Error)) throw error;
        if (error.message.startsWith("NOSCRIPT")) {
          if (isLacking) return unpacked(await this.send(withScript(words), key), args);
          isLacking = true;
        }
        await this.mend(error, args[0] as string, words, key, use);
      }
    }
  }

  /** The words to send. */
  private words(args: string[], use: ModuleUse): Word[] {
    const name = (args[0] as string).slice(PREFIX.length);
    const byScript = use === "never" || this.backend === "script";
    const isHold = name === "ADMIT" && args.includes("HOLD", 2 + Number(args[1]));
    if (this.lacks.has(name) || (byScript && (isHold || !SCRIPTED.has(name)))) {
      if (use === "never") throw needsModule(args[0] as string);
      return args.slice(0, 1); // perhaps there is the module by now
    }
    if (!byScript) return args;
    const at = this.usesOwnClock && name !== "INFO" ? Date.now() : null;
    return scripted(name, args, this.readOnly, this.takesBytes, at);
  }

  /** Make that it may be asked again, or fail. */
  private async mend(error: Error, command: string, words: Word[], key: string, use: ModuleUse): Promise<void> {
    if (error.message.startsWith("NOSCRIPT")) {
      // A server that has lost its scripts may be another one.
      if (use === "auto" && this.isLoaded) this.forget();
      else await this.load(key);
      return;
    }
    if (error.message.startsWith(NO_CLOCK) && command !== "SWLIMIT.INFO") {
      this.usesOwnClock = true;
      return;
    }
    if (words.length === 1 && KNOWN.test(error.message)) {
      this.forget();
      return;
    }
    if (!UNKNOWN.test(error.message)) throw error;
    if (words.length === 1) throw needsModule(command, error);
    const [sent] = words;
    if (sent === "EVALSHA_RO") {
      this.readOnly = "EVALSHA";
      return;
    }
    if (sent === "EVALSHA") {
      this.forget();
      throw new ModuleMissingError(error);
    }
    const name = command.slice(PREFIX.length);
    if (SCRIPTED.has(name)) {
      this.backend = "script";
      return;
    }
    this.lacks.add(name);
    throw needsModule(command, error);
  }

  /** Have the server know the script. */
  private async load(key: string): Promise<void> {
    this.loading ??= this.send(["SCRIPT", "LOAD", SCRIPT], key).finally(() => {
      this.loading = null;
    });
    await this.loading;
    this.isLoaded = true;
  }
}

const needsModule = (command: string, cause?: Error) =>
  new NeedsModuleError(command === "SWLIMIT.ADMIT" ? "SWLIMIT.ADMIT of a hold" : command, cause);

/**
 * The same call with the script itself, which goes where the key is: a load names none, and in a cluster that has just
 * changed may have gone to another node.
 */
function withScript([call, , ...words]: Word[]): Word[] {
  return [(call as string).replace("SHA", ""), SCRIPT, ...words];
}

/** A call of the script in place of a command of the module's; `at`: the instant, where this machine's clock decides. */
function scripted(name: string, args: string[], readOnly: string, takesBytes: boolean, at: number | null): Word[] {
  const dated = at === null ? [] : ["AT", String(at)];
  const evalsha = name === "PEEK" || name === "INFO" ? readOnly : "EVALSHA";
  if (name === "MALLOW" || name === "ADMIT") {
    const end = 2 + Number(args[1]);
    return [evalsha, SHA, args[1] as string, ...args.slice(2, end), name, ...args.slice(end), ...dated];
  }
  const [, key, ...words] = args as [string, string, ...string[]];
  const packed = takesBytes && (name === "ALLOW" || name === "PEEK") ? pack(name, words, at) : null;
  return packed ? [evalsha, SHA, "1", key, packed] : [evalsha, SHA, "1", key, name, ...words, ...dated];
}

/** Whether the last word is bytes, which ask for a reply of bytes. */
export const isPacked = (words: Word[]): boolean => words.at(-1) instanceof Buffer;

/** The module's reply to an ALLOW or a PEEK, where the script has packed it into bytes. */
function unpacked(reply: unknown, [, , limit]: string[]): unknown {
  if (!(reply instanceof Buffer)) return reply;
  const [first, second, resetAfter] = [0, 8, 16].map((at) => reply.readDoubleLE(at)) as [number, number, number];
  const decided = first > 0 ? [first, Number(limit), second, 0] : [0, Number(limit), Math.abs(first), second];
  return [...decided, resetAfter];
}

/** ALLOW or PEEK as one word, which spares the server to read several; null where that cannot be. */
function pack(name: string, [limit, window, resolution, ...options]: string[], instant: number | null): Buffer | null {
  if (options.includes("BLOCK")) return null;
  const length = Number.parseInt(resolution as string, 10);
  const subintervals = Number.parseInt(window as string, 10) / length;
  if (subintervals > MOST_SUBINTERVALS) return null;
  const at = options.indexOf("COST");
  const cost = at < 0 ? 1 : Number(options[at + 1]);
  const flags =
    (name === "ALLOW" ? 1 : 0) + (options.includes("PARTIAL") ? 2 : 0) + (options.includes("STRICT") ? 4 : 0);
  const numbers = [Number(limit), length, subintervals, cost, ...(instant === null ? [] : [instant])];
  const packed = Buffer.allocUnsafe(1 + 8 * numbers.length);
  packed[0] = flags;
  numbers.forEach((number, at) => {
    packed.writeUInt32LE(number % 2 ** 32, 1 + 8 * at);
    packed.writeUInt32LE(Math.floor(number / 2 ** 32), 5 + 8 * at);
  });
  return packed;
}
