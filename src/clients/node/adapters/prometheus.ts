/** Metrics for Prometheus, by the package prom-client. */

import { Counter, Gauge, type PrometheusContentType, type Registry, register } from "prom-client";
import { eachLimiter, MEASURES, type Named } from "./measures.js";

/**
 * Show what limiters have decided and how their servers are. Their counts are read when Prometheus asks for them; what
 * is added to `limits` later is shown, too.
 *
 * @example
 * import { register } from "prom-client";
 * import { observe } from "swlimit/prometheus";
 *
 * observe({ search: new Limiter({ client, limit: 100, window: "1m" }) });
 * console.log(await register.metrics());
 */
export function observe(limits: Named, registry: Pick<Registry<PrometheusContentType>, "registerMetric"> = register) {
  eachLimiter(limits);
  for (const { name, description: help, kind, labels: labelNames, samples } of MEASURES) {
    const common = { help, labelNames, registers: [] };
    if (kind === "counter") {
      const counter = new Counter({
        ...common,
        name: `${name}_total`,
        collect() {
          this.reset();
          for (const [labels, value] of samples(eachLimiter(limits))) this.inc(labels, value);
        },
      });
      registry.registerMetric(counter);
    } else {
      const gauge = new Gauge({
        ...common,
        name,
        aggregator: "max", // of the processes of a cluster
        collect() {
          this.reset();
          for (const [labels, value] of samples(eachLimiter(limits))) this.set(labels, value);
        },
      });
      registry.registerMetric(gauge);
    }
  }
}
