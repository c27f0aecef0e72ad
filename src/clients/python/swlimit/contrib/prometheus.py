"""Metrics for Prometheus: `LimiterCollector({"search": limiter})`."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ._measures import MEASURES, Measure, Named, each_limiter


class LimiterCollector(Collector):
    """Shows what limiters have decided and how their servers are. It reads counts when Prometheus asks for them.

    limits: the limiters by the names that metrics show; of all kinds, and Limits. What is added later is shown, too.
    registry: where it registers itself; None: nowhere.
    """

    def __init__(self, limits: Named, registry: CollectorRegistry | None = REGISTRY) -> None:
        each_limiter(limits)
        self._limits = limits
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The names, so that a registry refuses a second collector: one shows all limiters."""
        for measure in MEASURES:
            yield _family(measure)

    def collect(self) -> Iterator[Metric]:
        limiters = each_limiter(self._limits)
        for measure in MEASURES:
            metric = _family(measure)
            for labels, value in measure.samples(limiters):
                metric.add_sample(measure.name + "_total" * (measure.kind == "counter"), labels, value)
            yield metric


def _family(measure: Measure) -> Metric:
    family = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return family(measure.name, measure.description)
