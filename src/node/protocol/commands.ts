/** The commands: their words, what takes back what each has granted, and the reply that most of them have. */

import { RefusedError } from "../core/errors.js";
import type { Demand, Reply } from "../core/window.js";

/** A command, and how what it grants to somebody who has gone is taken back. */
export interface Command {
  readonly words: string[];
  /** None where nothing is granted, or units were used whatever the limit says. */
  readonly undo?: Undo;
}

/** What a reply says was counted; or a command that takes it back whether or not a reply comes. */
export type Undo = ((reply: unknown) => Counted[]) | Ending;

/** A command that ends what has an id of its own: sent as often as one likes, it does so once. */
export interface Ending {
  readonly words: string[];
  /** After so many ms it has ended by itself. */
  readonly lasts: number;
}

/** Units of a key that were counted. */
export interface Counted {
  readonly name: string;
  readonly units: number;
  /** They can be told from units of others for so many ms after they were asked for; undefined: by their date. */
  readonly period?: number;
}

/** A key, and what is demanded of its window. */
export interface Rate {
  readonly name: string;
  readonly demand: Demand;
}

export function allow({ name, demand }: Rate, block: number): Command {
  return {
    words: ["SWLIMIT.ALLOW", name, ...quotaWords(demand), ...blockWords(block)],
    undo: (reply) => [counted(name, reply)],
  };
}

export function peek({ name, demand }: Rate): Command {
  return { words: ["SWLIMIT.PEEK", name, ...quotaWords(demand)] };
}

export function record({ name, demand }: Rate, age: number, block: number): Command {
  const dated = age > 0 ? ["AGE", `${age}ms`] : [];
  return { words: ["SWLIMIT.RECORD", name, ...quotaWords(demand), ...dated, ...blockWords(block)] };
}

/** An ALLOW that waits for its turn for up to so many ms. */
export function acquire({ name, demand }: Rate, wait: number): Command {
  const [limit, window, resolution, ...options] = quotaWords(demand) as [string, string, string, ...string[]];
  return {
    words: ["SWLIMIT.ACQUIRE", name, limit, window, resolution, `${wait}ms`, ...options],
    undo: (reply) => [counted(name, reply)],
  };
}

/** All or nothing. */
export function mallow(rates: readonly Rate[]): Command {
  const words = ["SWLIMIT.MALLOW", String(rates.length), ...rates.map(({ name }) => name)];
  for (const { demand } of rates) {
    words.push(String(demand.limit), `${demand.window}ms`, `${demand.resolution}ms`, String(demand.cost));
  }
  if (rates[0]?.demand.strict) words.push("STRICT");
  return {
    words,
    undo: (reply) => countedAtOnce(reply, (replies) => rates.map(({ name }, at) => counted(name, replies[at]))),
  };
}

/** Of a budget until an instant, in Unix ms. */
export function budget(name: string, limit: number, end: number, cost: number, option?: "PARTIAL" | "FORCE"): Command {
  const costs = cost === 1 ? [] : ["COST", String(cost)];
  const words = ["SWLIMIT.BUDGET", name, String(limit), String(end), ...costs, ...(option ? [option] : [])];
  return option === "FORCE" ? { words } : { words, undo: (reply) => [countedInPeriod(name, reply)] };
}

/** What is to be held, under an id that was drawn for it. */
export interface Wish {
  readonly name: string;
  readonly cost: number;
  readonly ttl: number;
  readonly id: string;
}

export function hold(wish: Wish, limit: number, wait?: number): Command {
  const { name, ttl, id, cost } = wish;
  const costs = cost === 1 ? [] : ["COST", String(cost)];
  const waits = wait === undefined ? [] : ["WAIT", `${wait}ms`];
  return {
    words: ["SWLIMIT.HOLD", name, String(limit), `${ttl}ms`, id, ...costs, ...waits],
    undo: release(wish),
  };
}

export function release({ name, id, ttl }: Omit<Wish, "cost">): Ending {
  return { words: ["SWLIMIT.RELEASE", name, id], lasts: ttl };
}

/** One of what ADMIT decides: its clause, and what its reply says was counted. */
export interface Clause {
  readonly name: string;
  readonly words: string[];
  readonly counted: ((reply: unknown) => Counted) | null;
}

/** All or nothing; with a hold, `settle` takes it all back. */
export function admit(clauses: readonly Clause[], isStrict: boolean, settle: Ending | null): Command {
  const names = clauses.map(({ name }) => name);
  const words = clauses.flatMap((clause) => clause.words);
  return {
    words: ["SWLIMIT.ADMIT", String(names.length), ...names, ...words, ...(isStrict ? ["STRICT"] : [])],
    undo:
      settle ??
      ((reply) =>
        countedAtOnce(reply, (replies) => clauses.flatMap(({ counted }, at) => counted?.(replies[at]) ?? []))),
  };
}

/** Where a command decides all or nothing: what was counted if it was all. */
function countedAtOnce(reply: unknown, all: (replies: unknown[]) => Counted[]): Counted[] {
  const [granted, ...replies] = reply as unknown[];
  return Number(granted) === 1 ? all(replies) : [];
}

/** What a rate's reply says was counted. */
export function counted(name: string, reply: unknown): Counted {
  return { name, units: replyOf(reply)[0] };
}

/** What a budget's reply says was counted. */
export function countedInPeriod(name: string, reply: unknown): Counted {
  const [units, , , , period] = replyOf(reply);
  return { name, units, period };
}

/** A quota and what is demanded of it. */
export function quotaWords({ limit, window, resolution, cost, partial, strict }: Demand): string[] {
  const words = [String(limit), `${window}ms`, `${resolution}ms`];
  if (cost !== 1) words.push("COST", String(cost));
  if (partial) words.push("PARTIAL");
  if (strict) words.push("STRICT");
  return words;
}

/** Of a block of so many ms, if any. */
function blockWords(block: number): string[] {
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
