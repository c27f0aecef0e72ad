/** A map of a bounded number of keys, which forgets those first that were put in first. */
export class Bounded<Value> extends Map<string, Value> {
  constructor(private readonly most: number) {
    super();
  }

  override set(key: string, value: Value): this {
    super.set(key, value);
    if (this.size > this.most) this.forgetSome();
    return this;
  }

  /** Several at once: a new iterator steps over all that was deleted before, and one that is kept keeps that alive. */
  private forgetSome(): void {
    let left = Math.max(1, Math.floor(this.most / 16));
    for (const key of this.keys()) {
      this.delete(key);
      if (--left === 0) return;
    }
  }
}
