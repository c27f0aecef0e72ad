/** Sliding-window rate limiting in Redis and Valkey, with the module swlimit. */

export type { Client, Send } from "./clients/client.js";
export type { IoredisClient } from "./clients/ioredis.js";
export type { NodeRedisClient, NodeRedisCluster, NodeRedisPool, NodeRedisSentinel } from "./clients/node-redis.js";
export type { Algorithm } from "./core/adaptive.js";
export { type CalendarOptions, type Period, type PeriodName, periodAt } from "./core/calendar.js";
export { Decision, type Source } from "./core/decision.js";
export type { Duration } from "./core/duration.js";
export {
  ClusterClientError,
  DeniedError,
  LostError,
  ModuleMissingError,
  NeedsModuleError,
  RefusedError,
  UnavailableError,
} from "./core/errors.js";
export type { Draft, HeaderOptions } from "./core/headers.js";
export type {
  ClusterMode,
  Mode,
  ModuleUse,
  OnFailure,
  QuotaOptions,
  Settings,
  UrlOptions,
  WaitOptions,
} from "./core/options.js";
export type { Reason } from "./core/reasons.js";
export type { WarmUp } from "./core/warm-up.js";
export { type Demand, Entry, type Quota, type Reply } from "./core/window.js";
export { Adaptive, type AdaptiveOptions, Permit } from "./limiters/adaptive.js";
export { Admission, type AdmitOptions, admit, type DeniedPart } from "./limiters/admission.js";
export { allowAll, Decisions, type Share } from "./limiters/all-of.js";
export type { BaseOptions, Statistics } from "./limiters/base.js";
export { BudgetLimiter, type BudgetLimiterOptions, type BudgetOptions } from "./limiters/budget.js";
export { Hold, type Holder, HoldLimiter, type HoldLimiterOptions, type HoldOptions } from "./limiters/hold.js";
export { Limits, type LimitsOptions, type LimitsRequest, type LimitsSettings } from "./limiters/limits.js";
export type { Part } from "./limiters/member.js";
export {
  type AcquireOptions,
  type AllowOptions,
  Limiter,
  type LimiterOptions,
  type PeekOptions,
  type RateSettings,
  type RecordOptions,
} from "./limiters/rate.js";
export { NotAdmittedError, Spending, type SpendingOptions, spending } from "./limiters/spending.js";
export type { NameOf, Usage } from "./limiters/usage.js";
export type { ServerState } from "./transport/server-health.js";
