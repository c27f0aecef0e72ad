/** When to stop waiting for replies: one timer for all commands that have the same timeout. */

export interface Awaited {
  /** Whether a reply, or an error, has come. */
  readonly isOver: boolean;
  /** The reply has not come within the timeout. */
  overdue(): void;
}

/** Commands that are written together. */
interface Batch {
  readonly due: number;
  readonly members: readonly Awaited[];
}

class Queue {
  private asked: Awaited[] = [];
  private batches: Batch[] = [];
  private open = 0;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly timeout: number) {}

  add(member: Awaited): void {
    // Time counts from when clients are about to write what they are given now: after this piece of the program's work.
    if (this.asked.length === 0) queueMicrotask(() => this.written());
    this.asked.push(member);
    if (++this.open === 1) this.timer?.ref();
  }

  /** One of them is over. While none is waited for, nothing keeps the process from ending. */
  over(): void {
    if (--this.open > 0) return;
    this.batches = [];
    this.timer?.unref();
  }

  private written(): void {
    const members = this.asked;
    this.asked = [];
    if (this.open === 0) return;
    this.batches.push({ due: performance.now() + this.timeout, members });
    this.timer ??= this.set(this.timeout);
  }

  // Timers run before input is read: after a stall of the event loop, a reply that is there already still counts.
  private set(ms: number): NodeJS.Timeout {
    return setTimeout(() => setImmediate(() => this.end()), ms);
  }

  private end(): void {
    const now = performance.now();
    const first = this.batches.findIndex(({ due }) => due > now);
    const ended = this.batches.splice(0, first < 0 ? this.batches.length : first);
    const [next] = this.batches;
    this.timer = next && this.set(next.due - now);
    for (const { members } of ended) for (const member of members) if (!member.isOver) member.overdue();
  }
}

export class Patience {
  private readonly queues = new Map<number, Queue>();

  /** Wait up to `timeout` ms, from when a command that was given to a client just now is written. */
  wait(member: Awaited, timeout: number): Queue {
    let queue = this.queues.get(timeout);
    if (!queue) {
      queue = new Queue(timeout);
      this.queues.set(timeout, queue);
    }
    queue.add(member);
    return queue;
  }
}

export type { Queue };
