/** Options of limiters, their defaults, and their checks. */

import { type Duration, flag, integer, milliseconds, resolutionOf, shown } from "./duration.js";
import type { WarmUpOptions } from "./warm-up.js";
import type { Quota } from "./window.js";

/** A quota: units per window. */
export interface QuotaOptions {
  /** Units per window, 0 … 2^53 − 1. */
  readonly limit: number;
  /** The window: ms, or a text such as "60s"; 1 ms … 3650 days. */
  readonly window: Duration;
  /** The length of a subinterval, which divides the window evenly; by default a twelfth of the window if that does. */
  readonly resolution?: Duration | undefined;
  /** Never exceed the limit in any span of a window. Capacity comes back up to one resolution later. */
  readonly strict?: boolean;
}

/**
 * Where a limiter makes its decisions. "direct" asks the server for every request; "cached" repeats known denials
 * without asking; "local" decides in this process.
 */
export type Mode = "direct" | "cached" | "local";

/** What happens when the server does not answer: this process decides, grants, denies, or throws an error. */
export type OnFailure = "local" | "allow" | "deny" | "error";

/** Whether the module or the script decides. */
export type ModuleUse = "auto" | "always" | "never";

/** Whether a URL leads to a cluster; "auto" finds out. */
export type ClusterMode = "auto" | "on" | "off";

/** The options of a client that a limiter opens by itself. */
export interface UrlOptions {
  /**
   * Whether the client is a cluster's: "auto" by default, if the server says that it is part of one and an address that
   * it names can be reached.
   */
  readonly cluster?: ClusterMode | undefined;
}

/** How long a request may take. */
export interface WaitOptions {
  /**
   * How much longer the caller waits. A little earlier, `onFailure` decides; a caller that waits for units after a denial
   * gets that denial.
   */
  readonly deadline?: Duration;
  /** Ends the wait without a decision. What the server still grants is given back. */
  readonly signal?: AbortSignal | undefined;
}

/** The options of all limiters. */
export interface CommonOptions {
  /** What happens when the server does not answer; "local" by default. */
  readonly onFailure?: OnFailure;
  /** This process's share of the limit with `onFailure: "local"`: 0.000001 … 1, by default 0.1. */
  readonly localShare?: number;
  /**
   * Whether the module decides ("always"), or the script for servers without it ("never"); by default the script where
   * the server lacks the module ("auto").
   */
  readonly module?: ModuleUse;
  /** The longest that a request waits for the server; 50 ms by default. */
  readonly timeout?: Duration;
  /** The maximum number of keys that this process remembers; 100 000 by default. */
  readonly maxKeys?: number;
  /** Prepended to every key. */
  readonly prefix?: string;
  /** The limiter's name in response headers. */
  readonly name?: string;
}

/** The options of rate limiters. */
export interface RateOptions extends CommonOptions, QuotaOptions, WarmUpOptions {
  /** Where decisions are made: "cached" by default, "local" without a client. */
  readonly mode?: Mode;
  /** The maximum of connections for waiting requests of all limiters of a client; 10 by default. */
  readonly maxWaiting?: number;
  /** How long a denial is cached at most when the server can't send invalidations; 100 ms by default. */
  readonly maxUntrackedAge?: Duration;
}

/** The options, complete and checked; durations in ms. */
export interface Settings {
  readonly mode: Mode;
  readonly onFailure: OnFailure;
  readonly localShare: number;
  readonly module: ModuleUse;
  readonly timeout: number;
  readonly maxKeys: number;
  readonly maxWaiting: number;
  readonly maxUntrackedAge: number;
  readonly prefix: string;
  readonly name: string;
}

export const DEFAULTS: Settings = {
  mode: "cached",
  onFailure: "local",
  localShare: 0.1,
  module: "auto",
  timeout: 50,
  maxKeys: 100_000,
  maxWaiting: 10,
  maxUntrackedAge: 100,
  prefix: "",
  name: "default",
};

/** A lock that is granted without the server may have two holders, and a first connection takes several round trips. */
export const HOLD_DEFAULTS: Settings = { ...DEFAULTS, onFailure: "error", timeout: 1000 };

const QUOTA = ["limit", "window", "resolution", "strict"];
const COMMON = ["client", "onFailure", "localShare", "module", "timeout", "maxKeys", "prefix", "name"];
const OF_RATES = [...QUOTA, "mode", "maxWaiting", "maxUntrackedAge", "warmUp", "cold"];

/** The options of a limiter whose client and rate are arguments of their own. */
export const BESIDE_RATE = new Set([...COMMON, ...OF_RATES].filter((name) => !/^(client|limit|window)$/.test(name)));

/** What the options of `fromUrl` say of the client; what is left are the limiter's. */
export function ofUrl<Options extends UrlOptions>(options: Options): [ClusterMode, Omit<Options, "cluster">] {
  const { cluster = "auto", ...others } = options;
  return [oneOf(cluster, "cluster", ["auto", "on", "off"]), others];
}

/** Former names of options, and their names in other languages. */
const RENAMED: Record<string, string> = {
  decide: "mode",
  deciding: "mode",
  whenAway: "onFailure",
  when_away: "onFailure",
  on_failure: "onFailure",
  raise: "onFailure",
  warm_up: "warmUp",
  share: "localShare, or the Rust client's leaseShare",
  local_share: "localShare",
  untracked: "maxUntrackedAge",
  mostKeys: "maxKeys",
  max_keys: "maxKeys",
  keyPrefix: "prefix",
};

/** The settings of a limiter; `own` are the names of its options beyond those that all limiters have. */
export function settingsOf(options: CommonOptions, own: readonly string[] = OF_RATES, defaults = DEFAULTS): Settings {
  if (typeof options !== "object" || options === null) throw new TypeError("options must be an object");
  for (const name of Object.keys(options)) known(name, new Set([...COMMON, ...own]));
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const {
    client,
    mode = client === undefined ? "local" : "cached",
    ...rest
  }: Partial<RateOptions> & { client?: unknown } = given;
  const found = { ...defaults, ...rest };
  if (client === undefined && mode !== "local") throw new TypeError(`mode "${String(mode)}" needs a client`);
  if (!(found.localShare >= 0.000001 && found.localShare <= 1)) {
    throw new RangeError(`localShare must be a number between 0.000001 and 1, not ${shown(found.localShare)}`);
  }
  return {
    mode: oneOf(mode, "mode", ["direct", "cached", "local"]),
    onFailure: oneOf(found.onFailure, "onFailure", ["local", "allow", "deny", "error"]),
    localShare: found.localShare,
    module: oneOf(found.module, "module", ["auto", "always", "never"]),
    timeout: milliseconds(found.timeout, "timeout"),
    maxKeys: integer(found.maxKeys, "maxKeys", 1),
    maxWaiting: integer(found.maxWaiting, "maxWaiting", 1),
    maxUntrackedAge: milliseconds(found.maxUntrackedAge, "maxUntrackedAge", 0),
    prefix: text(found.prefix, "prefix"),
    name: text(found.name, "name"),
  };
}

/** The quota; durations in ms. */
export function quotaOf({ limit, window, resolution, strict = false }: QuotaOptions): Quota {
  const length = milliseconds(window, "window");
  const cut = resolutionOf(length, resolution);
  return { limit: integer(limit, "limit", 0), window: length, resolution: cut, strict: flag(strict, "strict") };
}

/** A quota with some changes. */
export function quotaLike(quota: Quota, changes: Partial<QuotaOptions>): Quota {
  for (const name of Object.keys(changes)) known(name, new Set(QUOTA));
  const given = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
  const resolution = "window" in given ? undefined : quota.resolution;
  return quotaOf({ ...quota, resolution, ...given });
}

/** Check the options of a request: their names, the deadline and the signal. */
export function requested<Options extends object>(options: Options, names: ReadonlySet<string>): Options {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`options must be an object, not ${shown(options)}`);
  }
  for (const name in options) known(name, names);
  const { deadline, signal } = options as WaitOptions;
  if (deadline !== undefined) milliseconds(deadline, "deadline", 0);
  if (signal === undefined) return options;
  if (typeof signal?.throwIfAborted !== "function") {
    throw new TypeError(`signal must be an AbortSignal, not ${shown(signal)}`);
  }
  signal.throwIfAborted();
  return options;
}

function known(name: string, names: ReadonlySet<string>): void {
  if (names.has(name)) return;
  const now = RENAMED[name];
  throw new TypeError(now ? `the option ${name} is called ${now}` : `there is no option ${name}`);
}

export function oneOf<T extends string>(value: unknown, what: string, values: readonly T[]): T {
  if (values.includes(value as T)) return value as T;
  const all = values.map((one) => `"${one}"`).join(", ");
  throw new RangeError(`${what} must be one of ${all}, not ${shown(value)}`);
}

function text(value: unknown, what: string): string {
  if (typeof value !== "string") throw new TypeError(`${what} must be a string, not ${shown(value)}`);
  return value;
}
