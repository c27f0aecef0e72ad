"""Storages for the package `limits`, and so for Flask-Limiter and slowapi: importing this registers their schemes.

The strategies moving-window and sliding-window-counter are both decided by the module, by one sliding window. Calls
of fixed-window name no limit, so it stays as `limits` has it on Redis.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis.exceptions
from limits.aio.storage import RedisClusterStorage as AsyncRedisClusterStorage
from limits.aio.storage import RedisSentinelStorage as AsyncRedisSentinelStorage
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.storage import RedisClusterStorage, RedisSentinelStorage, RedisStorage

from .._core.decision import Decision
from .._core.quota import MAX_EXACT
from ..errors import SwlimitError
from ..rate_limiter import AsyncLimiter, Limiter

# A storage of limits wraps what it inherits, so the common base of the three kinds is not a storage itself.
if TYPE_CHECKING:
    from limits.aio.storage import RedisStorage as _AsyncStorage
    from limits.storage import RedisStorage as _Storage
else:
    _Storage = _AsyncStorage = object

L = TypeVar("L", Limiter, AsyncLimiter)

PREFIX, SUFFIX = "swlimit", "/window"  # a fixed window has the name without it, and is of another type
MAX_LIMITERS = 1000
_ERRORS = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException, SwlimitError)
_MARGIN = 0.01
"""Seconds until the end of a window has reached the caller, who may round it down."""


class _Limiters(Generic[L]):
    """The newest limiters, one for each limit and window that are asked for."""

    def __init__(self, make: Callable[..., L], client: Any, subintervals: int | None, **options: Any) -> None:
        self._make: Callable[..., L] = make
        self._client = client
        self._subintervals, self._options = subintervals and int(subintervals), options
        self._limiters: OrderedDict[tuple[int, int], L] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, limit: int, expiry: int) -> L:
        """The limiter of so many units in so many seconds."""
        with self._lock:
            limiter = self._limiters.get((limit, expiry))
            if limiter is None:
                resolution = expiry / self._subintervals if self._subintervals else None
                limiter = self._make(self._client, limit, expiry, resolution, on_failure="error", **self._options)
                self._limiters[limit, expiry] = limiter
                if len(self._limiters) > MAX_LIMITERS:
                    self._limiters.popitem(last=False)
            self._limiters.move_to_end((limit, expiry))
            return limiter

    def forget(self, key: str) -> None:
        with self._lock:
            for limiter in self._limiters.values():
                limiter.forget(key)

    def forget_all(self) -> None:
        with self._lock:
            for limiter in self._limiters.values():
                limiter.forget_all()


def _moving(decision: Decision, expiry: int) -> tuple[float, int]:
    """Start and units of a window that ends when there is room again; with room, when nothing counts any more.

    In whole seconds, rounded up: Flask-Limiter cuts the fraction off.
    """
    left = (decision.reset_after if decision else decision.retry_after) or 0.0
    ends = time.time() + (math.ceil(left) + _MARGIN if left else 0)
    return ends - expiry, decision.limit - (decision.remaining or 0)


def _sliding(decision: Decision, expiry: int) -> tuple[int, float, int, float]:
    """No previous window, and the current one, whose end `limits` takes modulo its length."""
    left = min(math.ceil(decision.reset_after) + _MARGIN, expiry - 0.001) if decision.reset_after else 0.0
    return 0, 0.0, decision.limit - (decision.remaining or 0), left


class _Windows(_Storage):
    """Options, beside those of `limits`' own storage: `subintervals` of each window, and `strict`, `mode` and
    `timeout` as `swlimit.Limiter` has them."""

    def __init__(self, uri: str, *, subintervals: int | None = None, strict: bool = False, mode: Any = "cached",
                 timeout: float = 1.0, key_prefix: str = PREFIX, **options: Any) -> None:
        super().__init__(uri.removeprefix("swlimit+"), key_prefix=key_prefix, **options)
        self._limiters = _Limiters(Limiter, self.get_connection(), subintervals, strict=strict, mode=mode,
                                   timeout=timeout)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return _ERRORS

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return bool(self._limiters.of(limit, expiry).allow(self._window_key(key), amount))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return _moving(self._limiters.of(limit, expiry).peek(self._window_key(key)), expiry)

    acquire_sliding_window_entry = acquire_entry

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return _sliding(self._limiters.of(MAX_EXACT, expiry).peek(self._window_key(key)), expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self.clear(key)

    def clear(self, key: str) -> None:
        for one in (key, key + SUFFIX):
            super().clear(one)
        self._limiters.forget(self._window_key(key))

    def reset(self) -> int | None:
        removed = super().reset()
        self._limiters.forget_all()
        return removed

    def _window_key(self, key: str) -> str:
        return self.prefixed_key(key + SUFFIX)


class SwlimitStorage(_Windows, RedisStorage):
    """On one server."""

    STORAGE_SCHEME = ["swlimit+redis", "swlimit+rediss", "swlimit+redis+unix"]


class SwlimitClusterStorage(_Windows, RedisClusterStorage):
    """In a cluster."""

    STORAGE_SCHEME = ["swlimit+redis+cluster"]


class SwlimitSentinelStorage(_Windows, RedisSentinelStorage):
    """Behind sentinels."""

    STORAGE_SCHEME = ["swlimit+redis+sentinel"]


class _AsyncWindows(_AsyncStorage):
    """The same for asyncio."""

    def __init__(self, uri: str, *, subintervals: int | None = None, strict: bool = False, mode: Any = "cached",
                 timeout: float = 1.0, key_prefix: str = PREFIX, **options: Any) -> None:
        super().__init__(uri.replace("+swlimit+", "+", 1), key_prefix=key_prefix, implementation="redispy", **options)
        client = self.bridge.get_connection()  # type: ignore[attr-defined]  # what redis-py's bridge has
        self._limiters = _Limiters(AsyncLimiter, client, subintervals, strict=strict, mode=mode, timeout=timeout)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return _ERRORS

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return bool(await self._limiters.of(limit, expiry).allow(self._window_key(key), amount))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return _moving(await self._limiters.of(limit, expiry).peek(self._window_key(key)), expiry)

    acquire_sliding_window_entry = acquire_entry

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return _sliding(await self._limiters.of(MAX_EXACT, expiry).peek(self._window_key(key)), expiry)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.clear(key)

    async def clear(self, key: str) -> None:
        for one in (key, key + SUFFIX):
            await super().clear(one)
        self._limiters.forget(self._window_key(key))

    async def reset(self) -> int | None:
        removed = await super().reset()
        self._limiters.forget_all()
        return removed

    def _window_key(self, key: str) -> str:
        return self.bridge.prefixed_key(key + SUFFIX)


class AsyncSwlimitStorage(_AsyncWindows, AsyncRedisStorage):
    """For asyncio, on one server."""

    STORAGE_SCHEME = ["async+swlimit+redis", "async+swlimit+rediss", "async+swlimit+redis+unix"]


class AsyncSwlimitClusterStorage(_AsyncWindows, AsyncRedisClusterStorage):
    """For asyncio, in a cluster."""

    STORAGE_SCHEME = ["async+swlimit+redis+cluster"]


class AsyncSwlimitSentinelStorage(_AsyncWindows, AsyncRedisSentinelStorage):
    """For asyncio, behind sentinels."""

    STORAGE_SCHEME = ["async+swlimit+redis+sentinel"]
