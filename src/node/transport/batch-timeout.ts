/** When to stop waiting for replies: one timer for all commands that have the same timeout. */

export interface Awaited {
  /** Whether a reply, or an error, has come. */
  readonly isOver: boolean;
  /** The reply has not come within the timeout. */
  overdue(): void;
}

/** How often the event loop goes round, once time is up, before that is believed. */
const ROUNDS = 3;

const resolved = Promise.resolve();

/** Commands that are written together. */
class Batch {
  readonly members: Awaited[] = [];
  /** So many are waited for. */
  open = 0;
  due = 0;

  constructor(private readonly queue: Queue) {}

  /** One of them is over. */
  over(): void {
    if (--this.open === 0) this.queue.over();
  }
}

class Queue {
  private writing: Batch | null = null;
  private written: Batch[] = [];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly timeout: number) {}

  add(member: Awaited): Batch {
    // Time counts from when clients are about to write what they are given now: after this piece of the program's work.
    if (!this.writing) {
      this.writing = new Batch(this);
      resolved.then(() => this.write()); // which costs less than queueMicrotask
    }
    this.writing.members.push(member);
    this.writing.open++;
    return this.writing;
  }

  /** All of a batch are over. While none is waited for, nothing keeps the process from ending. */
  over(): void {
    while (this.written[0]?.open === 0) this.written.shift();
    if (this.written.length === 0) this.timer?.unref();
  }

  private write(): void {
    const batch = this.writing as Batch;
    this.writing = null;
    if (batch.open === 0) return;
    batch.due = performance.now() + this.timeout;
    this.written.push(batch);
    if (!this.timer) this.timer = this.set(this.timeout);
    else if (this.written.length === 1) this.timer.ref();
  }

  private set(ms: number): NodeJS.Timeout {
    return setTimeout(() => this.look(performance.now(), ROUNDS), Math.max(0, ms));
  }

  /** After a stall of the event loop what was sent may only now be written, and a reply that is there already counts. */
  private look(instant: number, rounds: number): void {
    if (rounds === 0) this.end(instant);
    else setImmediate(() => this.look(instant, rounds - 1));
  }

  /** Time was up at an instant; the event loop may have stalled again since. */
  private end(instant: number): void {
    const first = this.written.findIndex(({ due }) => due > instant);
    const ended = this.written.splice(0, first < 0 ? this.written.length : first);
    const [next] = this.written;
    this.timer = next && this.set(next.due - performance.now());
    for (const { members } of ended) for (const member of members) if (!member.isOver) member.overdue();
  }
}

export class Patience {
  private readonly queues = new Map<number, Queue>();

  /** Wait up to `timeout` ms, from when a command that was given to a client just now is written. */
  wait(member: Awaited, timeout: number): Batch {
    let queue = this.queues.get(timeout);
    if (!queue) {
      queue = new Queue(timeout);
      this.queues.set(timeout, queue);
    }
    return queue.add(member);
  }
}
