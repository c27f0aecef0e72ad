/** A connection to a server: the caller's client, or one that was opened in place of it. */

import { instantOf } from "../protocol/commands.js";
import type { Dialect, Send } from "../protocol/script-fallback.js";
import { afterLoopTurns } from "./batch-timeouts.js";
import type { Connection } from "./transport.js";

/** At most so many commands are unanswered on one connection. */
export const MAX_UNANSWERED = 1000;

/** A connection takes nothing new after so many ms in which something was unanswered and nothing was received. */
export const SILENCE = 1000;

/** A connection that was given up is closed when it owes nothing, at the latest after so many ms. */
export const LATE = 10_000;

/** How long TIME is known, in ms: clocks drift. */
const CLOCK_AGE = 60_000;

/** Clocks differ by at most this part. */
const DRIFT = 0.001;

/** The clock of the server, as one connection has shown it. */
interface ServerClock {
  /** The identity of the connection. */
  readonly connection: unknown;
  /** Unix ms at the server, and when that was asked and received here. */
  readonly instant: number;
  readonly asked: number;
  readonly received: number;
}

export class ServerConnection {
  /** When something was received last, and when something in time, on the monotonic clock. */
  received = Number.NEGATIVE_INFINITY;
  receivedInTime = Number.NEGATIVE_INFINITY;
  private unanswered = 0;
  /** Since when something is unanswered and nothing was received. */
  private silentSince = 0;
  private isChecking = false;
  /** The identity of the connection that was given up; the client's next one is usable. Null: none was. */
  private givenUp: unknown = null;
  private clock: ServerClock | null = null;
  private asked: { readonly connection: unknown; readonly at: number } | null = null;

  constructor(
    readonly dialect: Dialect,
    private readonly sendRaw: Send,
    /** Its identity now; undefined while it is not connected. */
    readonly identity: () => unknown,
    /** Null for the caller's client. */
    private readonly own: Connection | null,
  ) {}

  /** Whether it takes new commands. */
  get isUsable(): boolean {
    if (this.own) return this.givenUp === null && this.own.isOpen;
    if (this.givenUp === null) return true;
    const now = this.identity();
    if (this.givenUp === undefined) this.givenUp = now; // it gave its first replies before it called itself ready
    if (now === undefined || now === this.givenUp) return false;
    this.givenUp = null;
    return true;
  }

  /** Whether so little is unanswered that a round trip is that of the link. */
  get isQuiet(): boolean {
    return this.unanswered < 16;
  }

  get isFull(): boolean {
    return this.unanswered >= MAX_UNANSWERED;
  }

  sent(now: number): void {
    if (this.unanswered++ === 0) this.silentSince = now;
    else if (now - this.silentSince >= SILENCE) this.check();
  }

  /** A command on it has its reply, or an error. */
  over(): void {
    this.unanswered--;
    this.received = performance.now();
    this.silentSince = this.received;
    if (this.unanswered === 0 && this.givenUp !== null) this.close();
  }

  /** It takes nothing new from now on. */
  giveUp(): void {
    if (this.givenUp !== null) return;
    this.givenUp = this.own ?? this.identity();
    if (!this.own) return;
    if (this.unanswered === 0) this.close();
    else setTimeout(() => this.close(), LATE).unref();
  }

  close(): void {
    if (this.own?.isOpen) this.own.close();
  }

  /** Learn what the server's clock shows, before a grant whose instant may matter. `failed` gets the server's error. */
  readClock(key: string, failed: (error: unknown) => void): void {
    const connection = this.identity();
    const now = performance.now();
    const { asked } = this;
    if (asked && asked.connection === connection && now - asked.at < CLOCK_AGE) return;
    this.asked = { connection, at: now };
    this.sendRaw(["TIME"], key).then(async (time) => {
      const received = performance.now();
      await this.known();
      this.clock = { connection: this.identity(), instant: instantOf(time), asked: now, received };
    }, failed);
  }

  /** A client may give its first replies before it calls itself connected: resolves when its connection is known. */
  async known(): Promise<void> {
    if (this.identity() === undefined) await new Promise(setImmediate);
  }

  /** An instant of the server's clock before a command that was sent at `sent`; null where that is unknown. */
  instantBefore(sent: number): number | null {
    const { clock } = this;
    if (!clock || clock.connection === undefined || clock.connection !== this.identity()) return null;
    const { instant, asked, received } = clock;
    if (sent >= received) return instant + Math.floor((1 - DRIFT) * (sent - received));
    return sent >= asked ? instant : instant - Math.ceil((1 + DRIFT) * (received - sent)); // the server keeps the order
  }

  /** Whether it is really silent, and not this process too busy to receive. */
  private check(): void {
    if (this.isChecking) return;
    this.isChecking = true;
    afterLoopTurns(() => {
      this.isChecking = false;
      if (this.unanswered > 0 && performance.now() - this.silentSince >= SILENCE) this.giveUp();
    });
  }
}
