/** Quotas of the calendar: so many units until a period ends, then all units are free again. */

import { Calendar, type CalendarOptions, type Period, type PeriodName } from "../core/calendar.js";
import { Decision, type KnownReply, type Source } from "../core/decision.js";
import { type Duration, flag, integer, MAX_EXACT, milliseconds } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { type LimitDemand, withoutServer } from "../core/local-windows.js";
import { requested, settingsOf, type WaitOptions } from "../core/options.js";
import { CountOverflow, type Reply } from "../core/window.js";
import { instantOf, replyOf, serverCommand } from "../protocol/commands.js";
import { BoundedMap } from "../util/bounded-map.js";
import { BaseLimiter, type BaseOptions, Kept } from "./base.js";

/** A quota of the calendar, or of fixed windows: `period` or `window`. */
export type BudgetLimiterOptions = BaseOptions & {
  /** Units per period, 0 … 2^53 − 1. */
  readonly limit: number;
} & ((CalendarOptions & { readonly window?: undefined }) | FixedWindow);

interface FixedWindow extends Partial<Record<keyof CalendarOptions, undefined>> {
  /** In place of `period`: all units are free again so long after the first was counted; 1 ms … 3650 days. */
  readonly window: Duration;
}

export interface BudgetOptions extends WaitOptions {
  /** Requested units: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Grant as much of the cost as fits. */
  readonly partial?: boolean;
}

const OWN = ["limit", "period", "timeZone", "anchor", "window"];

const RECORDED = new Set(["cost", "deadline", "signal"]);
const ALLOWED = new Set([...RECORDED, "partial"]);
const CHANGED = new Set(["limit", "window"]);

/** The server's error when the period's end has passed by its clock. */
const PERIOD_OVER = /^ERR until must be /;

export class BudgetLimiter extends BaseLimiter {
  /** Units per period. */
  readonly limit: number;
  /** The length of fixed windows, in ms; null for periods of the calendar. */
  readonly window: number | null;
  private readonly calendar: Calendar | null;
  private readonly budgets: LocalBudgets;
  private current: Period = { start: 0, end: 0 };
  /** How far the server's clock is ahead of this process's; asked once, for fixed windows only. */
  private readonly serverClock: { ahead: Promise<number> | null } = { ahead: null };

  constructor(options: BudgetLimiterOptions) {
    super(settingsOf(options, OWN), options.client);
    const { limit, window, period, timeZone, anchor } = options;
    this.limit = integer(limit, "limit", 0);
    if ((window === undefined) === (period === undefined)) throw new TypeError("give either a period or a window");
    this.window = window === undefined ? null : milliseconds(window, "window");
    this.calendar = period === undefined ? null : new Calendar({ period, timeZone, anchor });
    if (!this.calendar && (timeZone ?? anchor) !== undefined) throw new TypeError("a window has no timeZone or anchor");
    this.budgets = new LocalBudgets(this.settings.maxKeys, (end) => {
      if (this.date() < end) this.statistics.evicted++;
    });
    this.core?.join(this);
  }

  /** The name of its periods; null for fixed windows. */
  get period(): PeriodName | null {
    return this.calendar?.period ?? null;
  }

  /** A limiter of the same keys with another limit, or with other fixed windows. */
  with(options: { readonly limit?: number; readonly window?: Duration }): BudgetLimiter {
    const { limit = this.limit, window } = requested(options, CHANGED);
    if (window !== undefined && this.window === null) throw new TypeError("a period has no window");
    const length = window === undefined ? this.window : milliseconds(window, "window");
    return Object.create(this, {
      limit: { value: integer(limit, "limit", 0), enumerable: true },
      window: { value: length, enumerable: true },
    });
  }

  /** Decide, and count what is granted. */
  async allow(key: string, options: BudgetOptions = {}): Promise<Decision> {
    return this.decide(key, this.demand(requested(options, ALLOWED)), options, "take");
  }

  /** Decide without counting. */
  async peek(key: string, options: BudgetOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const demand = this.demand(requested(options, ALLOWED));
    if (!this.core) return this.here("local", name, demand, "look");
    const period = await this.periodNow();
    try {
      const info = await this.ask({ name: "INFO", key: name }, options);
      const { used = 0, until = 0 } = fieldsOf(info);
      const now = this.calendar ? Date.now() : period.start;
      return this.counted(this.decision(decided(used, until, demand, now), "server", period));
    } catch (error) {
      if (error instanceof RefusedError && /^ERR no such key/.test(error.message)) {
        return this.counted(this.decision(decided(0, 0, demand, 0), "server", period));
      }
      return this.failed(error, name, demand, "look");
    }
  }

  /** Count, whatever the limit is. */
  async record(key: string, options: Omit<BudgetOptions, "partial"> = {}): Promise<Decision> {
    return this.decide(key, this.demand(requested(options, RECORDED)), options, "force");
  }

  /** Give back up to so many units of the period; how many were given back. It is never sent twice. */
  async refund(key: string, units = 1): Promise<number> {
    const name = this.name(key);
    integer(units, "units", 1);
    if (!this.core) return this.refundHere(name, units);
    return Number(await this.change({ name: "REFUND", key: name, units }));
  }

  /** @internal Of what this process has counted. */
  refundHere(name: string, units: number): number {
    return this.budgets.refund(name, units, this.now());
  }

  override async reset(key: string): Promise<void> {
    await super.reset(key);
    this.budgets.delete(this.name(key));
  }

  /** @internal The current period, or the next one. */
  async periodNow(isLater = false): Promise<Period> {
    if (this.window !== null) {
      if (isLater) this.serverClock.ahead = null; // it was set
      const now = this.now() + (await this.serverAhead());
      return { start: now, end: now + this.window };
    }
    const calendar = this.calendar as Calendar;
    const now = this.now();
    if (now < this.current.start || now >= this.current.end) this.current = calendar.at(now);
    return isLater ? calendar.at(this.current.end) : this.current;
  }

  /** @internal Ask with the current period's end; if the server's clock has passed it, with the next period's. */
  static async inPeriod<T>(ask: (isLater: boolean) => Promise<T>): Promise<T> {
    try {
      return await ask(false);
    } catch (error) {
      if (!(error instanceof RefusedError && PERIOD_OVER.test(error.message))) throw error;
      return ask(true);
    }
  }

  /** @internal */
  decision(reply: KnownReply, source: Source, { start, end }: Period): Decision {
    return new Decision(reply, { name: this.settings.name, window: end - start }, source);
  }

  /** @internal Decide in this process, and count the decision. */
  here(by: "local" | "failure", name: string, demand: BudgetDemand, how: How): Decision {
    return this.counted(this.decisionHere(by, name, demand, how));
  }

  /** @internal Decide in this process. */
  decisionHere(by: "local" | "failure", name: string, demand: BudgetDemand, how: How): Decision {
    const now = this.now();
    const period = this.calendar?.at(now) ?? { start: now, end: now + (this.window as number) };
    const decide = (asked: BudgetDemand) => this.budgets.decide(name, asked, now, period.end, how);
    const reply = by === "local" ? decide(demand) : withoutServer(this.settings, demand, decide);
    return this.decision(reply, by, period);
  }

  /** @internal */
  demand({ cost = 1, partial = false }: { cost?: number; partial?: boolean }): BudgetDemand {
    return { limit: this.limit, cost: integer(cost, "cost", 1), partial: flag(partial, "partial") };
  }

  /** @internal Unix time in ms; of the calendar as the system shows it. */
  override now(): number {
    return this.calendar ? this.date() : super.now();
  }

  private async decide(key: string, demand: BudgetDemand, options: WaitOptions, how: How) {
    const name = this.name(key);
    if (!this.core) return this.here("local", name, demand, how);
    const force = how === "force";
    const kept = new Kept();
    try {
      return await BudgetLimiter.inPeriod(async (isLater) => {
        const period = await this.periodNow(isLater);
        const reply = replyOf(
          await this.ask({ name: "BUDGET", key: name, until: period.end, force, ...demand }, options, kept),
        );
        return this.counted(this.decision(reply, "server", period));
      });
    } catch (error) {
      if (force) throw error;
      const decision = this.failed(error, name, demand, how);
      kept.units = [decision.granted];
      return decision;
    }
  }

  private failed(error: unknown, name: string, demand: BudgetDemand, how: How): Decision {
    if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
    return this.here("failure", name, demand, how);
  }

  /** How many ms the server's clock is ahead of this process's; 0 when unknown. */
  private serverAhead(): Promise<number> {
    const { serverClock } = this;
    const { timeout } = this.settings;
    const ask = async () => instantOf(await this.core?.ask(serverCommand("", "TIME"), { timeout })) - this.now();
    serverClock.ahead ??= ask().catch(() => {
      serverClock.ahead = null;
      return 0;
    });
    return serverClock.ahead;
  }
}

/** What a request demands of a budget. */
export interface BudgetDemand extends LimitDemand {
  readonly partial: boolean;
}

/** Only decide, count what is granted, or count whatever the limit is. */
type How = "look" | "take" | "force";

/** Budgets of this process. */
class LocalBudgets {
  private readonly used: BoundedMap<{ units: number; end: number }>;

  constructor(maxKeys: number, evicted: (end: number) => void) {
    this.used = new BoundedMap(maxKeys, undefined, ({ end }) => evicted(end));
  }

  decide(name: string, demand: BudgetDemand, now: number, end: number, how: How): Reply {
    const found = this.used.used(name);
    const held = found && now < found.end ? found : { units: 0, end };
    const reply = decided(held.units, held.units > 0 ? held.end : 0, demand, now);
    const counted = how === "force" ? demand.cost : how === "take" ? reply[0] : 0;
    if (counted === 0) return reply;
    if (held.units + counted > MAX_EXACT) throw new CountOverflow();
    this.used.set(name, { units: held.units + counted, end: held.end });
    const left = Math.max(0, demand.limit - held.units - counted);
    return [reply[0], demand.limit, left, reply[3], held.end - now];
  }

  refund(name: string, units: number, now: number): number {
    const held = this.used.get(name);
    if (!held || now >= held.end) return 0;
    const given = Math.min(units, held.units);
    if (given === held.units) this.used.delete(name);
    else held.units -= given;
    return given;
  }

  delete(name: string): void {
    this.used.delete(name);
  }
}

/** The reply of a budget with so many used units until an instant, before the request is counted. */
function decided(used: number, end: number, { limit, cost, partial }: BudgetDemand, now: number): Reply {
  const left = Math.max(0, limit - used);
  const granted = partial ? Math.min(cost, left) : cost <= left ? cost : 0;
  const reset = used > 0 ? Math.max(0, end - now) : 0;
  const isHopeless = (partial ? 1 : cost) > limit;
  return [granted, limit, left, granted > 0 ? 0 : isHopeless ? -1 : reset, reset];
}

/** The numbers in INFO's reply: an object or a map in RESP3, a flat list in RESP2. */
function fieldsOf(info: unknown): Record<string, number> {
  const pairs = Array.isArray(info)
    ? info.flatMap((name, at) => (at % 2 === 0 ? [[String(name), info[at + 1]]] : []))
    : info instanceof Map
      ? [...info]
      : Object.entries(info as object);
  return Object.fromEntries(pairs.map(([name, value]) => [String(name), Number(value)]));
}
