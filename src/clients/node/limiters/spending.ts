/** Work whose usage is known while it goes on, or when it is done: admitted before, and settled once after it. */

import type { Decision } from "../core/decision.js";
import { DeniedError } from "../core/errors.js";
import { oneOf } from "../core/options.js";
import { type Admission, type AdmitOptions, admitted } from "./admission.js";
import type { Part } from "./member.js";
import { knownUsage, type NameOf, type Usage } from "./usage.js";

export interface SpendingOptions extends AdmitOptions {
  /**
   * What happens to the reserved units when `work` fails before any usage was seen: they stay counted ("keep", the
   * default), or go back. After an AbortError they stay: how much was used is unknown.
   */
  readonly onError?: "keep" | "giveBack";
}

/** A denial of `spending`. */
export class NotAdmittedError extends DeniedError {
  constructor(readonly admission: Admission) {
    super(admission.deniedBy?.decision as Decision);
  }
}

/** Units of limits that are being spent. */
export class Spending<Name extends string = string> {
  /** Aborts when one of the places is lost. */
  readonly signal: AbortSignal;
  private seen: Record<string, number> | null = null;

  /** @internal */
  constructor(readonly admission: Admission<Name>) {
    this.signal = AbortSignal.any(admission.holds.map(({ signal }) => signal));
  }

  /** Usage that became known. The last number of each name is settled; without any, what was reserved. */
  saw(usage: Usage<Name>): void {
    this.seen = { ...this.seen, ...knownUsage(this.admission.parts, usage) };
  }

  /** Settle what was seen. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.admission.end(this.seen ?? {});
  }

  /** @internal The work has failed: where nothing was seen, nothing was used. */
  async giveBack(): Promise<void> {
    await this.admission.end(this.seen ?? "nothing");
  }
}

/**
 * Admit work, and settle what it used when it ends: `await using spent = await spending(parts)`. A denial throws a
 * NotAdmittedError. The settlement happens once, whatever replies are lost, with places among the parts or without.
 */
export function spending<const Parts extends readonly Part[]>(
  parts: Parts,
  options?: AdmitOptions,
): Promise<Spending<NameOf<Parts[number]>>>;
/** Do `work` so, and return its result. */
export function spending<const Parts extends readonly Part[], Result>(
  parts: Parts,
  options: SpendingOptions,
  work: (spent: Spending<NameOf<Parts[number]>>) => Promise<Result>,
): Promise<Result>;
export async function spending<Name extends string, Result>(
  parts: readonly Part[],
  { onError, ...options }: SpendingOptions = {},
  work?: (spent: Spending<Name>) => Promise<Result>,
): Promise<Spending<Name> | Result> {
  if (onError !== undefined) {
    if (!work) throw new TypeError("onError needs the function that does the work: nothing else tells that it failed");
    oneOf(onError, "onError", ["keep", "giveBack"]);
  }
  const admission = await admitted<Name>(parts, options, true);
  if (!admission.granted) throw new NotAdmittedError(admission);
  const spent = new Spending(admission);
  if (!work) return spent;
  let isUnused = false;
  try {
    return await work(spent);
  } catch (error) {
    isUnused = onError === "giveBack" && (error as Error | null)?.name !== "AbortError";
    throw error;
  } finally {
    await (isUnused ? spent.giveBack() : spent[Symbol.asyncDispose]());
  }
}
