/** A store for the plugin @fastify/rate-limit. */

import { Limiter, type LimiterOptions } from "./limiter.js";

/** As a limiter's; the limit and the window are those of the plugin, which may be functions there. */
export type StoreOptions = Omit<LimiterOptions, "limit" | "window" | "resolution" | "name">;

/** What is used of the plugin's options. */
interface PluginOptions {
  readonly ban?: number;
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly routeInfo?: { readonly method?: unknown; readonly url?: string };
}

type Callback = (error: Error | null, usage?: { current: number; ttl: number }) => void;

/** The class that the plugin takes as its option `store`. */
export function swlimitStore(options: StoreOptions) {
  const { prefix: usualPrefix = "swlimit:" } = options;
  const any = new Limiter({ ...options, prefix: "", limit: 1, window: 1000 });

  return class SwlimitStore {
    constructor(
      options: object,
      readonly prefix = usualPrefix,
    ) {
      refuse(options);
    }

    /** Count a request, if the limit allows it. */
    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.decide("allow", key, timeWindow, max).then(...answer(callback));
    }

    /** The same without counting. */
    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.decide("peek", key, timeWindow, max).then(...answer(callback));
    }

    /** The store of a route with options of its own. */
    child(options: object): SwlimitStore {
      const { method = "", url = "" } = (options as PluginOptions).routeInfo ?? {};
      return new SwlimitStore(options, `${this.prefix}${method}${url}-`);
    }

    /** @internal */
    async decide(how: "allow" | "peek", key: string, window: number, limit: number) {
      const decision = await any.with({ limit, window })[how](this.prefix + key);
      const { granted, remaining, retryAfter, resetAfter } = decision;
      if (granted > 0 || how === "peek") return { current: limit - remaining, ttl: resetAfter };
      return { current: limit + 1, ttl: retryAfter < 0 ? window : retryAfter };
    }
  };
}

/** What counts beyond the limit, or changes the window, is not what a sliding window does. */
function refuse({ ban = -1, continueExceeding = false, exponentialBackoff = false }: PluginOptions): void {
  if (ban > 0) throw new TypeError("swlimit does not count what it denies, so `ban` can be 0 only");
  if (continueExceeding) throw new TypeError("swlimit has no `continueExceeding`: what is denied changes nothing");
  if (exponentialBackoff) throw new TypeError("swlimit has no `exponentialBackoff`: block the key instead");
}

function answer(callback: Callback) {
  return [
    (usage: { current: number; ttl: number }) => callback(null, usage),
    (error: Error) => callback(error),
  ] as const;
}
