/** A store for the plugin @fastify/rate-limit. */

import { Limiter, type LimiterOptions } from "../limiters/rate.js";
import { type FixedOptions, limiterOf } from "./fixed.js";

/** A limiter's options. The limit and the window come from the plugin, where they may be functions. */
export type StoreOptions = Omit<LimiterOptions, "limit" | "window" | "resolution" | "name"> & FixedOptions;

/** The used options of the plugin. */
interface PluginOptions {
  readonly ban?: number;
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly routeInfo?: { readonly method?: unknown; readonly url?: string };
}

interface Usage {
  readonly current: number;
  readonly ttl: number;
}

type Callback = (error: Error | null, usage?: Usage) => void;

/**
 * The class for the plugin's option `store`.
 *
 * @example
 * import fastifyRateLimit from "@fastify/rate-limit";
 * import fastify from "fastify";
 * import { swlimitStore } from "swlimit/fastify-rate-limit";
 *
 * const app = fastify();
 * await app.register(fastifyRateLimit, { max: 100, timeWindow: "1 minute", store: swlimitStore({ client }) });
 */
export function swlimitStore(options: StoreOptions) {
  const { prefix: usualPrefix = "swlimit:" } = options;
  const any = limiterOf({ ...options, prefix: "", limit: 1, window: 1000 });

  return class SwlimitStore {
    /** @internal The denials in a window before the next one blocks the key; −1: unlimited. */ readonly ban: number;

    constructor(
      options: object,
      readonly prefix = usualPrefix,
    ) {
      const { ban = -1, continueExceeding = false, exponentialBackoff = false } = options as PluginOptions;
      if (ban > 0 && !(any instanceof Limiter)) throw new TypeError("fixed windows have no `ban` above 0: no blocks");
      if (continueExceeding) throw new TypeError("swlimit has no `continueExceeding`: what is denied changes nothing");
      if (exponentialBackoff) throw new TypeError("swlimit has no `exponentialBackoff`: block the key instead");
      this.ban = ban;
    }

    /** Count a request, if the limit allows it. */
    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.count(key, timeWindow, max).then(...answer(callback));
    }

    /** Decide without counting. */
    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.look(key, timeWindow, max).then(...answer(callback));
    }

    /** The store of a route with its own options. */
    child(options: object): SwlimitStore {
      const { method = "", url = "" } = (options as PluginOptions).routeInfo ?? {};
      return new SwlimitStore(options, `${this.prefix}${method}${url}-`);
    }

    /** @internal */
    async look(key: string, window: number, limit: number): Promise<Usage> {
      const { remaining = limit, resetAfter = 0 } = await any.with({ limit, window }).peek(this.prefix + key);
      return { current: limit - remaining, ttl: resetAfter };
    }

    /** @internal */
    async count(key: string, window: number, limit: number): Promise<Usage> {
      const name = this.prefix + key;
      const { granted, remaining, retryAfter, resetAfter } = await any.with({ limit, window }).allow(name);
      if (granted > 0) return { current: limit - (remaining ?? limit - 1), ttl: resetAfter ?? window };
      const ttl = retryAfter ?? window;
      const strikes = this.ban > 0 ? await this.strike(any as Limiter, name, window) : 1;
      return { current: limit + strikes, ttl };
    }

    /** @internal The denials of a key within the window, this one included. One too many blocks the key. */
    async strike(limiter: Limiter, name: string, window: number): Promise<number> {
      const strikes = limiter.with({ limit: this.ban, window });
      const { granted, source, remaining } = await strikes.allow(`${name}:denied`, { block: window });
      if (granted > 0) return this.ban - (remaining ?? this.ban - 1);
      if (source !== "cache") await limiter.block(name, window, { unlessBlocked: true }).catch(() => {});
      return this.ban + 1;
    }
  };
}

function answer(callback: Callback) {
  return [(usage: Usage) => callback(null, usage), (error: Error) => callback(error)] as const;
}
