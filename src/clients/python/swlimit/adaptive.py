"""Limits of how many at once that follow response times, in this process alone."""

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

from ._base import one_of
from ._core import fork
from ._core.adaptive import Algorithm, Sample, Settings, State, step
from ._core.decision import HoldDecision
from ._core.quota import Duration, checked_integer, milliseconds
from .errors import DeniedError

if TYPE_CHECKING:
    from typing_extensions import Self

DROPPED_STATUSES = (429, 503, 504)
DROPPED_CODES = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}


class Adaptive:
    """How many may be under way at once, by how long they take. Many threads and event loops may use one object."""

    def __init__(self, min: int = 20, max: int = 200, algorithm: Algorithm = "gradient2", *, window: Duration = "1s",
                 timeout: Duration = "5s") -> None:
        """Between `min` and `max`; it begins with `min`.

        algorithm: "gradient2" compares response times with those of the last minutes, "aimd" with `timeout`. Drops
            lower both.
        window: how often the limit changes. timeout: the mean response time of a window above which "aimd" falls.
        """
        one_of("algorithm", algorithm, get_args(Algorithm))
        checked_integer(min, "min", least=1)
        checked_integer(max, "max", least=min)
        self._settings = Settings(min, max, algorithm, 1000 * milliseconds(window, "window"),
                                  1000 * milliseconds(timeout, "timeout"))
        self._state = State(min)
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        """No permit is out."""
        self._lock = threading.Lock()
        self._inflight = 0
        self._generation = object()

    @property
    def limit(self) -> int:
        """How many may be under way now."""
        return self._state.limit

    @property
    def inflight(self) -> int:
        """How many are under way."""
        return self._inflight

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inflight} of {self.limit}>"

    def permit(self) -> "Permit":
        """Take a permit if one is free, for `with` or `async with`: entering another one raises DeniedError."""
        with self._lock:
            limit = self._state.limit
            granted = int(self._inflight < limit)
            self._inflight += granted
            left = limit - self._inflight if granted else 0
            decision = HoldDecision(granted, limit, left, None if not granted else 0.0, None, None, "local")
            return Permit(self, decision, self._inflight, self._generation)

    def _give_back(self, generation: object, sample: Sample | None) -> None:
        with self._lock:
            if generation is self._generation:
                self._inflight -= 1
                if sample is not None:
                    step(self._settings, self._state, sample)


class Permit:
    """A permit of an `Adaptive`; true when it was free. Without `with`, call `done`."""

    def __init__(self, adaptive: Adaptive, decision: HoldDecision, inflight: int, generation: object) -> None:
        self.decision = decision
        self._adaptive, self._inflight, self._generation = adaptive, inflight, generation
        self._began = _now()
        self._is_dropped = False
        self._is_over = not decision

    def __bool__(self) -> bool:
        return bool(self.decision)

    def drop(self) -> None:
        """The other side is overloaded: it has refused this request, or was too slow. Ends nothing by itself."""
        self._is_dropped = True

    def done(self, error: BaseException | None = None) -> None:
        """Give the permit back, once. Of errors only those count that are drops."""
        is_dropped = self._is_dropped or error is not None and is_drop(error)
        now = _now()
        counts = is_dropped or error is None
        self._end(Sample(now, now - self._began, self._inflight, is_dropped) if counts else None)

    def ignore(self) -> None:
        """Give the permit back, once, without a word about the other side."""
        self._end(None)

    def _end(self, sample: Sample | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._adaptive._give_back(self._generation, sample)

    def __enter__(self) -> "Self":
        if not self:
            raise DeniedError("adaptive", self.decision)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.done(error)

    async def __aenter__(self) -> "Self":
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.done(error)


def is_drop(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that the other side is overloaded: a time-out; the HTTP status 429, 503
    or 504, of httpx, requests, aiohttp or urllib; or a gRPC status."""
    known: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in known:
        if _says_drop(cause):
            return True
        known.append(cause)
        cause = cause.__cause__
    return False


def _says_drop(error: BaseException) -> bool:
    if any("Timeout" in kind.__name__ for kind in type(error).__mro__):
        return True
    code: Any = getattr(type(error), "code", None)
    if callable(code):
        with suppress(Exception):  # it is not gRPC's
            return getattr(code(error), "name", None) in DROPPED_CODES
    statuses = (getattr(holder, name, None) for holder in (error, getattr(error, "response", None))
                for name in ("status_code", "status", "code"))
    return next((one for one in statuses if one is not None), None) in DROPPED_STATUSES


def _now() -> int:
    """µs, by a clock that nobody sets."""
    return time.monotonic_ns() // 1000
