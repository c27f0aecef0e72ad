/** Quotas of the calendar: so many units until a period ends, then everything anew. */

import { Calendar, type CalendarOptions, type Period, type PeriodName } from "../core/calendar.js";
import { Decision, type Source, type Told } from "../core/decision.js";
import { type Duration, flag, integer, MAX_EXACT, milliseconds } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { clock, instead, type Wanted } from "../core/local-windows.js";
import { requested, settingsOf, type WaitOptions } from "../core/options.js";
import { CountOverflow, type Reply } from "../core/window.js";
import * as commands from "../protocol/commands.js";
import { instantOf, replyOf } from "../protocol/commands.js";
import { Bounded } from "../util/bounded-map.js";
import { Asker, type AskerOptions } from "./base.js";

/** A quota of the calendar, or of fixed windows: `period` or `window`. */
export interface BudgetLimiterOptions extends AskerOptions, Partial<CalendarOptions> {
  /** Units per period, 0 … 2^53 − 1. */
  readonly limit: number;
  /** In place of `period`: everything begins anew so long after the first unit was counted; 1 ms … 3650 days. */
  readonly window?: Duration | undefined;
}

export interface BudgetOptions extends WaitOptions {
  /** Units that are asked for: 1 … 2^53 − 1. */
  readonly cost?: number;
  /** Grant as much of the cost as fits. */
  readonly partial?: boolean;
}

const OWN = ["limit", "period", "timeZone", "anchor", "window"];

const RECORDED = new Set(["cost", "deadline", "signal"]);
const ALLOWED = new Set([...RECORDED, "partial"]);
const CHANGED = new Set(["limit", "window"]);

/** What the server says to whoever asks with the end of a period that is over by its clock. */
const IS_OVER = /^ERR until must be /;

export class BudgetLimiter extends Asker {
  /** Units per period. */
  readonly limit: number;
  /** The length of its fixed windows, in ms; null where the calendar says when a period ends. */
  readonly window: number | null;
  private readonly calendar: Calendar | null;
  private readonly budgets: LocalBudgets;
  private current: Period = { start: 0, end: 0 };
  /** How much further the server's clock is than this process's; asked for once, of fixed windows only. */
  private readonly serverClock: { ahead: Promise<number> | null } = { ahead: null };

  constructor(options: BudgetLimiterOptions) {
    super(settingsOf(options, OWN), options.client);
    const { limit, window, period, timeZone, anchor } = options;
    this.limit = integer(limit, "limit", 0);
    if ((window === undefined) === (period === undefined)) throw new TypeError("give either a period or a window");
    this.window = window === undefined ? null : milliseconds(window, "window");
    this.calendar = period === undefined ? null : new Calendar({ period, timeZone, anchor });
    if (!this.calendar && (timeZone ?? anchor) !== undefined) throw new TypeError("a window has no timeZone or anchor");
    this.budgets = new LocalBudgets(this.settings.maxKeys);
    this.server?.join(this);
  }

  /** The name of its periods; null of fixed windows. */
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
    const wanted = this.wanted(requested(options, ALLOWED));
    return this.decide(key, wanted, options, "take");
  }

  /** The same decision, with nothing counted. */
  async peek(key: string, options: BudgetOptions = {}): Promise<Decision> {
    const name = this.name(key);
    const wanted = this.wanted(requested(options, ALLOWED));
    if (!this.server) return this.here("local", name, wanted, "look");
    const period = await this.periodNow();
    try {
      const info = await this.ask({ words: ["SWLIMIT.INFO", name] }, name, options);
      this.counts.server++;
      const { used = 0, until = 0 } = fieldsOf(info);
      const now = this.calendar ? Date.now() : period.start;
      return this.decision(decided(used, until, wanted, now), "server", period);
    } catch (error) {
      if (error instanceof RefusedError && /^ERR no such key/.test(error.message)) {
        return this.decision(decided(0, 0, wanted, 0), "server", period);
      }
      return this.failed(error, name, wanted, "look");
    }
  }

  /** Count, whatever the limit says. */
  async record(key: string, options: Omit<BudgetOptions, "partial"> = {}): Promise<Decision> {
    return this.decide(key, this.wanted(requested(options, RECORDED)), options, "force");
  }

  /** Give back up to so many units of the period; how many were given back. Never sent twice. */
  async refund(key: string, units = 1): Promise<number> {
    const name = this.name(key);
    integer(units, "units", 1);
    if (!this.server) return this.budgets.refund(name, units, this.now());
    return Number(await this.change(["SWLIMIT.REFUND", name, String(units)], name));
  }

  override async reset(key: string): Promise<void> {
    await super.reset(key);
    this.budgets.delete(this.name(key));
  }

  /** Connections beside the client's own are closed, once no limiter needs them. */
  async close(): Promise<void> {
    await this.server?.leave(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal The period to ask with now, or the one after it. */
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

  /** @internal Ask with the end of the period; where that is over by the server's clock, with the next one's. */
  static async inForce<T>(ask: (isLater: boolean) => Promise<T>): Promise<T> {
    try {
      return await ask(false);
    } catch (error) {
      if (!(error instanceof RefusedError && IS_OVER.test(error.message))) throw error;
      return ask(true);
    }
  }

  /** @internal */
  decision(told: Told, source: Source, { start, end }: Period): Decision {
    return new Decision(told, { name: this.settings.name, window: end - start }, source);
  }

  /** @internal What this process decides, and counts where it is to. */
  here(by: "local" | "failure", name: string, wanted: Budgeted, how: How): Decision {
    this.counts[by]++;
    const now = this.now();
    const period = this.calendar?.at(now) ?? { start: now, end: now + (this.window as number) };
    const decide = (asked: Budgeted) => this.budgets.decide(name, asked, now, period.end, how);
    const told = by === "local" ? decide(wanted) : instead(this.settings, wanted, decide);
    return this.decision(told, by, period);
  }

  /** @internal */
  wanted({ cost = 1, partial = false }: { cost?: number; partial?: boolean }): Budgeted {
    return { limit: this.limit, cost: integer(cost, "cost", 1), partial: flag(partial, "partial") };
  }

  /** Unix time in ms: for fixed windows as it was when this process began, and has gone on since, whoever sets it. */
  private now(): number {
    return this.calendar ? Date.now() : clock();
  }

  private async decide(key: string, wanted: Budgeted, options: WaitOptions, how: How) {
    const name = this.name(key);
    const { limit, cost, partial } = wanted;
    if (!this.server) return this.here("local", name, wanted, how);
    const option = how === "force" ? "FORCE" : partial ? "PARTIAL" : undefined;
    try {
      return await BudgetLimiter.inForce(async (isLater) => {
        const period = await this.periodNow(isLater);
        const command = commands.budget(name, limit, period.end, cost, option);
        const reply = replyOf(await this.ask(command, name, options));
        this.counts.server++;
        return this.decision(reply, "server", period);
      });
    } catch (error) {
      if (how === "force") throw error;
      return this.failed(error, name, wanted, how);
    }
  }

  private failed(error: unknown, name: string, wanted: Budgeted, how: How): Decision {
    if (!(error instanceof UnavailableError) || this.settings.onFailure === "error") throw error;
    return this.here("failure", name, wanted, how);
  }

  /** By how many ms the server's clock is ahead of this process's; 0 where it does not say. */
  private serverAhead(): Promise<number> {
    const { serverClock } = this;
    const ask = async () => instantOf(await this.ask({ words: ["TIME"] }, "", {})) - this.now();
    serverClock.ahead ??= ask().catch(() => {
      serverClock.ahead = null;
      return 0;
    });
    return serverClock.ahead;
  }
}

/** What a request asks of a budget. */
export interface Budgeted extends Wanted {
  readonly partial: boolean;
}

/** Look, count what is granted, or count whatever the limit is. */
type How = "look" | "take" | "force";

/** Budgets of this process. */
class LocalBudgets {
  private readonly used: Bounded<{ units: number; end: number }>;

  constructor(most: number) {
    this.used = new Bounded(most);
  }

  decide(name: string, wanted: Budgeted, now: number, end: number, how: How): Reply {
    const found = this.used.get(name);
    const held = found && now < found.end ? found : { units: 0, end };
    const reply = decided(held.units, held.units > 0 ? held.end : 0, wanted, now);
    const counted = how === "force" ? wanted.cost : how === "take" ? reply[0] : 0;
    if (counted === 0) return reply;
    if (held.units + counted > MAX_EXACT) throw new CountOverflow();
    this.used.set(name, { units: held.units + counted, end: held.end });
    const left = Math.max(0, wanted.limit - held.units - counted);
    return [reply[0], wanted.limit, left, reply[3], held.end - now];
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

/** What a budget of so many used units until an instant says to a request, before it is counted. */
function decided(used: number, end: number, { limit, cost, partial }: Budgeted, now: number): Reply {
  const left = Math.max(0, limit - used);
  const granted = partial ? Math.min(cost, left) : cost <= left ? cost : 0;
  const reset = used > 0 ? Math.max(0, end - now) : 0;
  const isHopeless = (partial ? 1 : cost) > limit;
  return [granted, limit, left, granted > 0 ? 0 : isHopeless ? -1 : reset, reset];
}

/** The numbers of INFO's reply: an object or a map in RESP3, a flat list in RESP2. */
function fieldsOf(info: unknown): Record<string, number> {
  const pairs = Array.isArray(info)
    ? info.flatMap((name, at) => (at % 2 === 0 ? [[String(name), info[at + 1]]] : []))
    : info instanceof Map
      ? [...info]
      : Object.entries(info as object);
  return Object.fromEntries(pairs.map(([name, value]) => [String(name), Number(value)]));
}
