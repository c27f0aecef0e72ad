/** A map with a maximum number of keys. The oldest entries go first. */
export class BoundedMap<Value> extends Map<string, Value> {
  constructor(private readonly maxKeys: number) {
    super();
  }

  override set(key: string, value: Value): this {
    super.set(key, value);
    if (this.size > this.maxKeys) this.removeOldest();
    return this;
  }

  /** Remove several at once: a new iterator skips all removed entries, and a kept one keeps them in memory. */
  private removeOldest(): void {
    let left = Math.max(1, Math.floor(this.maxKeys / 16));
    for (const key of this.keys()) {
      this.delete(key);
      if (--left === 0) return;
    }
  }
}
