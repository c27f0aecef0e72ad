/** Usage that could not be reported when it was: it is sent, dated, once the server answers again. */

import { NotAskedError, RefusedError } from "../core/errors.js";
import type { ModuleUse } from "../core/options.js";
import type { Ask } from "./server.js";

/** So much is kept; the oldest is given up first. */
const MOST = 100_000;

export interface Usage {
  readonly name: string;
  readonly units: number;
  /** The command, of units that are `age` ms old. */
  words(age: number): string[];
  /** When it was, on the monotonic clock, plus the `age` it had then. */
  readonly since: number;
  /** When it no longer matters. */
  readonly until: number;
  readonly timeout: number;
  readonly module: ModuleUse;
  /** It will not be sent. */
  lost(): void;
}

export class Backlog {
  private readonly kept: { usage: Usage; isInDoubt: boolean }[] = [];
  private sending: Promise<void> | null = null;

  constructor(
    private readonly ask: Ask,
    private readonly isAway: (key: string) => boolean,
  ) {}

  /** Keep it. What may have been counted is sent once more at most. */
  keep(usage: Usage, isInDoubt: boolean): void {
    if (this.kept.length >= MOST) this.kept.shift()?.usage.lost();
    this.kept.push({ usage, isInDoubt });
    if (!this.isAway(usage.name)) void this.send();
  }

  /** Whether nothing is kept or being sent. */
  get isEmpty(): boolean {
    return this.kept.length === 0 && !this.sending;
  }

  /** Send what is kept, as long as the server answers. */
  send(): Promise<void> {
    this.sending ??= this.sendAll().finally(() => {
      this.sending = null;
    });
    return this.sending;
  }

  /** Give up what is still kept; how much that is. */
  giveUp(): { readonly units: number; readonly keys: number } {
    const lost = this.kept.splice(0).map(({ usage }) => usage);
    for (const usage of lost) usage.lost();
    return { units: lost.reduce((sum, { units }) => sum + units, 0), keys: new Set(lost.map(({ name }) => name)).size };
  }

  private async sendAll(): Promise<void> {
    for (let left = this.kept.length; left > 0; left--) {
      const item = this.kept.shift();
      if (item) await this.sendOne(item);
    }
  }

  private async sendOne(item: { usage: Usage; isInDoubt: boolean }): Promise<void> {
    const { usage, isInDoubt } = item;
    const now = performance.now();
    if (now >= usage.until) return;
    const words = usage.words(Math.ceil(now - usage.since));
    let isComing = false;
    const late = (reply: Promise<unknown>) => {
      isComing = true;
      reply.catch(() => this.again(usage, isInDoubt));
    };
    try {
      await this.ask(words, usage.name, { timeout: usage.timeout, module: usage.module, late });
    } catch (error) {
      if (error instanceof RefusedError) usage.lost();
      else if (error instanceof NotAskedError) this.kept.push(item);
      else if (!isComing) this.again(usage, isInDoubt);
    }
  }

  private again(usage: Usage, isInDoubt: boolean): void {
    if (isInDoubt) usage.lost();
    else this.keep(usage, true);
  }
}
