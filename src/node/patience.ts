/** When to stop waiting for replies: one timer for all commands that are written together. */

export interface Awaited {
  /** Whether a reply, or an error, has come. */
  isOver: boolean;
  /** The reply has not come within the timeout. */
  overdue(): void;
}

class Batch {
  readonly members: Awaited[] = [];
  private open = 0;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly timeout: number) {}

  add(member: Awaited): void {
    this.members.push(member);
    this.open++;
  }

  /** They have been written. */
  written(): void {
    if (this.open === 0) return;
    // Timers run before input is read: after a stall of the event loop, a reply that is there already still counts.
    this.timer = setTimeout(() => setImmediate(() => this.end()), this.timeout);
  }

  /** One of them is over. */
  over(): void {
    if (--this.open === 0) clearTimeout(this.timer);
  }

  private end(): void {
    for (const member of this.members) if (!member.isOver) member.overdue();
  }
}

export class Patience {
  private readonly batches = new Map<number, Batch>();

  /** Wait up to `timeout` ms, from when a command that was given to a client just now is written. */
  wait(member: Awaited, timeout: number): Batch {
    let batch = this.batches.get(timeout);
    if (!batch) {
      const made = new Batch(timeout);
      batch = made;
      this.batches.set(timeout, made);
      // Clients write what they were given in this turn of the event loop no later than at its end.
      setImmediate(() => {
        this.batches.delete(timeout);
        made.written();
      });
    }
    batch.add(member);
    return batch;
  }
}

export type { Batch };
