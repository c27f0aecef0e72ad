/** The commands: typed, as the words that the module reads, and how each is undone when nobody waits for its reply. */

import { UnavailableError } from "../core/errors.js";
import { quoted } from "../core/reasons.js";
import { COLD } from "../core/warm-up.js";
import type { Demand, Reply } from "../core/window.js";

/** A key, and what is demanded of its window. */
export interface Rate {
  readonly key: string;
  readonly demand: Demand;
}

/** Units of a budget until an instant, in Unix ms. */
export interface Budget {
  readonly key: string;
  readonly limit: number;
  readonly until: number;
  readonly cost: number;
}

/** Units to hold for `ttl` ms, under an id that was drawn for this command alone. */
export interface HoldRequest {
  readonly key: string;
  readonly limit: number;
  readonly ttl: number;
  readonly id: string;
  readonly cost: number;
}

/** One of the limits that ADMIT decides together. */
export type Clause =
  | ({ readonly kind: "RATE" } & Rate)
  | ({ readonly kind: "BUDGET" } & Budget)
  | ({ readonly kind: "HOLD" } & HoldRequest);

/** A command of the module's. Durations are in ms; a `block` or an `age` of 0 is none. */
export type Command =
  | ({ readonly name: "ALLOW"; readonly block: number } & Rate)
  | ({ readonly name: "PEEK" } & Rate)
  | ({ readonly name: "RECORD"; readonly age: number; readonly block: number } & Rate)
  | ({ readonly name: "ACQUIRE"; readonly timeout: number } & Rate)
  | { readonly name: "MALLOW"; readonly rates: readonly [Rate, ...Rate[]] }
  | { readonly name: "REFUND"; readonly key: string; readonly units: number; readonly dated?: Dated | undefined }
  | { readonly name: "BLOCK"; readonly key: string; readonly duration: number; readonly nx: boolean }
  | { readonly name: "UNBLOCK" | "INFO"; readonly key: string }
  | ({ readonly name: "BUDGET"; readonly partial: boolean; readonly force: boolean } & Budget)
  | ({ readonly name: "HOLD"; readonly wait?: number | undefined } & HoldRequest)
  | { readonly name: "RELEASE"; readonly key: string; readonly ids: readonly string[] }
  | { readonly name: "RENEW"; readonly key: string; readonly ttl: number; readonly ids: readonly string[] }
  | { readonly name: "HOLDERS"; readonly key: string; readonly count: number }
  | { readonly name: "ADMIT"; readonly clauses: readonly [Clause, ...Clause[]]; readonly strict: boolean }
  | { readonly name: "SETTLE"; readonly key: string; readonly id: string; readonly reserved: readonly Reserved[] };

export type CommandNamed<Name> = Extract<Command, { readonly name: Name }>;

/** When the units of a refund were counted: so many ms ago, or at an instant of the server's clock or later. */
export type Dated = { readonly age: number } | { readonly since: number };

/** What was really used of a key whose units a hold had reserved. */
export interface Reserved {
  readonly key: string;
  readonly used: number;
}

/** A command of the server's own; `key` says which server of a cluster gets it. */
export interface ServerCommand {
  readonly name: null;
  readonly key: string;
  readonly words: string[];
}

export type AnyCommand = Command | ServerCommand;

export function serverCommand(key: string, ...words: string[]): ServerCommand {
  return { name: null, key, words };
}

/** A command's first key, which says where it goes. */
export function keyOf(command: AnyCommand): string {
  if (command.name === "MALLOW") return command.rates[0].key;
  return command.name === "ADMIT" ? command.clauses[0].key : command.key;
}

export function keysOf(command: Command): string[] {
  if (command.name === "MALLOW") return command.rates.map(({ key }) => key);
  if (command.name === "ADMIT") return command.clauses.map(({ key }) => key);
  return command.name === "SETTLE" ? [command.key, ...command.reserved.map(({ key }) => key)] : [command.key];
}

/** Whether a command only reads. */
export function isRead({ name }: Command): boolean {
  return name === "PEEK" || name === "INFO" || name === "HOLDERS";
}

const DECIDING = new Set<AnyCommand["name"]>(["ALLOW", "PEEK", "ACQUIRE", "MALLOW", "BUDGET", "HOLD", "ADMIT"]);

/** Whether `onFailure` decides where the server does not. */
export function decides({ name }: AnyCommand): boolean {
  return DECIDING.has(name);
}

const FIRST = new Set<Command["name"]>(["ALLOW", "PEEK", "RECORD", "REFUND", "INFO", "MALLOW"]);

/** Whether the first release of the module lacks a command. */
export function isNewer({ name }: Command): boolean {
  return !FIRST.has(name);
}

/** Whether a command has a limit that rises, which the first release of the module does not know. */
export function warmsUp(command: Command): boolean {
  if (command.name === "MALLOW") return command.rates.some(({ demand }) => demand.warmUp);
  if (command.name === "ADMIT") return command.clauses.some((one) => one.kind === "RATE" && one.demand.warmUp);
  return "demand" in command && command.demand.warmUp !== undefined;
}

/** Whether a command takes a hold. */
export function takesHold(command: Command): boolean {
  return command.name === "HOLD" || (command.name === "ADMIT" && command.clauses.some(({ kind }) => kind === "HOLD"));
}

/** What is sent. */
export function wordsOf(command: AnyCommand): string[] {
  if (command.name === null) return command.words;
  const rest = argumentsOf(command);
  if (command.name !== "MALLOW" && command.name !== "ADMIT" && command.name !== "SETTLE") {
    return [fullName(command), command.key, ...rest];
  }
  const keys = keysOf(command);
  return [fullName(command), String(keys.length), ...keys, ...rest];
}

type ByName<Result> = { readonly [Name in Command["name"]]: (command: CommandNamed<Name>) => Result };

/** The words of each command that follow its keys. */
const ARGUMENTS: ByName<string[]> = {
  ALLOW: ({ demand, block }) => (block === 0 ? demanded(demand) : [...demanded(demand), "BLOCK", `${block}ms`]),
  PEEK: ({ demand }) => demanded(demand),
  RECORD: ({ demand, age, block }) => [
    ...demanded(demand, quota(demand), age),
    ...(block > 0 ? ["BLOCK", `${block}ms`] : []),
  ],
  ACQUIRE: ({ demand, timeout }) => demanded(demand, [...quota(demand), `${timeout}ms`]),
  MALLOW: ({ rates }) => [...rates.flatMap(({ demand }) => member(demand)), ...flag("STRICT", rates[0].demand.strict)],
  REFUND: ({ units, dated }) => [String(units), ...(dated ? dateOf(dated) : [])],
  BLOCK: ({ duration, nx }) => [`${duration}ms`, ...flag("NX", nx)],
  UNBLOCK: () => [],
  INFO: () => [],
  BUDGET: ({ limit, until, cost, partial, force }) => [
    ...[String(limit), String(until), ...costOf(cost)],
    ...[...flag("PARTIAL", partial), ...flag("FORCE", force)],
  ],
  HOLD: ({ limit, ttl, id, cost, wait }) => [
    ...[String(limit), `${ttl}ms`, id, ...costOf(cost)],
    ...(wait === undefined ? [] : ["WAIT", `${wait}ms`]),
  ],
  RELEASE: ({ ids }) => [...ids],
  RENEW: ({ ttl, ids }) => [`${ttl}ms`, ...ids],
  HOLDERS: ({ count }) => [String(count)],
  ADMIT: ({ clauses, strict }) => [...clauses.flatMap(clauseOf), ...flag("STRICT", strict)],
  SETTLE: ({ id, reserved }) => [id, ...reserved.map(({ used }) => String(used))],
};

const FULL_NAMES = Object.fromEntries(Object.keys(ARGUMENTS).map((name) => [name, `SWLIMIT.${name}`]));

/** A command's name at the server. */
export function fullName({ name }: Command): string {
  return FULL_NAMES[name] as string;
}

/** The words of a command that follow its keys. */
export function argumentsOf(command: Command): string[] {
  return (ARGUMENTS[command.name] as (command: Command) => string[])(command);
}

function clauseOf(clause: Clause): string[] {
  const { kind } = clause;
  if (kind === "RATE") return [kind, ...member(clause.demand)];
  const { limit, cost } = clause;
  if (kind === "BUDGET") return [kind, String(limit), String(clause.until), String(cost)];
  return [kind, String(limit), `${clause.ttl}ms`, clause.id, String(cost)];
}

function quota({ limit, window, resolution }: Demand): string[] {
  return [String(limit), `${window}ms`, `${resolution}ms`];
}

/** A quota and the options of a demand; `words`: what stands before the options; `age`: of what is recorded. */
function demanded(demand: Demand, words = quota(demand), age = 0): string[] {
  if (demand.cost !== 1) words.push("COST", String(demand.cost));
  if (demand.partial) words.push("PARTIAL");
  if (demand.strict) words.push("STRICT");
  if (age > 0) words.push("AGE", `${age}ms`);
  words.push(...warmUpWords(demand));
  return words;
}

/** The quota and the cost of one of several limits. */
function member(demand: Demand): string[] {
  return [...quota(demand), String(demand.cost), ...warmUpWords(demand)];
}

function warmUpWords({ warmUp }: Demand): string[] {
  if (!warmUp) return [];
  const { duration, cold } = warmUp;
  return ["WARMUP", `${duration}ms`, ...(cold === COLD ? [] : ["COLD", String(cold)])];
}

function costOf(cost: number): string[] {
  return cost === 1 ? [] : ["COST", String(cost)];
}

function flag(word: string, isSet: boolean): string[] {
  return isSet ? [word] : [];
}

function dateOf(dated: Dated): string[] {
  return "age" in dated ? ["AGE", `${dated.age}ms`] : ["SINCE", String(dated.since)];
}

/** How a command is undone whose caller has gone. */
export interface Undo {
  /**
   * The commands to send after the reply, or the error; null: none came. `since`: an instant of the server's clock not
   * after the grant, where it is known. `kept`: the units that the caller keeps of each limit, in order.
   */
  after(reply: unknown, since: number | null, kept?: readonly number[]): Command[];
  /** Send them until they are answered, for at most so many ms; 0: once. Then also without a reply. */
  readonly repeatFor: number;
}

const UNDOS: ByName<Undo | null> = {
  ALLOW: (rate) => refunds((reply) => [[{ kind: "RATE", ...rate }, reply]]),
  ACQUIRE: (rate) => refunds((reply) => [[{ kind: "RATE", ...rate }, reply]]),
  MALLOW: ({ rates }) => refunds(together(rates.map((rate) => ({ kind: "RATE", ...rate })))),
  BUDGET: (budget) => (budget.force ? null : refunds((reply) => [[{ kind: "BUDGET", ...budget }, reply]])),
  HOLD: ({ key, id, ttl }) => ends({ name: "RELEASE", key, ids: [id] }, ttl),
  ADMIT: ({ clauses }) => {
    const hold = clauses.find((clause) => clause.kind === "HOLD");
    if (!hold) return refunds(together(clauses));
    const reserved = clauses.filter((clause) => clause !== hold).map(({ key }) => ({ key, used: 0 }));
    return ends({ name: "SETTLE", key: hold.key, id: hold.id, reserved }, hold.ttl);
  },
  ...{ PEEK: stays, RECORD: stays, REFUND: stays, BLOCK: stays, UNBLOCK: stays, INFO: stays, HOLDERS: stays },
  ...{ RELEASE: stays, RENEW: stays, SETTLE: stays },
};

/** It grants nothing, or what it granted stays. */
function stays(): null {
  return null;
}

/** How to undo a command; null where nothing must be. */
export function undoOf(command: Command): Undo | null {
  return (UNDOS[command.name] as (command: Command) => Undo | null)(command);
}

/** The hold is ended, unless the server has denied it. */
function ends(command: Command, ttl: number): Undo {
  const isDenied = (reply: unknown) => reply instanceof Error || (Array.isArray(reply) && Number(reply[0]) === 0);
  return { after: (reply) => (isDenied(reply) ? [] : [command]), repeatFor: ttl };
}

/** What is granted of each limit goes back, where an instant before the grant is known. */
function refunds(granted: (reply: unknown) => readonly (readonly [Clause, unknown])[]): Undo {
  const after: Undo["after"] = (reply, since, kept = []) => {
    if (!Array.isArray(reply) || since === null) return [];
    return granted(reply).flatMap(([{ kind, key }, part], at): Command[] => {
      const [found, , , , resetAfter] = replyOf(part);
      const units = found - (kept[at] ?? 0);
      if (units <= 0) return [];
      // A budget's period began with its first unit, perhaps after `since`. Its instant is surely before the period's end.
      return [{ name: "REFUND", key, units, dated: { since: kind === "RATE" ? since : since + resetAfter - 1 } }];
    });
  };
  return { after, repeatFor: 0 };
}

/** The replies of limits that are decided together, if all have granted. */
function together(clauses: readonly Clause[]) {
  return (reply: unknown) => {
    const [granted, ...replies] = reply as unknown[];
    return Number(granted) === 1 ? clauses.map((clause, at) => [clause, replies[at]] as const) : [];
  };
}

/** The instant in TIME's reply, in Unix ms. */
export function instantOf(time: unknown): number {
  const [seconds, micros] = (time as unknown[]).map(Number) as [number, number];
  return seconds * 1000 + Math.floor(micros / 1000);
}

/** A reply of five integers. */
export function replyOf(reply: unknown): Reply {
  return integersOf(reply, 5) as Reply;
}

/** HOLD's reply: granted, limit, remaining, retry_after, expires_after, token. */
export type HoldReply = [number, number, number, number, number, number];

export function holdReplyOf(reply: unknown): HoldReply {
  return integersOf(reply, 6) as HoldReply;
}

/** The reply to a command that decides several limits: whether all have granted, and the reply of each. */
export function repliesOf(reply: unknown): [granted: boolean, ...replies: unknown[]] {
  if (!Array.isArray(reply)) throw unexpected(reply);
  const [granted, ...replies] = reply as unknown[];
  return [integerOf(granted) === 1, ...replies];
}

/** Check what a command is answered with, as far as decisions depend on it. */
export function checkReply(command: AnyCommand, reply: unknown): void {
  if (command.name === null) return;
  const check = CHECKS[command.name];
  if (check) check(reply, command as never);
}

const CHECKS: { readonly [Name in Command["name"]]?: (reply: unknown, command: CommandNamed<Name>) => void } = {
  ...{ ALLOW: replyOf, PEEK: replyOf, RECORD: replyOf, ACQUIRE: replyOf, BUDGET: replyOf },
  ...{ REFUND: integerOf, BLOCK: integerOf, UNBLOCK: integerOf, RELEASE: integerOf },
  HOLD: holdReplyOf,
  RENEW: (reply, { ids }) => void integersOf(reply, ids.length),
  MALLOW: (reply, { rates }) =>
    each(
      reply,
      rates.map(() => 5),
    ),
  ADMIT: (reply, { clauses }) =>
    each(
      reply,
      clauses.map(({ kind }) => (kind === "HOLD" ? 6 : 5)),
    ),
};

function each(reply: unknown, lengths: readonly number[]): void {
  const [, ...replies] = repliesOf(reply);
  if (replies.length !== lengths.length) throw unexpected(reply);
  for (const [at, length] of lengths.entries()) integersOf(replies[at], length);
}

/** Integers, which some servers and clients give as texts or as doubles. */
function integersOf(reply: unknown, length: number): number[] {
  if (!Array.isArray(reply) || reply.length !== length) throw unexpected(reply);
  if (reply.every(Number.isInteger)) return reply;
  return reply.map((one) => integerOf(one, reply));
}

function integerOf(one: unknown, whole: unknown = one): number {
  const number = typeof one === "string" && /^-?[0-9]+(\.0+)?$/.test(one) ? Number(one) : one;
  if (typeof number === "bigint") return Number(number);
  if (!Number.isInteger(number)) throw unexpected(whole);
  return number as number;
}

function unexpected(reply: unknown): UnavailableError {
  const plain = (one: unknown): string =>
    Array.isArray(one) ? `[${one.slice(0, 50).map(plain).join(", ")}]` : String(one);
  const text = plain(reply);
  return new UnavailableError(`unexpected reply: ${quoted(text)}`, "bad_reply");
}
