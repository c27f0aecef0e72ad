/**
 * Limits of how many at once that follow response times. A function of the state and a sample: no clock. All times are
 * in whole µs.
 *
 * Both algorithms are those of Netflix's concurrency-limits, except for drops: a window lowers the limit when more than
 * 5 % of its samples are drops. AIMD goes by a timeout besides. Gradient2 compares the response times of each window
 * with those of the last minutes.
 */

export type Algorithm = "aimd" | "gradient2";

const LEAST_RTT = 100;
const LEAST_SAMPLES = 10;
const SAMPLES_A_DROP = 20;
const FIRST_WINDOWS = 10;

/** How a limit adapts. */
export interface AdaptiveSettings {
  readonly min: number;
  readonly max: number;
  readonly algorithm: Algorithm;
  readonly window: number;
  readonly timeout: number;
}

/** A permit that was given back. */
export interface Sample {
  readonly end: number;
  readonly rtt: number;
  /** How many there were when it began, with itself. */
  readonly inflight: number;
  readonly dropped: boolean;
}

/** An estimate of the limit, and what it was learnt from. */
export class AdaptiveState {
  /** When the window ends; null before the first sample. */
  ends: number | null = null;
  samples = 0;
  sum = 0;
  inflight = 0;
  drops = 0;
  /** Of the first ten windows with enough samples, how many are over. */
  windows = 0;
  windowsSum = 0;
  /** The response time of the last minutes. */
  long = 0;

  constructor(public estimate: number) {}

  get limit(): number {
    return Math.floor(this.estimate);
  }

  /** Whether more than a trickle was dropped. */
  get isOverloaded(): boolean {
    return this.drops * SAMPLES_A_DROP > this.samples;
  }
}

/** Take a sample into its window. The first one past the window's end closes it. */
export function step(settings: AdaptiveSettings, state: AdaptiveState, sample: Sample): void {
  if (sample.rtt < LEAST_RTT) return;
  state.samples++;
  state.sum += sample.rtt;
  state.inflight = Math.max(state.inflight, sample.inflight);
  if (sample.dropped) state.drops++;
  if (state.ends === null) {
    state.ends = sample.end + settings.window;
  } else if (sample.end > state.ends) {
    if (state.samples >= LEAST_SAMPLES) {
      const adapt = settings.algorithm === "aimd" ? aimd : gradient2;
      adapt(settings, state, state.sum / state.samples);
    }
    state.ends = sample.end + settings.window;
    state.samples = state.sum = state.inflight = state.drops = 0;
  }
}

function aimd({ min, max, timeout }: AdaptiveSettings, state: AdaptiveState, mean: number): void {
  const { limit } = state;
  if (state.isOverloaded || mean > timeout) {
    state.estimate = Math.max(min, Math.min(limit - 1, Math.floor((9 * limit) / 10)));
  } else if (2 * state.inflight >= limit) {
    state.estimate = Math.min(max, limit + 1);
  }
}

function gradient2({ min, max }: AdaptiveSettings, state: AdaptiveState, mean: number): void {
  if (state.isOverloaded) {
    state.estimate = Math.max(min, 0.9 * state.estimate);
    return;
  }
  if (state.windows < FIRST_WINDOWS) {
    state.windows++;
    state.windowsSum += mean;
    state.long = state.windowsSum / state.windows;
  } else {
    state.long += ((mean - state.long) * 2) / 601;
  }
  const gradient = Math.min(1, Math.max(0.5, (1.5 * state.long) / mean));
  if (state.long / mean > 2) state.long *= 0.95;
  if (2 * state.inflight >= state.estimate) {
    const estimate = 0.8 * state.estimate + 0.2 * (state.estimate * gradient + 4);
    state.estimate = Math.max(min, Math.min(max, estimate));
  }
}
