import { inTime } from "./timeout.js";

/** Requests of this process that wait for the same key take turns: first come, first served. */
export class FairQueue {
  private readonly last = new Map<string, Promise<void>>();

  /** Whether a request for the key waits here. */
  isWaitedFor(key: string): boolean {
    return this.last.has(key);
  }

  /**
   * Do `work` when all earlier requests for the key are done, and say whether there were any; `giveUp` when that takes
   * longer than `ms`.
   */
  async take<T>(
    key: string,
    ms: number,
    signal: AbortSignal | undefined,
    work: (hasWaited: boolean) => Promise<T>,
    giveUp: () => Promise<T>,
  ): Promise<T> {
    const before = this.last.get(key);
    let over = () => {};
    const mine = new Promise<void>((resolve) => {
      over = resolve;
    });
    const chain = before ? before.then(() => mine) : mine;
    this.last.set(key, chain);
    chain.then(() => {
      if (this.last.get(key) === chain) this.last.delete(key);
    });
    try {
      if (before && !(await inTime(before, ms, signal))) return await giveUp();
      return await work(before !== undefined);
    } finally {
      over();
    }
  }
}
