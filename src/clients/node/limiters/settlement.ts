/** How the counts of an admission are corrected once it is known what was used. */

import { MAX_EXACT } from "../core/duration.js";
import { RefusedError, UnavailableError } from "../core/errors.js";
import { hasTag } from "../core/keys.js";
import type { Settings } from "../core/options.js";
import type { Clause, Command } from "../protocol/commands.js";
import type { Core } from "../transport/core.js";
import { RETRIES, type RenewedHold } from "../transport/hold-renewer.js";
import { instant, passed } from "../util/suspend-clock.js";
import { inTime } from "../util/timeout.js";
import { freshId, type Hold } from "./hold.js";
import { HeldMember, holdsOf, type Member } from "./member.js";

/** Which limiter's server is asked, and how. */
type Asking = Pick<Settings, "timeout" | "module">;

/** How long a reservation lasts that is not renewed, in ms, where no place says. */
export const RESERVED = 15_000;

/** The key of the reservation, for that of the first part. */
export function reservationOf(name: string): string {
  return `${hasTag(name) ? name : `{${name}}`}:reserved`;
}

/**
 * A hold without a limit, under a key of its own: it reserves the units of the others until they are settled, whether
 * their places are still held or not.
 */
export class Reservation implements RenewedHold {
  readonly id = freshId();
  readonly name: string;
  readonly ttl: number;

  constructor(
    members: readonly [Member, ...Member[]],
    readonly settings: Asking,
    readonly maxAge: number | undefined,
  ) {
    const [{ name }] = members;
    this.name = reservationOf(name);
    this.ttl = Math.max(...members.map((member) => (member instanceof HeldMember ? member.ttl : 0))) || RESERVED;
  }

  get clause(): Clause {
    const { name: key, id, ttl } = this;
    return { kind: "HOLD", key, id, ttl, limit: MAX_EXACT, cost: 1 };
  }

  /** The settlement finds that out. */
  lost(): void {}
}

/** An admission that nobody refers to any more is not settled: its reservation ends by its ttl. */
const abandoned = new FinalizationRegistry<() => void>((forget) => forget());

export class Settlement {
  private readonly since = instant();
  /** Those that have units to settle, in order. */
  private readonly others: readonly Member[];

  constructor(
    /** Null where this process has decided. */
    private readonly core: Core | null,
    private readonly members: readonly Member[],
    private readonly reservation: Reservation | null,
    private readonly settings: Asking,
  ) {
    this.others = members.filter((member) => !(member instanceof HeldMember));
  }

  /** Renew the reservation for as long as `owner`, who may settle it, lives. */
  keepFor(owner: object, since: ReturnType<typeof instant>): void {
    const { core, reservation } = this;
    if (!core || !reservation) return;
    core.renewer.add(reservation, since);
    abandoned.register(owner, () => core.renewer.remove(reservation), this);
  }

  async settle(used: readonly number[]): Promise<readonly number[] | null> {
    const { core, reservation } = this;
    if (core && reservation) return this.settleReserved(core, reservation, used);
    const changes = await this.correct(used.map((units, at) => units - this.cost(at)));
    await Promise.all(this.holds.map((hold) => hold.release()));
    return changes;
  }

  /** Let `work` end by itself: closing waits for it, and an error is a warning. */
  soon(work: Promise<unknown>): Promise<void> {
    const done = work.then(
      () => {},
      (error) => process.emitWarning(`a settlement failed: ${error}`, { code: "SWLIMIT_UNSETTLED" }),
    );
    this.core?.keep(done);
    return done;
  }

  /** Wait for `work`, for as long as one command may take. It goes on by itself. */
  async briefly(work: Promise<unknown>): Promise<void> {
    await inTime(this.soon(work), this.settings.timeout);
  }

  private get holds(): Hold[] {
    return holdsOf(this.members);
  }

  private async settleReserved(
    core: Core,
    reservation: Reservation,
    used: readonly number[],
  ): Promise<readonly number[] | null> {
    const { members, others, holds } = this;
    const { name: key, id } = reservation;
    const units = new Map(others.map((other, at) => [other, used[at] as number]));
    const reserved = members.map((member) => ({ key: member.name, used: units.get(member) ?? 0 }));
    abandoned.unregister(this);
    let isDone = false;
    try {
      const { reply, isFirst } = await this.answer(core, { name: "SETTLE", key, id, reserved }, reservation);
      const [done, ...changes] = reply.map(Number);
      isDone = done === 1;
      if (isDone) return changes.filter((_, at) => units.has(members[at] as Member));
      // The hold had ended. A first settlement whose reply was lost might have counted what was used beyond the cost.
      if (isFirst) await this.correct(used.map((units, at) => Math.max(0, units - this.cost(at))));
      return null;
    } finally {
      core.renewer.remove(reservation);
      // A settlement has ended the places, too.
      for (const hold of holds) {
        if (isDone) hold.end();
        else void hold.release();
      }
      for (const { key } of reserved) {
        core.holdQueue.released(key);
        core.forget(key);
      }
    }
  }

  /** The server's answer to a settlement, which is sent again until it comes, as long as the reservation is live. */
  private async answer(
    core: Core,
    command: Command,
    reservation: Reservation,
  ): Promise<{ reply: unknown[]; isFirst: boolean }> {
    const { timeout, module } = this.settings;
    for (let isFirst = true; ; isFirst = false) {
      let refused: RefusedError | undefined;
      const answer = new Promise<unknown>((resolve) => {
        const late = (reply: Promise<unknown>) => void reply.then(resolve, () => {});
        core.ask(command, { timeout, module, always: true, late }).then(resolve, (error) => {
          if (!(error instanceof RefusedError)) return;
          refused = error;
          resolve(null);
        });
      });
      if (await inTime(answer, reservation.ttl / RETRIES)) {
        if (refused) throw refused;
        return { reply: (await answer) as unknown[], isFirst };
      }
      if (!core.renewer.isLive(reservation)) {
        throw new UnavailableError("the settlement was not answered while the reservation lasted", "no_answer");
      }
    }
  }

  /** Correct each by itself, once: without a reservation the server remembers nothing of the decision. */
  private correct(more: readonly number[]): Promise<number[]> {
    const age = Math.ceil(passed(this.since)) + this.settings.timeout;
    const correct = (other: Member, units: number) =>
      this.core ? other.correct(units, age) : other.correctHere(units);
    return Promise.all(this.others.map((other, at) => (more[at] ? correct(other, more[at]) : 0)));
  }

  private cost(at: number): number {
    return this.others[at]?.cost ?? 0;
  }
}
