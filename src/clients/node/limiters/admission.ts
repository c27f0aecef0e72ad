/** One decision of rates, budgets and holds: all or nothing. It is settled later by the units really used. */

import type { Decision } from "../core/decision.js";
import { type Duration, milliseconds } from "../core/duration.js";
import { DeadlineError, UnavailableError } from "../core/errors.js";
import { type HeaderOptions, headersOf } from "../core/headers.js";
import { requested, type WaitOptions } from "../core/options.js";
import { type Clause, repliesOf } from "../protocol/commands.js";
import { instant } from "../util/suspend-clock.js";
import { pause } from "../util/timeout.js";
import { longestWait } from "./all-of.js";
import { Kept } from "./base.js";
import { BudgetLimiter } from "./budget.js";
import { type Hold, HoldLimiter, leavesNoTime, longestOf } from "./hold.js";
import { HeldMember, holdsOf, type Member, memberOf, type Part } from "./member.js";
import { Limiter } from "./rate.js";
import { Reservation, Settlement } from "./settlement.js";
import { checkNames, type NameOf, type Usage, usedUnits } from "./usage.js";

export interface AdmitOptions extends WaitOptions {
  /** How long to wait until all grant, at most an hour; by default not at all. */
  readonly wait?: Duration;
  /**
   * For how long the admission is renewed at most: for work whose end may never be known. Then holds and reservation end
   * by their ttl, and the holds are lost. By default they are renewed until they are settled or released.
   */
  readonly maxAge?: Duration;
}

const PARTS = new Set(["limiter", "key", "cost", "limit", "name"]);
const ADMITTED = new Set(["wait", "maxAge", "deadline", "signal"]);

/** While a request waits, the server is asked again after so many ms at most, and up to one part in `JITTER` later. */
export const POLL = 100;
export const JITTER = 5;

/** The longest `Retry-After` for a place, in ms. */
export const PLACE_WAIT = 1000;

/** A part that denied. */
export interface DeniedPart {
  readonly name: string | undefined;
  readonly key: string;
  readonly decision: Decision;
}

/** The decision of everything together. `Name`: of its parts that have units to settle. */
export class Admission<Name extends string = string> {
  private isSettled = false;

  /** @internal */
  constructor(
    /** Whether all granted their cost; otherwise nothing was counted anywhere. */
    readonly granted: boolean,
    /** The decision of each, in order. */
    readonly each: readonly Decision[],
    /** @internal */ readonly parts: readonly Part[],
    /** The holds, in order, which are renewed until they are settled or released; none where none was granted. */
    readonly holds: readonly Hold[],
    /** @internal */ private readonly settlement: Settlement | null,
  ) {}

  /** The first hold; null where none was requested or granted. */
  get hold(): Hold | null {
    return this.holds[0] ?? null;
  }

  /** ms until all grant; 0 when they did, undefined when unknown, or when one never can. */
  get retryAfter(): number | undefined {
    return longestWait(this.each);
  }

  /** Whether one of them can never be granted. */
  get never(): boolean {
    return this.each.some(({ never }) => never);
  }

  /** The part that denied, or of several the one that denies the longest; null when all granted. */
  get deniedBy(): DeniedPart | null {
    let found: DeniedPart | null = null;
    let longest = -1;
    for (const [at, decision] of this.each.entries()) {
      const { granted, retryAfter = 0, never } = decision;
      const wait = never ? Number.POSITIVE_INFINITY : retryAfter;
      if (granted > 0 || wait <= longest) continue;
      longest = wait;
      const { name, key } = this.parts[at] as Part;
      found = { name, key, decision };
    }
    return found;
  }

  /**
   * Correct the counts by the units that were really used: by name, or of each in order, without the holds, which end.
   * Unused units go back, and units beyond the cost are counted. It happens exactly once, whatever fails on the way. The
   * change of each, without the holds; or null where nothing goes back: it was settled before, `maxAge` has passed, or the
   * server was away for too long. Of what `onFailure: "local"` has granted, this process's counts are corrected.
   */
  async settle(usage: Usage<Name>): Promise<readonly number[] | null>;
  async settle(...used: number[]): Promise<readonly number[] | null>;
  async settle(...used: unknown[]): Promise<readonly number[] | null> {
    return this.settled(this.checked(used));
  }

  /** Settle without waiting for it. Closing the limiters does; an error is a warning of this process. */
  settleSoon(usage: Usage<Name>): void;
  settleSoon(...used: number[]): void;
  settleSoon(...used: unknown[]): void {
    const done = this.settled(this.checked(used));
    void this.settlement?.soon(done);
  }

  /** End the holds, and leave everything else as it is reserved: it can still be settled. */
  async release(): Promise<void> {
    await Promise.all(this.holds.map((hold) => hold.release()));
  }

  /** Release without waiting for it. */
  releaseSoon(): void {
    void this.release().catch(() => {});
  }

  /** End the holds. What was not settled stays counted as it was reserved. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }

  /** @internal Settle, by default as reserved, unless that has been done; it goes on by itself if it takes long. */
  async end(usage: Readonly<Record<string, number>> | "nothing" = {}): Promise<void> {
    if (!this.granted || this.isSettled) return;
    const units = this.checked([usage === "nothing" ? {} : usage]);
    const done = this.settled(usage === "nothing" ? units.map(() => 0) : units);
    await (this.settlement ? this.settlement.briefly(done) : done);
  }

  /** @internal `retryAfter`, but at most a second where only places are missing: they may be released at any moment. */
  get clientWait(): number | undefined {
    return longestWait(
      this.each.map(({ retryAfter, never }, at) => {
        const isPlace = retryAfter !== undefined && this.parts[at]?.limiter instanceof HoldLimiter;
        return { retryAfter: isPlace ? Math.min(retryAfter, PLACE_WAIT) : retryAfter, never };
      }),
    );
  }

  /**
   * The headers of a response, for rates and budgets. A denial has `retry-after-ms` beside `Retry-After`: at most a second
   * where only places are missing.
   */
  headers(options: HeaderOptions = {}): Record<string, string> {
    const { granted, each, clientWait: retryAfter } = this;
    const counted = each.filter(({ resetAfter }) => resetAfter !== undefined);
    const headers = headersOf(counted, { granted, retryAfter }, options);
    if ("Retry-After" in headers) headers["retry-after-ms"] = String(retryAfter);
    return headers;
  }

  private checked(used: readonly unknown[]): number[] {
    if (!this.granted) throw new TypeError("nothing was granted that could be settled");
    return usedUnits(this.parts, used);
  }

  private async settled(used: readonly number[]): Promise<readonly number[] | null> {
    if (this.isSettled) return null;
    this.isSettled = true;
    return this.settlement?.settle(used) ?? null;
  }
}

/** Decide rates, budgets and holds at once. All limiters need the same client, and in a cluster all keys one slot. */
export function admit<const Parts extends readonly Part[]>(
  parts: Parts,
  options: AdmitOptions = {},
): Promise<Admission<NameOf<Parts[number]>>> {
  return admitted(parts, options, false);
}

/** @internal The same; `isReserved`: reserve what will be settled without places, too. */
export async function admitted<Name extends string>(
  parts: readonly Part[],
  options: AdmitOptions,
  isReserved: boolean,
): Promise<Admission<Name>> {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new TypeError("admit needs a list of at least one { limiter, key }");
  }
  const { wait, deadline, signal } = requested(options, ADMITTED);
  for (const part of parts) requested(part, PARTS);
  checkNames(parts);
  const since = performance.now();
  const ends = since + longestOf(wait);
  const leaves = deadline === undefined ? undefined : since + milliseconds(deadline, "deadline", 0);
  const left = (until = Number.POSITIVE_INFINITY) => Math.max(0, until - performance.now());
  const core = parts[0]?.limiter.core;
  let denied: Admission<Name> | null = null;
  let retryAfter: number | undefined;
  for (;;) {
    const remaining = leaves === undefined ? {} : { deadline: Math.floor(left(leaves)) };
    if (denied && (leavesNoTime(remaining) || core?.isLeft)) return denied;
    try {
      const admission: Admission<Name> = await once(parts, { ...options, ...remaining }, isReserved, denied !== null);
      ({ retryAfter } = admission);
      const isAway = admission.each[0]?.source === "failure" && !denied;
      const wait = Math.min(left(ends), left(leaves));
      if (admission.granted || isAway || !mayGrant(admission, wait)) return admission;
      denied = admission;
    } catch (error) {
      if (denied && error instanceof DeadlineError) return denied;
      // A wait survives restarts and failovers.
      if (!(error instanceof UnavailableError) || !denied || left(ends) === 0) throw error;
    }
    const ms = Math.min(pollAfter(retryAfter), left(ends));
    if (ms >= left(leaves)) return denied;
    await (core ? core.pause(ms, signal) : pause(ms, signal));
  }
}

/** Whether waiting so long can help. Places may be released at any moment. */
function mayGrant({ each, parts }: Admission, wait: number): boolean {
  const hopeless = ({ retryAfter = 0, never }: Decision, at: number) =>
    never || (retryAfter > wait && !(parts[at]?.limiter instanceof HoldLimiter));
  return wait > 0 && !each.some(hopeless);
}

function pollAfter(retryAfter = POLL): number {
  return Math.min(retryAfter, POLL) * (1 + Math.random() / JITTER);
}

/** One decision, without a wait; `isAgain`: after a denial, which stands when the caller's deadline comes first. */
async function once<Name extends string>(
  parts: readonly Part[],
  options: AdmitOptions,
  isReserved: boolean,
  isAgain: boolean,
): Promise<Admission<Name>> {
  const maxAge = options.maxAge === undefined ? undefined : milliseconds(options.maxAge, "maxAge");
  const members = parts.map((part) => memberOf(part, maxAge)) as [Member, ...Member[]];
  const limiters = parts.map(({ limiter }) => limiter);
  const asking = limiters.reduce((one, other) => (other.settings.timeout > one.settings.timeout ? other : one));
  const { core } = asking;
  if (parts.some(({ limiter }) => limiter.core !== core)) {
    throw new TypeError("limits that are decided at once need the same client");
  }
  if (new Set(members.map(({ name }) => name)).size < members.length) throw new TypeError("key named twice");
  if (!core) return admittedHere(parts, members, "local");
  const strict = isStrict(parts);
  const { settings } = asking;
  const held = members.filter((member) => member instanceof HeldMember).length;
  const isSettled = held < members.length && (isReserved || held > 0 || maxAge !== undefined);
  const kept = new Kept();
  const reservation = isSettled ? new Reservation(members, settings, maxAge) : null;
  try {
    const since = instant();
    const [granted, ...replies] = await BudgetLimiter.inPeriod(async (isLater) => {
      const clauses = await Promise.all(members.map((member) => member.clause(isLater)));
      const all = (reservation ? [reservation.clause, ...clauses] : clauses) as [Clause, ...Clause[]];
      return repliesOf(await asking.ask({ name: "ADMIT", clauses: all, strict }, options, kept));
    });
    if (reservation) replies.shift();
    const each = members.map((member, at) => member.decided(replies[at], granted, since));
    if (!granted) return new Admission(false, each, parts, [], null);
    const settlement = new Settlement(core, members, reservation, settings);
    const admission = new Admission<Name>(true, each, parts, holdsOf(members), settlement);
    settlement.keepFor(admission, since);
    return admission;
  } catch (error) {
    const fails = parts.some(({ limiter }) => limiter.settings.onFailure === "error");
    const isOver = isAgain && error instanceof DeadlineError;
    if (!(error instanceof UnavailableError) || fails || isOver) throw error;
    const admission = admittedHere<Name>(parts, members, "failure");
    if (admission.granted) kept.units = admission.each.map(({ granted }) => granted);
    return admission;
  }
}

function isStrict(parts: readonly Part[]): boolean {
  const strict = parts.flatMap(({ limiter }) => (limiter instanceof Limiter ? [limiter.quota.strict] : []));
  if (new Set(strict).size > 1) throw new TypeError("limits that are decided at once must all be strict or none");
  return strict[0] ?? false;
}

/** Nothing is sent. */
const ALONE = { timeout: 0, module: "never" } as const;

/** All or nothing, in this process. */
function admittedHere<Name extends string>(
  parts: readonly Part[],
  members: readonly Member[],
  by: "local" | "failure",
): Admission<Name> {
  const looked = members.map((member) => member.here(by, "look"));
  if (!looked.every(({ granted }) => granted > 0)) {
    for (const [at, { limiter }] of parts.entries()) limiter.counted(looked[at] as Decision);
    return new Admission(false, looked, parts, [], null);
  }
  const each = members.map((member) => member.here(by, "take"));
  return new Admission(true, each, parts, holdsOf(members), new Settlement(null, members, null, ALONE));
}
