/**
 * Periods of the calendar in any time zone that this Node.js knows.
 *
 * A day begins at the first instant at which the zone's clock shows its midnight or later. So a day whose midnight was
 * skipped begins when clocks went forward, and one whose midnight came twice begins at the first of both. Weeks, months
 * and years begin with a day. An hour begins when the zone's clock shows a full hour.
 */

import { shown } from "./duration.js";

export const PERIODS = ["hour", "day", "week", "month", "year"] as const;

export type PeriodName = (typeof PERIODS)[number];

export interface CalendarOptions {
  readonly period: PeriodName;
  /** A name of the IANA database such as "Europe/Berlin"; "UTC" by default. */
  readonly timeZone?: string | undefined;
  /**
   * When a period begins: for months a day, 1 … 31, or the last day of shorter months; for weeks a day such as
   * "monday", the default; for years a day as "MM-DD".
   */
  readonly anchor?: number | string | undefined;
}

/** From `start` until before `end`, in Unix ms. */
export interface Period {
  readonly start: number;
  readonly end: number;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The clocks of a zone and of UTC never differ by more, including a change of the zone's clocks. */
const FURTHEST = 26 * HOUR;

const WEEKDAYS = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

/** The days of a calendar on which periods begin, as numbers of days since 1970-01-01. */
interface Steps {
  /** The last one that is not after this day. */
  before(day: number): number;
  /** The next one after that. */
  after(start: number): number;
}

export class Calendar {
  readonly period: PeriodName;
  readonly timeZone: string;
  private readonly zone: Zone;
  private readonly steps: Steps | null;

  constructor({ period, timeZone = "UTC", anchor }: CalendarOptions) {
    if (!PERIODS.includes(period)) {
      throw new RangeError(`period must be one of ${PERIODS.join(", ")}, not ${shown(period)}`);
    }
    this.period = period;
    this.zone = zoneOf(timeZone);
    this.timeZone = timeZone;
    this.steps = stepsOf(period, anchor);
  }

  /** The period that an instant is in, a Unix time in ms. */
  at(instant: number): Period {
    const { zone, steps } = this;
    if (!steps) return { start: zone.hourBefore(instant), end: zone.hourAfter(instant) };
    let day = steps.before(Math.floor(zone.shown(instant) / DAY));
    let start = zone.firstOf(day);
    for (;;) {
      day = steps.after(day);
      const end = zone.firstOf(day);
      // When clocks go back over midnight, a day that has begun shows the day before again.
      if (end > instant) return { start, end };
      start = end;
    }
  }
}

/** The period that an instant is in, a Unix time in ms. */
export function periodAt(options: CalendarOptions, instant: number): Period {
  return new Calendar(options).at(instant);
}

/** Zones are slow to make, and few. */
const zones = new Map<string, Zone>();

function zoneOf(name: string): Zone {
  const zone = zones.get(name) ?? new Zone(name);
  zones.set(name, zone);
  return zone;
}

/** The clocks of a time zone. The time they show is counted like Unix time, as if they showed UTC. */
class Zone {
  private readonly format: Intl.DateTimeFormat;

  constructor(name: string) {
    if (typeof name !== "string") throw new TypeError(`timeZone must be a string, not ${shown(name)}`);
    this.format = new Intl.DateTimeFormat("en-US", {
      timeZone: name,
      calendar: "gregory",
      numberingSystem: "latn",
      hourCycle: "h23",
      ...{ year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" },
    });
  }

  shown(instant: number): number {
    return instant + this.offset(instant);
  }

  /** The first instant that shows the midnight of a day, or a later time. */
  firstOf(day: number): number {
    const midnight = day * DAY;
    const [before, after] = [this.offset(midnight - FURTHEST), this.offset(midnight + FURTHEST)];
    if (before === after) return midnight - before;
    const change = this.change(midnight - FURTHEST, midnight + FURTHEST);
    return midnight - before < change ? midnight - before : Math.max(change, midnight - after);
  }

  /** The last instant, not after this one, that shows a full hour. */
  hourBefore(instant: number): number {
    const start = instant - past(this.shown(instant), HOUR);
    if (this.offset(start) === this.offset(instant)) return start;
    const last = this.change(start, instant) - 1;
    return last - past(this.shown(last), HOUR);
  }

  /** The first later instant that shows a full hour. */
  hourAfter(instant: number): number {
    const end = instant - past(this.shown(instant), HOUR) + HOUR;
    if (this.offset(end) === this.offset(instant)) return end;
    const change = this.change(instant, end);
    return change + past(-this.shown(change), HOUR);
  }

  /** When the clocks change between two instants: the first instant with the later offset. */
  private change(from: number, to: number): number {
    const later = this.offset(to);
    let [before, after] = [from, to];
    while (after - before > 1) {
      const middle = Math.floor((before + after) / 2);
      if (this.offset(middle) === later) after = middle;
      else before = middle;
    }
    return after;
  }

  /** The zone's offset from UTC, in ms. */
  private offset(instant: number): number {
    const shown: Record<string, number> = {};
    for (const { type, value } of this.format.formatToParts(instant)) shown[type] = Number(value);
    const { year, month, day, hour, minute, second } = shown as Record<string, number>;
    const ms = Date.UTC(year as number, (month as number) - 1, day, hour, minute, second);
    return ms - (instant - past(instant, 1000));
  }
}

/** The remainder of a number by a unit, never below 0. */
function past(number: number, unit: number): number {
  return ((number % unit) + unit) % unit;
}

function stepsOf(period: PeriodName, anchor: number | string | undefined): Steps | null {
  if (period === "week") return weeks(anchor ?? "monday");
  if (period === "month") return months(anchor ?? 1);
  if (period === "year") return years(anchor ?? "01-01");
  if (anchor !== undefined) throw new TypeError(`a period of one ${period} has no anchor`);
  return period === "hour" ? null : { before: (day) => day, after: (day) => day + 1 };
}

function weeks(anchor: number | string): Steps {
  const first = WEEKDAYS.indexOf(String(anchor).toLowerCase());
  if (first < 0) throw new RangeError(`anchor of a week must be one of ${WEEKDAYS.join(", ")}, not ${shown(anchor)}`);
  // 1970-01-01 was a Thursday.
  return { before: (day) => day - past(day + 4 - first, 7), after: (day) => day + 7 };
}

function months(anchor: number | string): Steps {
  if (typeof anchor !== "number" || !Number.isInteger(anchor) || anchor < 1 || anchor > 31) {
    throw new RangeError(`anchor of a month must be a day from 1 to 31, not ${shown(anchor)}`);
  }
  return byMonths(1, (year, month) => dayOf(year, month, anchor));
}

function years(anchor: number | string): Steps {
  const [, month, day] = /^(\d\d)-(\d\d)$/.exec(String(anchor))?.map(Number) ?? [];
  // 2000 had a 29th of February.
  if (!month || !day || month > 12 || new Date(Date.UTC(2000, month - 1, day)).getUTCMonth() !== month - 1) {
    throw new RangeError(`anchor of a year must be a day such as "04-01", not ${shown(anchor)}`);
  }
  return byMonths(12, (year) => dayOf(year, month - 1, day));
}

/** Periods of so many months; `first` is the day of a month on which they begin. */
function byMonths(length: number, first: (year: number, month: number) => number): Steps {
  const starts = (day: number, later: number) => {
    const date = new Date(day * DAY);
    return first(...yearAndMonth(date.getUTCFullYear(), date.getUTCMonth() + later * length));
  };
  return {
    before: (day) => (starts(day, 0) <= day ? starts(day, 0) : starts(day, -1)),
    after: (start) => starts(start, 1),
  };
}

function yearAndMonth(year: number, month: number): [number, number] {
  const date = new Date(Date.UTC(year, month, 1));
  return [date.getUTCFullYear(), date.getUTCMonth()];
}

/** A day of a month, or its last one, as days since 1970-01-01. */
function dayOf(year: number, month: number, day: number): number {
  const last = new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
  return Date.UTC(year, month, Math.min(day, last)) / DAY;
}
