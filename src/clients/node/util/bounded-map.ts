/** A map with a maximum number of keys. Entries that were not used for the longest time go first, and pinned ones last. */
export class BoundedMap<Value> extends Map<string, Value> {
  /** `isPinned`: entries that stay, as long as they are at most half of all. `evicted` gets each that goes. */
  constructor(
    private readonly maxKeys: number,
    private readonly isPinned: (value: Value) => boolean = () => false,
    private readonly evicted: (value: Value) => void = () => {},
  ) {
    super();
  }

  override set(key: string, value: Value): this {
    super.set(key, value);
    if (this.size > this.maxKeys) this.removeOldest();
    return this;
  }

  /** The value of a key, which is the newest now. */
  used(key: string): Value | undefined {
    const value = this.get(key);
    if (value !== undefined) {
      this.delete(key);
      super.set(key, value);
    }
    return value;
  }

  /** Remove several at once: a new iterator skips all removed entries, and a kept one keeps them in memory. */
  private removeOldest(): void {
    let left = Math.max(1, Math.floor(this.maxKeys / 16));
    let pinned = 0;
    for (const [key, value] of this) {
      this.delete(key);
      if (this.isPinned(value) && ++pinned <= this.maxKeys / 2) super.set(key, value);
      else {
        this.evicted(value);
        if (--left === 0) return;
      }
    }
  }
}
