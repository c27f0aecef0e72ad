/**
 * The holds that a process has at a server, or at the servers of a cluster. One timer renews them, all of a key in one
 * command, and ends those that could not be renewed in time.
 */

import { type Instant, instant, passed } from "../util/suspend-clock.js";
import type { Ask } from "./server.js";

/** So many are renewed by one command. */
const MOST_IDS = 1000;

/** A hold is renewed when a third of its time to live has passed; without an answer, again after so much of it. */
const PART = 3;
const AGAIN = 10;

/** The timer waits at least so many ms, so that many keys cost little. */
const TICK = 50;

/** One hold of this process. */
export interface Held {
  readonly name: string;
  readonly id: string;
  readonly ttl: number;
  /** The longest that a reply is waited for, in ms. */
  readonly timeout: number;
  /** It is over, and no longer this process's. */
  lost(): void;
}

/** When the server was asked last for a hold that it then said is live. */
interface Lease {
  readonly held: Held;
  since: Instant;
}

/** The holds of one key with one time to live. */
interface Group {
  readonly name: string;
  readonly ttl: number;
  readonly leases: Map<string, Lease>;
  /** When they are to be renewed, and when the first of them may end, on the monotonic clock. */
  due: number;
  ends: number;
}

export class Renewals {
  private readonly groups = new Map<string, Group>();
  private timer: NodeJS.Timeout | undefined;
  /** When the timer is to fire, on the monotonic clock. */
  private next = Number.POSITIVE_INFINITY;

  constructor(private readonly ask: Ask) {}

  /** Renew a hold from now on, of which the server was asked then. */
  add(held: Held, since: Instant): void {
    const { name, ttl } = held;
    const key = `${ttl} ${name}`;
    let group = this.groups.get(key);
    if (!group) {
      group = { name, ttl, leases: new Map(), due: Number.POSITIVE_INFINITY, ends: Number.POSITIVE_INFINITY };
      this.groups.set(key, group);
    }
    group.leases.set(held.id, { held, since });
    group.due = Math.min(group.due, since.awake + ttl / PART);
    group.ends = Math.min(group.ends, since.awake + lifetime(ttl));
    if (group.due < this.next) this.wake(group.due);
  }

  /** Renew it no more. */
  remove({ name, ttl, id }: Held): void {
    const key = `${ttl} ${name}`;
    const group = this.groups.get(key);
    group?.leases.delete(id);
    if (group?.leases.size === 0) this.groups.delete(key);
  }

  /** Whether a hold is still this process's. */
  isLive({ name, ttl, id }: Held): boolean {
    const lease = this.groups.get(`${ttl} ${name}`)?.leases.get(id);
    return lease !== undefined && passed(lease.since) < lifetime(ttl);
  }

  /** Look at all groups then. */
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
      if (group.leases.size === 0) continue;
      if (group.due <= now.awake) {
        group.due = now.awake + group.ttl / AGAIN;
        void this.renew(group);
      }
      first = Math.min(first, group.due, group.ends);
    }
    if (first < this.next) this.wake(first);
  }

  /** End the holds of which the server has not been heard in time. */
  private endOld(group: Group, now: Instant): void {
    const { leases, ttl } = group;
    group.ends = Number.POSITIVE_INFINITY;
    for (const { held, since } of [...leases.values()]) {
      if (passed(since, now) >= lifetime(ttl)) this.end(held);
      else group.ends = Math.min(group.ends, since.awake + lifetime(ttl));
    }
  }

  private end(held: Held): void {
    this.remove(held);
    held.lost();
  }

  /** Whatever the breaker says: a hold ends at its time, and not before. */
  private async renew(group: Group): Promise<void> {
    const all = [...group.leases.values()];
    const parts: Promise<boolean>[] = [];
    for (let at = 0; at < all.length; at += MOST_IDS) parts.push(this.renewSome(group, all.slice(at, at + MOST_IDS)));
    const answered = await Promise.all(parts);
    if (!answered.every(Boolean)) return;
    const oldest = Math.min(...[...group.leases.values()].map(({ since }) => since.awake));
    group.due = oldest + group.ttl / PART;
    group.ends = oldest + lifetime(group.ttl);
  }

  /** Whether the server has answered. */
  private async renewSome({ name, ttl }: Group, leases: Lease[]): Promise<boolean> {
    const since = instant();
    const timeout = Math.max(...leases.map(({ held }) => held.timeout));
    const words = ["SWLIMIT.RENEW", name, `${ttl}ms`, ...leases.map(({ held }) => held.id)];
    const renewed = (reply: unknown) => {
      const live = (reply as unknown[]).map(Number);
      leases.forEach((lease, at) => {
        if (live[at] === 0) this.endOf(lease);
        else if (since.awake > lease.since.awake) lease.since = since;
      });
    };
    try {
      // Also a reply that comes late says that they were live.
      const late = (reply: Promise<unknown>) => void reply.then(renewed).catch(() => {});
      renewed(await this.ask(words, name, { timeout, always: true, late }));
      return true;
    } catch {
      return false;
    }
  }

  /** The server says that it has ended, unless it has been left meanwhile. */
  private endOf({ held }: Lease): void {
    if (this.groups.get(`${held.ttl} ${held.name}`)?.leases.has(held.id)) this.end(held);
  }
}

/** For how long after the server was asked a hold is sure, in ms: a thousandth less, because clocks drift. */
export function lifetime(ttl: number): number {
  return ttl - ttl / 1000;
}
