/** Sliding-window rate limiting in Redis and Valkey, with the module swlimit. */

export { Decision, type Source } from "./decision.js";
export type { Duration } from "./duration.js";
export { ModuleMissingError, RefusedError, UnavailableError } from "./errors.js";
export type { Draft, HeaderOptions } from "./headers.js";
export type { ServerState } from "./health.js";
export type { IoredisClient } from "./ioredis.js";
export {
  type AcquireOptions,
  type AllowOptions,
  type Counts,
  Limiter,
  type PeekOptions,
  type RecordOptions,
  type WaitOptions,
} from "./limiter.js";
export type { NodeRedisClient, NodeRedisCluster, NodeRedisPool, NodeRedisSentinel } from "./node-redis.js";
export type { LimiterOptions, Mode, OnFailure, QuotaOptions, Settings } from "./options.js";
export { allowAll, Decisions, type Share } from "./several.js";
export type { Client, Send } from "./transport.js";
export { type Demand, Entry, type Quota, type Reply } from "./window.js";
