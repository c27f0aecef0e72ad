/** Sliding-window rate limiting in Redis and Valkey, with the module swlimit. */

export { Admission, admit, type Part } from "./admit.js";
export type { AskerOptions, Counts, WaitOptions } from "./asker.js";
export { BudgetLimiter, type BudgetLimiterOptions, type BudgetOptions } from "./budget.js";
export { type CalendarOptions, type Period, type PeriodName, periodAt } from "./calendar.js";
export { Decision, type Source } from "./decision.js";
export type { Duration } from "./duration.js";
export {
  DeniedError,
  LostError,
  ModuleMissingError,
  NeedsModuleError,
  RefusedError,
  UnavailableError,
} from "./errors.js";
export type { Draft, HeaderOptions } from "./headers.js";
export type { ServerState } from "./health.js";
export { Hold, type Holder, HoldLimiter, type HoldLimiterOptions, type HoldOptions } from "./hold.js";
export type { IoredisClient } from "./ioredis.js";
export {
  type AcquireOptions,
  type AllowOptions,
  Limiter,
  type LimiterOptions,
  type PeekOptions,
  type RecordOptions,
} from "./limiter.js";
export type { NodeRedisClient, NodeRedisCluster, NodeRedisPool, NodeRedisSentinel } from "./node-redis.js";
export type { Mode, ModuleUse, OnFailure, QuotaOptions, Settings } from "./options.js";
export { allowAll, Decisions, type Share } from "./several.js";
export type { Client, Send } from "./transport.js";
export { type Demand, Entry, type Quota, type Reply } from "./window.js";
