/** Records that could not be sent: they are kept, and sent with their age once the server answers again. */

import { NotAskedError, RefusedError } from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import type { CommandNamed } from "../protocol/commands.js";
import type { Ask } from "./server.js";

/** The maximum number of kept records; the oldest are dropped first. */
export const MAX_RECORDS = 100_000;

export interface KeptRecord {
  readonly command: CommandNamed<"RECORD">;
  /** When the units were used, on the monotonic clock. */
  readonly since: number;
  /** When they no longer matter. */
  readonly until: number;
  readonly timeout: number;
  readonly module: ModuleUse;
  /** Called when it is dropped unsent. */
  lost(): void;
}

/** A record; `isInDoubt`: it may have been counted already. */
interface Item {
  readonly record: KeptRecord;
  readonly isInDoubt: boolean;
}

export class RetryQueue {
  private readonly kept: Item[] = [];
  /** What was sent, and has no reply yet although its time is up. */
  private readonly coming = new Set<Item>();
  private sending: Promise<void> | null = null;

  constructor(
    private readonly ask: Ask,
    private readonly isUnavailable: (key: string) => boolean,
  ) {}

  /** Keep a record. What may have been counted is sent at most once more. */
  keep(record: KeptRecord, isInDoubt: boolean): void {
    if (this.kept.length >= MAX_RECORDS) this.kept.shift()?.record.lost();
    this.kept.push({ record, isInDoubt });
    if (!this.isUnavailable(record.command.key)) void this.send();
  }

  /** A record's reply is late. If an error comes instead, it is kept. */
  expect(record: KeptRecord, reply: Promise<unknown>, isInDoubt = false): void {
    const item = { record, isInDoubt };
    this.coming.add(item);
    reply.then(
      () => this.coming.delete(item),
      () => this.coming.delete(item) && this.keepAgain(item),
    );
  }

  /** Whether nothing is kept, being sent or unanswered. */
  get isEmpty(): boolean {
    return this.kept.length === 0 && this.coming.size === 0 && !this.sending;
  }

  /** Send what is kept, as long as the server answers. */
  send(): Promise<void> {
    this.sending ??= this.sendAll().finally(() => {
      this.sending = null;
    });
    return this.sending;
  }

  /** Drop what is still kept or unanswered; how much that is. */
  giveUp(): { readonly units: number; readonly keys: number } {
    const lost = [...this.kept.splice(0), ...this.coming].map(({ record }) => record);
    this.coming.clear();
    for (const record of lost) record.lost();
    const units = lost.reduce((sum, { command }) => sum + command.demand.cost, 0);
    return { units, keys: new Set(lost.map(({ command }) => command.key)).size };
  }

  private async sendAll(): Promise<void> {
    for (let left = this.kept.length; left > 0; left--) {
      const item = this.kept.shift();
      if (item) await this.sendOne(item);
    }
  }

  private async sendOne(item: Item): Promise<void> {
    const { record } = item;
    const { command, since, until, timeout, module } = record;
    const now = performance.now();
    if (now >= until) return;
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      this.expect(record, reply, item.isInDoubt);
    };
    try {
      await this.ask({ ...command, age: Math.ceil(now - since) }, { timeout, module, late });
    } catch (error) {
      if (error instanceof RefusedError) record.lost();
      else if (error instanceof NotAskedError) this.kept.push(item);
      else if (!isComing) this.keepAgain(item);
    }
  }

  private keepAgain({ record, isInDoubt }: Item): void {
    if (isInDoubt) record.lost();
    else this.keep(record, true);
  }
}
