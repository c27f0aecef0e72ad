/** Workers of BullMQ that wait for their turn. */

import type { Duration } from "../core/duration.js";
import type { Limiter } from "../limiters/rate.js";

/** What is used of a job. */
interface AnyJob {
  readonly name: string;
  moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

export interface TurnOptions<Job> {
  readonly limiter: Limiter;
  /** Whose turn it is; the name of the job as a rule. */
  readonly key?: (job: Job) => string;
  /** Units that a job takes; 1 as a rule. */
  readonly cost?: (job: Job) => number;
  /**
   * A worker waits so long for a job's turn, as a rule "5s", which is less than BullMQ locks a job for. Then the job goes
   * back into the queue until its turn may come.
   */
  readonly timeout?: Duration;
}

/** A processor that does its work when it is the job's turn. The worker needs no limiter of its own. */
export function inTurn<Job extends AnyJob, Result>(
  { limiter, key = (job) => job.name, cost = () => 1, timeout = "5s" }: TurnOptions<Job>,
  work: (job: Job, token?: string) => Promise<Result>,
): (job: Job, token?: string) => Promise<Result> {
  return async (job, token) => {
    const { granted, retryAfter = 1000 } = await limiter.acquire(key(job), timeout, { cost: cost(job) });
    if (granted > 0) return work(job, token);
    if (retryAfter < 0) throw told("UnrecoverableError", "the job costs more than the limit, so its turn never comes");
    await job.moveToDelayed(Date.now() + Math.max(1, retryAfter), token);
    throw told("DelayedError", "it is not yet the job's turn");
  };
}

/** An error by whose name BullMQ knows what became of a job. */
function told(name: string, message: string): Error {
  return Object.assign(new Error(message), { name });
}
