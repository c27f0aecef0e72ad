/** Metrics and traces for OpenTelemetry, by its package @opentelemetry/api. */

import {
  type MeterProvider,
  metrics,
  type Span,
  SpanStatusCode,
  type TracerProvider,
  trace as traces,
} from "@opentelemetry/api";
import type { Decision } from "../core/decision.js";
import { Decisions } from "../limiters/all-of.js";
import type { BaseLimiter } from "../limiters/base.js";
import { eachLimiter, MEASURES, type Named } from "./measures.js";

/**
 * Show what limiters have decided and how their servers are, by instruments that are read when a reader asks. What is
 * added to `limits` later is shown, too.
 *
 * @example
 * import { observe } from "swlimit/opentelemetry";
 *
 * observe({ search: new Limiter({ client, limit: 100, window: "1m" }) });
 */
export function observe(limits: Named, provider: MeterProvider = metrics.getMeterProvider()): void {
  eachLimiter(limits);
  const meter = provider.getMeter("swlimit");
  for (const { name, description, kind, samples } of MEASURES) {
    const make = kind === "counter" ? "createObservableCounter" : "createObservableGauge";
    meter[make](name, { description, unit: name.endsWith("_seconds") ? "s" : "" }).addCallback((result) => {
      for (const [labels, value] of samples(eachLimiter(limits))) result.observe(value, labels);
    });
  }
}

/** The traced methods, and the names of their spans. Of a hold, only the taking is traced. */
const TRACED = { allow: "allow", peek: "peek", record: "record", acquire: "acquire", take: "hold" };

type Method = (this: object, ...args: unknown[]) => Promise<Decision>;

/**
 * Make one span of each decision of these limiters: of `allow`, `peek`, `record`, `acquire` and `hold`, and of
 * `allowAll` where its first limiter is one of these.
 *
 * @example
 * import { trace } from "swlimit/opentelemetry";
 *
 * trace({ search: new Limiter({ client, limit: 100, window: "1m" }) });
 */
export function trace(limits: Named, provider: TracerProvider = traces.getTracerProvider()): void {
  const tracer = provider.getTracer("swlimit");
  for (const [name, limiter] of eachLimiter(limits)) {
    const isTraced = limiter.tracing !== null;
    limiter.tracing = {
      name,
      span: (method, limiters, decide) =>
        tracer.startActiveSpan(`swlimit ${method}`, (span) => traced(span, limiters, decide)),
    };
    if (!isTraced) wrap(limiter);
  }
}

function wrap(limiter: BaseLimiter): void {
  const methods = limiter as unknown as Record<string, Method>;
  const inner = new Map<PropertyKey, Method>();
  for (const [method, name] of Object.entries(TRACED)) {
    const { [method]: original } = methods;
    if (!original) continue;
    inner.set(method, original);
    methods[method] = function (this: object, ...args) {
      // What a method calls itself belongs to its span.
      const untraced = new Proxy(this, { get: (self, name) => inner.get(name) ?? Reflect.get(self, name) });
      const decide = () => original.apply(untraced, args);
      return limiter.tracing ? limiter.tracing.span(name, [limiter], decide) : decide();
    };
  }
}

async function traced<Outcome extends { readonly granted: number | boolean }>(
  span: Span,
  limiters: readonly BaseLimiter[],
  decide: () => Promise<Outcome>,
): Promise<Outcome> {
  const names = limiters.map(({ tracing }) => tracing?.name ?? "");
  const joined = (words: readonly string[]) => words.filter((word) => word !== "").join(" ");
  span.setAttribute("rules", joined(names));
  try {
    const outcome = await decide();
    const each = outcome instanceof Decisions ? outcome.each : [outcome as unknown as Decision];
    span.setAttribute("result", outcome.granted ? "ok" : "over_limit");
    span.setAttribute("source", joined([...new Set(each.map(({ source }) => source))]));
    const denied = names.filter((_, at) => each[at]?.granted === 0);
    if (denied.length > 0) span.setAttribute("denied_by", joined(denied));
    return outcome;
  } catch (error) {
    span.setAttribute("result", "error");
    span.setStatus({ code: SpanStatusCode.ERROR });
    throw error;
  } finally {
    span.end();
  }
}
