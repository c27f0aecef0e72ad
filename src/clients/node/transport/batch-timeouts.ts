/** Timeouts of replies: one timer for all commands with the same timeout. */

const resolved = Promise.resolve();

export interface PendingReply {
  /** Whether a reply, or an error, has come. */
  readonly isOver: boolean;
  /** Called when the reply has not come within the timeout. */
  overdue(): void;
}

/** After the timeout, the event loop runs so many more rounds to receive replies that are already there. */
export const LOOP_TURNS = 3;

/** Call `work` when the event loop has received what is there already. */
export function afterLoopTurns(work: () => void, turns = LOOP_TURNS): void {
  if (turns === 0) work();
  else setImmediate(afterLoopTurns, work, turns - 1);
}

/** Commands that are written together. */
export class Batch {
  readonly replies: PendingReply[] = [];
  /** The number of replies that are still pending. */
  pending = 0;
  due = 0;

  constructor(private readonly queue: Queue) {}

  /** One of the replies has come. */
  over(): void {
    if (--this.pending === 0) this.queue.over();
  }
}

class Queue {
  private unwritten: Batch | null = null;
  private written: Batch[] = [];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly timeout: number) {}

  add(reply: PendingReply): Batch {
    // Clients write their commands after the current piece of the program's work: time counts from then on.
    if (!this.unwritten) {
      this.unwritten = new Batch(this);
      resolved.then(() => this.write()); // which costs less than queueMicrotask
    }
    this.unwritten.replies.push(reply);
    this.unwritten.pending++;
    return this.unwritten;
  }

  /** A batch is complete. While nothing is pending, the timer does not keep the process alive. */
  over(): void {
    while (this.written[0]?.pending === 0) this.written.shift();
    if (this.written.length === 0) this.timer?.unref();
  }

  private write(): void {
    const batch = this.unwritten as Batch;
    this.unwritten = null;
    if (batch.pending === 0) return;
    setImmediate(() => {
      if (batch.pending === 0) return;
      batch.due = performance.now() + this.timeout;
      this.written.push(batch);
      if (!this.timer) this.timer = this.set(this.timeout);
      else if (this.written.length === 1) this.timer.ref();
    });
  }

  private set(ms: number): NodeJS.Timeout {
    return setTimeout(
      () => {
        const instant = performance.now();
        afterLoopTurns(() => this.end(instant));
      },
      Math.max(0, ms),
    );
  }

  /** End the batches that were due at an instant; the event loop may have stalled again since. */
  private end(instant: number): void {
    const first = this.written.findIndex(({ due }) => due > instant);
    const ended = this.written.splice(0, first < 0 ? this.written.length : first);
    const [next] = this.written;
    this.timer = next && this.set(next.due - performance.now());
    for (const { replies } of ended) for (const reply of replies) if (!reply.isOver) reply.overdue();
  }
}

export class BatchTimeouts {
  private readonly queues = new Map<number, Queue>();

  /** Time out after `timeout` ms, from when a command that was just given to a client is written. */
  add(reply: PendingReply, timeout: number): Batch {
    let queue = this.queues.get(timeout);
    if (!queue) {
      queue = new Queue(timeout);
      this.queues.set(timeout, queue);
    }
    return queue.add(reply);
  }
}
