/**
 * Renews the holds of this process, at one server or the servers of a cluster: one timer for all, one command for all
 * holds of a key. Holds that could not be renewed in time are lost.
 */

import type { Settings } from "../core/options.js";
import { type Instant, instant, passed } from "../util/suspend-clock.js";
import type { Ask } from "./server.js";

/** The maximum number of holds that one command renews. */
export const MAX_IDS = 1000;

/** Holds are renewed after their ttl divided by RENEWALS; without an answer, again after the ttl divided by RETRIES. */
export const RENEWALS = 3;
export const RETRIES = 10;

/** The shortest interval of the timer, in ms, so that many keys cost little. */
const TICK = 50;

export interface RenewedHold {
  /** The key at the server. */
  readonly name: string;
  readonly id: string;
  readonly ttl: number;
  /** The longest to wait for a reply, in ms, and what decides. */
  readonly settings: Pick<Settings, "timeout" | "module">;
  /** When it is so old, in ms, it is not renewed any more, and ends by its ttl. */
  readonly maxAge: number | undefined;
  /** Called when the hold has ended before it was released. */
  lost(): void;
}

/** A hold, when it was requested, and when the last request was sent to which the server replied that it is live. */
interface LiveHold {
  readonly hold: RenewedHold;
  readonly taken: Instant;
  since: Instant;
}

/** The holds of one key with one ttl. */
interface Group {
  readonly name: string;
  readonly ttl: number;
  readonly live: Map<string, LiveHold>;
  /** When to renew them, and when the first of them may end, on the monotonic clock. */
  due: number;
  ends: number;
}

export class HoldRenewer {
  private readonly groups = new Map<string, Group>();
  private timer: NodeJS.Timeout | undefined;
  /** When the timer fires, on the monotonic clock. */
  private next = Number.POSITIVE_INFINITY;

  constructor(private readonly ask: Ask) {}

  /** Renew a hold from now on; it was requested at `since`. */
  add(hold: RenewedHold, since: Instant): void {
    const { name, ttl } = hold;
    const key = groupOf(hold);
    let group = this.groups.get(key);
    if (!group) {
      group = { name, ttl, live: new Map(), due: Number.POSITIVE_INFINITY, ends: Number.POSITIVE_INFINITY };
      this.groups.set(key, group);
    }
    group.live.set(hold.id, { hold, taken: since, since });
    group.due = Math.min(group.due, since.awake + ttl / RENEWALS);
    group.ends = Math.min(group.ends, since.awake + lifetime(ttl));
    if (group.due < this.next) this.wake(group.due);
  }

  /** Stop renewing a hold. */
  remove(hold: RenewedHold): void {
    const key = groupOf(hold);
    const group = this.groups.get(key);
    group?.live.delete(hold.id);
    if (group?.live.size === 0) this.groups.delete(key);
  }

  isLive(hold: RenewedHold): boolean {
    const live = this.groups.get(groupOf(hold))?.live.get(hold.id);
    return live !== undefined && passed(live.since) < lifetime(hold.ttl);
  }

  private wake(at: number): void {
    clearTimeout(this.timer);
    this.next = at;
    this.timer = setTimeout(() => this.run(), Math.max(TICK, at - performance.now())).unref();
  }

  private run(): void {
    this.next = Number.POSITIVE_INFINITY;
    const now = instant();
    let first = Number.POSITIVE_INFINITY;
    for (const group of [...this.groups.values()]) {
      if (group.ends <= now.awake || group.due <= now.awake) this.endOld(group, now);
      if (group.live.size === 0) continue;
      if (group.due <= now.awake) {
        group.due = now.awake + group.ttl / RETRIES;
        void this.renew(group);
      }
      first = Math.min(first, group.due, group.ends);
    }
    if (first < this.next) this.wake(first);
  }

  /** End the holds that the server has not confirmed in time. */
  private endOld(group: Group, now: Instant): void {
    const { live, ttl } = group;
    group.ends = Number.POSITIVE_INFINITY;
    for (const { hold, since } of [...live.values()]) {
      if (passed(since, now) >= lifetime(ttl)) this.end(hold);
      else group.ends = Math.min(group.ends, since.awake + lifetime(ttl));
    }
  }

  private end(hold: RenewedHold): void {
    this.remove(hold);
    hold.lost();
  }

  /** Sent even while the breaker is open: a hold ends at its time, and not before. */
  private async renew(group: Group): Promise<void> {
    const all = renewedOf(group);
    if (all.length === 0) {
      group.due = Number.POSITIVE_INFINITY;
      return;
    }
    const parts: Promise<boolean>[] = [];
    for (let at = 0; at < all.length; at += MAX_IDS) parts.push(this.renewSome(group, all.slice(at, at + MAX_IDS)));
    const answered = await Promise.all(parts);
    if (!answered.every(Boolean)) return;
    group.due = oldest(renewedOf(group)) + group.ttl / RENEWALS;
    group.ends = oldest([...group.live.values()]) + lifetime(group.ttl);
  }

  /** Whether the server has answered. */
  private async renewSome({ name: key, ttl }: Group, some: LiveHold[]): Promise<boolean> {
    const since = instant();
    const timeout = Math.max(...some.map(({ hold }) => hold.settings.timeout));
    const module = some[0]?.hold.settings.module;
    const renewed = (reply: unknown) => {
      const isLive = (reply as unknown[]).map(Number);
      some.forEach((live, at) => {
        if (isLive[at] === 0) this.ended(live.hold);
        else if (since.awake > live.since.awake) live.since = since;
      });
    };
    try {
      // A late reply confirms them, too.
      const late = (reply: Promise<unknown>) => void reply.then(renewed).catch(() => {});
      const ids = some.map(({ hold }) => hold.id);
      renewed(await this.ask({ name: "RENEW", key, ttl, ids }, { timeout, module, always: true, late }));
      return true;
    } catch {
      return false;
    }
  }

  /** The server replies that a hold has ended; it may have been released meanwhile. */
  private ended(hold: RenewedHold): void {
    if (this.groups.get(groupOf(hold))?.live.has(hold.id)) this.end(hold);
  }
}

/** Those that are not too old to be renewed. */
function renewedOf({ live }: Group): LiveHold[] {
  const now = instant();
  return [...live.values()].filter(
    ({ hold: { maxAge }, taken }) => maxAge === undefined || passed(taken, now) < maxAge,
  );
}

/** When the one was confirmed that was confirmed the longest ago, on the monotonic clock. */
function oldest(holds: readonly LiveHold[]): number {
  return holds.reduce((least, { since }) => Math.min(least, since.awake), Number.POSITIVE_INFINITY);
}

function groupOf({ name, ttl }: RenewedHold): string {
  return `${ttl} ${name}`;
}

/** How long after its request a hold is surely live, in ms: a thousandth less than its ttl, because clocks drift. */
export function lifetime(ttl: number): number {
  return ttl - ttl / 1000;
}
