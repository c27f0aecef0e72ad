/** Limits of how many at once that follow response times, in this process alone. */

import { type AdaptiveSettings, AdaptiveState, type Algorithm, type Sample, step } from "../core/adaptive.js";
import { Decision } from "../core/decision.js";
import { isDrop, isDroppedStatus, isErrorStatus } from "../core/drops.js";
import { type Duration, integer, milliseconds } from "../core/duration.js";
import { DeniedError } from "../core/errors.js";
import { oneOf, requested } from "../core/options.js";

export interface AdaptiveOptions {
  /** The least limit, which is the first one; 20 by default. */
  readonly min?: number;
  /** The largest limit; 200 by default. */
  readonly max?: number;
  /**
   * "gradient2", the default, compares response times with those of the last minutes, "aimd" with `timeout`. Drops
   * lower both.
   */
  readonly algorithm?: Algorithm;
  /** How often the limit changes; 1 second by default. */
  readonly window?: Duration;
  /** The mean response time of a window above which "aimd" falls; 5 seconds by default. */
  readonly timeout?: Duration;
}

const OPTIONS = new Set(["min", "max", "algorithm", "window", "timeout"]);

/** How many may be under way at once, by how long they take. */
export class Adaptive {
  /** How many are under way. */
  inflight = 0;

  private readonly settings: AdaptiveSettings;
  private readonly state: AdaptiveState;

  constructor(options: AdaptiveOptions = {}) {
    const { min = 20, max = 200, algorithm = "gradient2", window = "1s", timeout = "5s" } = requested(options, OPTIONS);
    this.settings = {
      min: integer(min, "min", 1),
      max: integer(max, "max", min),
      algorithm: oneOf(algorithm, "algorithm", ["aimd", "gradient2"]),
      window: 1000 * milliseconds(window, "window"),
      timeout: 1000 * milliseconds(timeout, "timeout"),
    };
    this.state = new AdaptiveState(min);
  }

  /** How many may be under way now. */
  get limit(): number {
    return this.state.limit;
  }

  /** A permit, if one is free; give it back with `done`. */
  permit(): Permit | null {
    if (this.inflight >= this.limit) return null;
    return new Permit(++this.inflight, (sample) => {
      this.inflight--;
      if (sample) step(this.settings, this.state, sample);
    });
  }

  /**
   * Do some work while there is a permit for it. Without one, this throws a DeniedError. A drop is an error that says
   * that the other side is overloaded, or a response with such a status; other errors, and responses from 400 on, are
   * ignored.
   */
  async run<T>(work: (permit: Permit) => T | PromiseLike<T>): Promise<T> {
    const permit = this.permit();
    if (!permit) {
      throw new DeniedError(new Decision([0, this.limit, 0], { name: "adaptive", window: 0 }, "local"));
    }
    try {
      const result = await work(permit);
      if (isDroppedStatus(result)) permit.drop();
      else if (isErrorStatus(result)) permit.ignore();
      permit.done();
      return result;
    } catch (error) {
      permit.done(error);
      throw error;
    }
  }
}

/** A permit of an `Adaptive`. */
export class Permit {
  private readonly began = now();
  private isDropped = false;
  private isOver = false;

  /** @internal */
  constructor(
    private readonly inflight: number,
    private readonly giveBack: (sample?: Sample) => void,
  ) {}

  /** The other side is overloaded: it has refused this request, or was too slow. Ends nothing by itself. */
  drop(): void {
    this.isDropped = true;
  }

  /** Give the permit back, once. Of errors only those count that are drops. */
  done(error?: unknown): void {
    const dropped = this.isDropped || isDrop(error);
    const end = now();
    const counts = dropped || error === undefined;
    this.end(counts ? { end, rtt: end - this.began, inflight: this.inflight, dropped } : undefined);
  }

  /** Give the permit back, once, without a word about the other side. */
  ignore(): void {
    this.end();
  }

  private end(sample?: Sample): void {
    if (this.isOver) return;
    this.isOver = true;
    this.giveBack(sample);
  }
}

/** µs, by a clock that nobody sets. */
function now(): number {
  return Math.floor(performance.now() * 1000);
}
