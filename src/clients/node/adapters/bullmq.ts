/** BullMQ workers that wait for units before each job. */

import type { Decision } from "../core/decision.js";
import type { Duration } from "../core/duration.js";
import { ofRequests, type Part } from "../limiters/member.js";
import type { Limiter } from "../limiters/rate.js";
import { NotAdmittedError, type Spending, type SpendingOptions, spending } from "../limiters/spending.js";

/** The used part of a job. */
interface AnyJob {
  readonly name: string;
  // biome-ignore lint/suspicious/noExplicitAny: as BullMQ types the data of jobs whose type nobody says
  readonly data: any;
  moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

interface Waiting {
  /**
   * How long a worker waits for the units, by default "5s": less than BullMQ locks a job for. Then the job goes back
   * into the queue for as long as they will take.
   */
  readonly timeout?: Duration;
}

export interface TurnOptions<Job> extends Waiting {
  readonly limiter: Limiter;
  /** The key of a job; by default its name. */
  readonly key?: (job: Job) => string;
  /** The units of a job; 1 by default. */
  readonly cost?: (job: Job) => number;
}

export interface FleetOptions<Job, Name extends string> extends Waiting, Pick<SpendingOptions, "maxAge" | "onError"> {
  /** Several limits of a job: rates, budgets, and places that it holds while it is done. */
  readonly parts: (job: Job) => readonly Part<Name>[];
}

type Processor<Job, Result> = (job: Job, token?: string) => Promise<Result>;

/**
 * A processor that waits for a job's units and then does its work. The worker needs no limiter of its own. With `parts`,
 * each attempt is admitted, and settled by the usage that the work saw.
 *
 * @example
 * import { Worker } from "bullmq";
 * import { inTurn } from "swlimit/bullmq";
 *
 * const limiter = new Limiter({ client, limit: 100, window: "1m", prefix: "partner:" });
 * const job = inTurn({ limiter, key: ({ data }) => data.partner }, async ({ data }) => console.log(data.call));
 * new Worker("calls", job, { connection: { host: "127.0.0.1", port: 6379 } });
 */
export function inTurn<Job extends AnyJob, Result, Name extends string>(
  options: FleetOptions<Job, Name>,
  work: (job: Job, token: string | undefined, spent: Spending<Name>) => Promise<Result>,
): Processor<Job, Result>;
export function inTurn<Job extends AnyJob, Result>(
  options: TurnOptions<Job>,
  work: Processor<Job, Result>,
): Processor<Job, Result>;
export function inTurn<Job extends AnyJob, Result>(
  options: TurnOptions<Job> | FleetOptions<Job, string>,
  work: (job: Job, token: string | undefined, spent: Spending) => Promise<Result>,
): Processor<Job, Result> {
  return "parts" in options ? admittedJob(options, work) : acquiredJob(options, work as Processor<Job, Result>);
}

function acquiredJob<Job extends AnyJob, Result>(
  { limiter, key = (job) => job.name, cost = () => 1, timeout = "5s" }: TurnOptions<Job>,
  work: Processor<Job, Result>,
): Processor<Job, Result> {
  return async (job, token) => {
    const decision = await limiter.acquire(key(job), timeout, { cost: cost(job) });
    return decision.granted > 0 ? work(job, token) : later(job, token, decision);
  };
}

function admittedJob<Job extends AnyJob, Result>(
  { parts, timeout: wait = "5s", ...options }: FleetOptions<Job, string>,
  work: (job: Job, token: string | undefined, spent: Spending) => Promise<Result>,
): Processor<Job, Result> {
  return async (job, token) => {
    let hasBegun = false;
    try {
      return await spending(ofRequests(parts(job)), { ...options, wait }, (spent) => {
        hasBegun = true;
        return work(job, token, spent);
      });
    } catch (error) {
      if (hasBegun || !(error instanceof NotAdmittedError)) throw error;
      return later(job, token, { never: error.admission.never, retryAfter: error.admission.clientWait });
    }
  };
}

/** Put the job back into the queue until its units may be there. */
async function later(
  job: AnyJob,
  token: string | undefined,
  { never, retryAfter = 1000 }: Pick<Decision, "never" | "retryAfter">,
): Promise<never> {
  if (never) {
    throw errorNamed("UnrecoverableError", "the job costs more than the limit, so its turn never comes");
  }
  await job.moveToDelayed(Date.now() + Math.max(1, retryAfter), token);
  throw errorNamed("DelayedError", "it is not yet the job's turn");
}

/** An error; BullMQ acts on its name. */
function errorNamed(name: string, message: string): Error {
  return Object.assign(new Error(message), { name });
}
