import { inTime } from "./timeout.js";

/** Turns by key, first come, first served within this process. */
export class Turns {
  private readonly last = new Map<string, Promise<void>>();

  /** Do something when all that came before have done theirs; or, once `ms` have passed before that, give up. */
  async take<T>(
    key: string,
    ms: number,
    signal: AbortSignal | undefined,
    work: () => Promise<T>,
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
      return await work();
    } finally {
      over();
    }
  }
}
