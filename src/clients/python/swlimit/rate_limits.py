"""Several rates of the same keys, written as a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._all_of import decide_together
from ._base import ClusterMode, Key, as_bytes
from ._core.decision import Decisions
from ._core.quota import Duration
from ._core.rates import key_of_window, parse_rates
from ._rate_base import Options, Request
from ._sync_async import AsyncClient, Awaited, C, Client, Threaded, dual_method
from ._transport.server_health import ServerState
from .rate_limiter import AsyncLimiter, Limiter

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

L = TypeVar("L", Limiter, AsyncLimiter)


class _Limits(Generic[C, L]):
    """The methods of `Limits` and `AsyncLimits`."""

    _limiter_type: type[L]
    def __init__(self, client: C | None, rates: str, **options: "Unpack[Options]") -> None:
        """Rates such as `100/hour; 5/second`: a request is granted by all of them, or none counts it.

        client, options: as of a Limiter.
        """
        make: Any = self._limiter_type
        self.limiters: tuple[L, ...] = tuple(
            make(client, limit, f"{window}ms", **options) for limit, window in parse_rates(rates))
        """The limiter of each rate, in the order of the text."""

    @classmethod
    def from_url(cls, url: str, rates: str, *, cluster: ClusterMode = "auto",
                 **options: "Unpack[Options]") -> "Self":
        """Rates on the server of a URL as redis-py takes it. Closing them closes the client that was made.

        cluster: as of `Limiter.from_url`.
        """
        client, open_cluster = cls._limiter_type._open_url(url, cluster)
        limits = cls(client, rates, **options)
        limits.limiters[-1]._opened_by(client, open_cluster)
        return limits

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.limiters))}>"

    def servers(self) -> tuple[ServerState, ...]:
        """The state of each server that was used so far; none without a client."""
        return self.limiters[0].servers()

    async def _allow(self, key: Key, cost: int = 1, *, deadline: Duration | None = None) -> Decisions:
        """Decide, and count if all grant it. In one command, whose keys have one slot.

        cost: units of each. deadline: how long the caller waits at most.
        """
        requests: list[Request[Any]] = [one.request(name, cost) for one, name in self._keys(key)]
        return await decide_together(requests, deadline)

    async def _peek(self, key: Key, cost: int = 1) -> Decisions:
        """The same decision, without counting; each limit is asked by itself."""
        return _decisions([await one._peek(name, cost) for one, name in self._keys(key)])

    async def _record(self, key: Key, cost: int = 1, *, age: Duration = 0, keep: bool = False) -> Decisions:
        """Count, whatever the limits; see `Limiter.record`."""
        return _decisions([await one._record(name, cost, age=age, keep=keep) for one, name in self._keys(key)])

    async def _refund(self, key: Key, units: int = 1, *, age: Duration | None = None) -> list[int]:
        """Give back units; see `Limiter.refund`. Returns how many for each limit."""
        return [await one._refund(name, units, age=age) for one, name in self._keys(key)]

    async def _reset(self, key: Key) -> bool:
        """Forget what is counted for a key; whether there was anything. Raises UnavailableError."""
        return any([await one._reset(name) for one, name in self._keys(key)])

    async def _close(self) -> None:
        """Close connections, and forget everything."""
        for one in self.limiters:
            await one._close()

    allow = dual_method(_allow)
    peek = dual_method(_peek)
    record = dual_method(_record)
    refund = dual_method(_refund)
    reset = dual_method(_reset)
    close = dual_method(_close)

    def _keys(self, key: Key) -> list[tuple[L, bytes]]:
        """Each limiter, with the key that it counts, without its prefix."""
        prefix, own = self.limiters[0]._prefix, as_bytes(key)
        return [(one, key_of_window(prefix, own, one.quota.geometry.window)[len(prefix):]) for one in self.limiters]


class Limits(Threaded, _Limits[Client, Limiter]):
    """Several rates for any number of keys, which decide together. Many threads may use one object."""

    _limiter_type = Limiter


class AsyncLimits(Awaited, _Limits[AsyncClient, AsyncLimiter]):
    """Several rates for any number of keys, which decide together, on a client of redis.asyncio."""

    _limiter_type = AsyncLimiter


def _decisions(members: Sequence[Any]) -> Decisions:
    return Decisions(all(members), tuple(members))
