"""What exporters of metrics show: what limiters have decided, and how their servers are. The names are swlimitd's."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from .._base import BaseLimiter
from .._core.decision import Source
from .._sync_async import kind_of
from .._transport.server_health import ServerState
from ..rate_limits import AsyncLimits, Limits

AnyLimiter = BaseLimiter | Limits | AsyncLimits
Named = Mapping[str, AnyLimiter]
"""Limiters by the names that metrics and traces show."""
Samples = Iterator[tuple[dict[str, str], float]]
"""Values by labels."""


class Measure(NamedTuple):
    """A metric."""

    name: str
    """Without the `_total` of counters."""
    description: str
    kind: Literal["counter", "gauge"]
    unit: str
    samples: Callable[[dict[str, BaseLimiter]], Samples]


def each_limiter(limits: Named) -> dict[str, BaseLimiter]:
    """The limiters by name; those of several rates have the window in ms behind it, as their keys have."""
    found: dict[str, BaseLimiter] = {}
    for name, limiter in list(limits.items()):  # other threads may add some meanwhile
        if isinstance(limiter, (Limits, AsyncLimits)):
            found |= {f"{name}:{one.quota.geometry.window}": one for one in limiter.limiters}
        elif isinstance(limiter, BaseLimiter):
            found[name] = limiter
        else:
            raise TypeError(f"{name} must be a limiter, not {kind_of(limiter)}")
    return found


def _decisions(limiters: dict[str, BaseLimiter]) -> Samples:
    for name, limiter in limiters.items():
        for source in get_args(Source):
            granted, denied = limiter.statistics.of(source)
            labels = {"limit": name, "source": source}
            yield {**labels, "granted": "yes"}, granted
            yield {**labels, "granted": "no"}, denied


def _taken_over(limiters: dict[str, BaseLimiter]) -> Samples:
    counts = {id(one.statistics._taken_over): one.statistics.taken_over for one in limiters.values()}
    yield {}, sum(counts.values())


def _by_server(value: Callable[[ServerState], float | None]) -> Callable[[dict[str, BaseLimiter]], Samples]:
    def samples(limiters: dict[str, BaseLimiter]) -> Samples:
        for server in _servers(limiters):
            if (found := value(server)) is not None:
                yield {"server": server.address}, found
    return samples


def _lacks(limiters: dict[str, BaseLimiter]) -> Samples:
    for server in _servers(limiters):
        for right in server.lacks:
            yield {"server": server.address, "right": right}, 1


def _servers(limiters: dict[str, BaseLimiter]) -> Iterator[ServerState]:
    """Each server once, as the client sees it that has the most trouble with it, with the most failovers seen."""
    found: dict[str, ServerState] = {}
    for state in (state for one in limiters.values() for state in one.servers()):
        known = found.get(state.address, state)
        worse = max(known, state, key=lambda each: _SEVERITY.index(each.state))
        found[state.address] = worse._replace(failovers=max(known.failovers, state.failovers))
    yield from found.values()


_SEVERITY = ("up", "slow", "unavailable")
_CLIENT = "swlimit_client_"
MEASURES = (
    Measure(f"{_CLIENT}decisions", "Decisions of the client, by limit and source", "counter", "", _decisions),
    Measure(f"{_CLIENT}taken_over", "Keys of the script that were given to the module", "counter", "", _taken_over),
    Measure(f"{_CLIENT}failovers", "How often sentinels named another primary", "counter", "",
            _by_server(lambda server: server.failovers)),
    Measure(f"{_CLIENT}server_unavailable", "1 while decisions are made without the server", "gauge", "",
            _by_server(lambda server: server.state == "unavailable")),
    Measure(f"{_CLIENT}server_slow", "1 while the server's round trip is above a timeout", "gauge", "",
            _by_server(lambda server: server.state == "slow")),
    Measure(f"{_CLIENT}server_evicts", "1 if the server may evict counts", "gauge", "",
            _by_server(lambda server: server.evicts is not None)),
    Measure(f"{_CLIENT}server_script", "1 if the server has not the module, and its script decides", "gauge", "",
            _by_server(lambda server: None if server.backend is None else server.backend == "script")),
    Measure(f"{_CLIENT}server_round_trip_seconds", "Duration of the last exchange with the server", "gauge", "s",
            _by_server(lambda server: server.round_trip)),
    Measure(f"{_CLIENT}lacks", "1 if the server refuses this right", "gauge", "", _lacks),
)
