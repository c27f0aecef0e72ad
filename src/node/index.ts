/** Sliding-window rate limiting in Redis and Valkey, with the module swlimit. */

export { Decision, type HeaderOptions } from "./decision.js";
export type { Duration } from "./duration.js";
export { ModuleMissingError, RefusedError, UnavailableError } from "./errors.js";
export {
  type AllowOptions,
  type Counts,
  Limiter,
  type LimiterOptions,
  type QuotaOptions,
  type RecordOptions,
} from "./limiter.js";
export { allowAll, Decisions, type Share } from "./several.js";
export type {
  Client,
  IoredisClient,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisPool,
  NodeRedisSentinel,
  Send,
} from "./transport.js";
export { type Demand, Entry, type Quota, type Reply } from "./window.js";
