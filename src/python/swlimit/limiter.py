"""The limiter for programs with threads, or without."""

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .connections import Asking, Home, home
from .core import (
    Acquire,
    Deciding,
    Key,
    KeyOf,
    Request,
    Sleep,
    Steps,
    as_bytes,
    deciding_all,
    instant_after,
    key_for,
)
from .decision import Decision, Decisions
from .errors import Limited
from .local import Words
from .quota import Duration
from .threads import Turns, Waiting, trackers

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Limiter(Deciding):
    """Decides for any number of keys with one quota. One limiter may be used by many threads."""

    def _begin(self, max_waiting: int) -> None:
        self._asking_client: Asking | None = None
        self._waiting = Waiting(max_waiting)
        self._turns = Turns()
        if self._denials is not None:
            self._trackers = trackers.of(self._client)

    def allow(self, key: Key, cost: int = 1, *, partial: bool = False, block: Duration | None = None) -> Decision:
        """Decide, and count if granted. `partial` grants as much as is left; `block` begins one with a denial."""
        return self._run(self._allowing(key, cost, partial, block))

    def peek(self, key: Key, cost: int = 1, *, partial: bool = False) -> Decision:
        """The same decision, without counting."""
        return self._run(self._peeking(key, cost, partial))

    def record(self, key: Key, cost: int = 1, *, age: Duration = 0, block: Duration | None = None) -> Decision:
        """Count, whatever the limit says; `age` ago."""
        return self._run(self._recording(key, cost, age, block))

    def refund(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units: the newest, or those counted that long ago. Returns how many. Raises ServerAway."""
        return self._run(self._refunding(key, units, age))

    def block(self, key: Key, duration: Duration, *, nx: bool = False) -> float:
        """Let the key grant nothing for so long; `nx`: unless it is blocked. Returns until when (Unix time)."""
        return self._run(self._blocking(key, duration, nx))

    def unblock(self, key: Key) -> bool:
        """Lift a block; whether there was one. Raises ServerAway."""
        return self._run(self._unblocking(key))

    def acquire(self, key: Key, cost: int = 1, timeout: float | None = None) -> Decision:
        """`allow` that waits for its turn, at most so many seconds; with no hope in that time it does not wait."""
        name, ends = as_bytes(key), instant_after(timeout)
        decision = self._run(self._acquiring(name, cost, ends))
        if decision is not None:
            return decision
        with self._turns.turn(name, ends - time.monotonic()) as mine:
            return self._run(self._awaiting(name, cost, ends if mine else 0.0))

    def limit(self, key: KeyOf, cost: int = 1, *, timeout: float | None = 0.0) -> "Limit":
        """A context, or a decorator, that is entered only when granted, and raises Limited otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits.
        """
        return Limit(self, key, cost, timeout)

    def close(self) -> None:
        """Let go of connections and of what is remembered."""
        self._waiting.close()
        if self._denials is not None and self._trackers is not None:
            self._trackers.subscribers.discard(self._denials)
            self._denials = self._trackers = None

    def _run(self, steps: Steps[T]) -> T:
        try:
            action = next(steps)
            while True:
                try:
                    reply = self._do(action)
                except Exception as error:
                    action = steps.throw(error)
                else:
                    action = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def _do(self, action: Words | Acquire | Sleep) -> Any:
        if isinstance(action, Acquire):
            return self._waiting.execute(self._home(action.key), action.words, action.timeout)
        if isinstance(action, Sleep):
            return time.sleep(action.seconds)
        return self._asker().execute(action)

    def _home(self, key: bytes) -> Home:
        return home(self._asker().guide, key)

    def _asker(self) -> Asking:
        """Made when it is needed, because a cluster's client connects at once."""
        if self._asking_client is None:
            self._asking_client = _asking(self._client, self._timeout)
        return self._asking_client


class Limit:
    """See `Limiter.limit`."""

    def __init__(self, limiter: Limiter, key: KeyOf, cost: int, timeout: float | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def __enter__(self) -> Decision:
        return self._enter(key_for(self._key, (), {}))

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            self._enter(key_for(self._key, args, kwargs))
            return function(*args, **kwargs)
        return limited

    def _enter(self, key: Key) -> Decision:
        if self._timeout == 0:
            decision = self._limiter.allow(key, self._cost)
        else:
            decision = self._limiter.acquire(key, self._cost, self._timeout)
        if not decision:
            raise Limited(key, decision)
        return decision


def allow_all(*requests: Request) -> Decisions:
    """Grant what all of these limits grant, or count nothing: `allow_all(a.request("k"), b.request("l", cost=2))`."""
    limiter = requests[0].limiter
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{limiter} is no Limiter; see swlimit.aio.allow_all")
    return limiter._run(deciding_all(requests))


_askings: "weakref.WeakKeyDictionary[Any, dict[float, Asking]]" = weakref.WeakKeyDictionary()
_askings_lock = threading.Lock()


def _asking(client: Any, timeout: float | None) -> Asking:
    """What asks a client's server; limiters with the same client and timeout share the connections."""
    if timeout is None:
        return Asking(client, None)
    with _askings_lock:
        by_timeout = _askings.setdefault(client, {})
        if timeout not in by_timeout:
            by_timeout[timeout] = Asking(client, timeout)
        return by_timeout[timeout]
