/** BullMQ workers that wait for units before each job. */

import type { Duration } from "../core/duration.js";
import type { Limiter } from "../limiters/rate.js";

/** The used part of a job. */
interface AnyJob {
  readonly name: string;
  moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

export interface TurnOptions<Job> {
  readonly limiter: Limiter;
  /** The key of a job; by default its name. */
  readonly key?: (job: Job) => string;
  /** The units of a job; 1 by default. */
  readonly cost?: (job: Job) => number;
  /**
   * How long a worker waits for the units, by default "5s": less than BullMQ locks a job for. Then the job goes back
   * into the queue for as long as they will take.
   */
  readonly timeout?: Duration;
}

/** A processor that waits for a job's units and then does its work. The worker needs no limiter of its own. */
export function inTurn<Job extends AnyJob, Result>(
  { limiter, key = (job) => job.name, cost = () => 1, timeout = "5s" }: TurnOptions<Job>,
  work: (job: Job, token?: string) => Promise<Result>,
): (job: Job, token?: string) => Promise<Result> {
  return async (job, token) => {
    const { granted, retryAfter = 1000 } = await limiter.acquire(key(job), timeout, { cost: cost(job) });
    if (granted > 0) return work(job, token);
    if (retryAfter < 0)
      throw errorNamed("UnrecoverableError", "the job costs more than the limit, so its turn never comes");
    await job.moveToDelayed(Date.now() + Math.max(1, retryAfter), token);
    throw errorNamed("DelayedError", "it is not yet the job's turn");
  };
}

/** An error; BullMQ acts on its name. */
function errorNamed(name: string, message: string): Error {
  return Object.assign(new Error(message), { name });
}
