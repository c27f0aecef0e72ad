"""Metrics and traces for OpenTelemetry: `observe({"search": limiter})`, `trace({"search": limiter})`."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.trace import Tracer, TracerProvider, get_tracer

from .._admission_base import AdmissionBase
from .._base import BaseLimiter
from .._core.decision import Decisions
from .._sync_async import Threaded
from .._transport.thread_backend import run
from ._measures import MEASURES, Measure, Named, each_limiter

TRACED = "allow", "peek", "record", "acquire", "hold"


def observe(limits: Named, meter_provider: MeterProvider | None = None) -> None:
    """Show what limiters have decided and how their servers are, by instruments that are read when a reader asks.

    limits: the limiters by the names that metrics show; of all kinds, and Limits. What is added later is shown, too.
    """
    each_limiter(limits)
    meter = get_meter("swlimit", meter_provider=meter_provider)
    for measure in MEASURES:
        make = meter.create_observable_counter if measure.kind == "counter" else meter.create_observable_gauge
        make(measure.name, [_callback(measure, limits)], measure.unit, measure.description)


def _callback(measure: Measure, limits: Named) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def callback(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for labels, value in measure.samples(each_limiter(limits))]
    return callback


def trace(limits: Named, tracer_provider: TracerProvider | None = None) -> None:
    """Make one span of each decision of these limiters: of `allow`, `peek`, `record`, `acquire`, `hold`; and of
    `allow_all`, `admit` and `spending` where the first limiter is one of these.

    limits: the limiters by the names that spans show; of all kinds, and Limits.
    """
    tracer = get_tracer("swlimit", tracer_provider=tracer_provider)
    for name, limiter in each_limiter(limits).items():
        if limiter._tracing is None:
            for method in TRACED:
                _wrap(limiter, method)
        limiter._tracing = _Tracing(name, tracer)


def _wrap(limiter: BaseLimiter, method: str) -> None:
    inner: Any = getattr(limiter, f"_{method}", None)
    if inner is None:
        return

    @functools.wraps(inner)
    def traced(*args: Any, **options: Any) -> Any:
        return limiter._tracing(method, [limiter], inner(*args, **options))

    setattr(limiter, f"_{method}", traced)
    if method != "hold":  # which calls `_hold`
        setattr(limiter, method, _for_threads(traced) if isinstance(limiter, Threaded) else traced)


def _for_threads(traced: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(traced)
    def method(*args: Any, **options: Any) -> Any:
        return run(traced(*args, **options))
    return method


class _Tracing:
    """Makes the spans of one limiter."""

    def __init__(self, name: str, tracer: Tracer) -> None:
        self.name, self._tracer = name, tracer

    async def __call__(self, method: str, limiters: Sequence[BaseLimiter], deciding: Coroutine[Any, Any, Any]) -> Any:
        with self._tracer.start_as_current_span(f"swlimit {method}") as span:
            names = [one._tracing.name if one._tracing is not None else "" for one in limiters]
            span.set_attribute("rules", " ".join(filter(None, names)))
            try:
                outcome = await deciding
            except BaseException as error:
                span.set_attribute("result", "cancelled" if isinstance(error, asyncio.CancelledError) else "error")
                raise
            span.set_attribute("result", "ok" if outcome else "over_limit")
            members = _members(outcome)
            span.set_attribute("source", " ".join(dict.fromkeys(member.source for member in members)))
            denied = [name for name, member in zip(names, members) if not member]
            if denied:
                span.set_attribute("denied_by", " ".join(filter(None, denied)))
            return outcome


def _members(outcome: Any) -> Sequence[Any]:
    """The decision of each limiter."""
    if isinstance(outcome, AdmissionBase):
        return outcome.each
    return outcome.members if isinstance(outcome, Decisions) else [outcome]
