"""Hearing of what is given back: what both kinds of trackers share. No connection.

A tracker has two connections to one server: a listener, which reads invalidations, and an asker, whose PEEKs register
their keys for them (`CLIENT TRACKING ON REDIRECT listener`). The reply to a PEEK is what is remembered. Not NOLOOP: a
key that has expired is deleted by the PEEK that finds it so, and that has to be told, too.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .connections import Home
from .decision import Decision
from .denials import Demand, Denials, Ticket
from .local import Words

CHANNEL = "__redis__:invalidate"
MAX_PENDING = 1000
log = logging.getLogger("swlimit")


class Pauses:
    """How many seconds to wait before a connection that was lost, or refused, is tried again: more each time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next = 0.1

    def next(self) -> float:
        pause, self._next = self._next, min(10.0, 2 * self._next)
        return pause


class Register:
    """What was asked on one asker, in order. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Denials, Ticket] | None] = deque()

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING

    def ask(self, denials: Denials, demand: Demand, now: float) -> Words:
        """The PEEK to be sent at once."""
        self._pending.append((denials, denials.ticket(demand, now)))
        quota = demand.quota
        return "SWLIMIT.PEEK", demand.key, *quota.words, "COST", demand.cost, *(["STRICT"] if quota.strict else [])

    def ask_whether_alive(self) -> Words:
        self._pending.append(None)
        return ("PING",)

    def answered(self, reply: Any, now: float) -> None:
        """The oldest command is answered; an error teaches nothing."""
        asked = self._pending.popleft()
        if asked is not None and isinstance(reply, Sequence) and not isinstance(reply, (str, bytes)):
            denials, ticket = asked
            denials.learn(ticket, Decision.of(reply, ticket.demand.quota), now)

    def clear(self) -> None:
        self._pending.clear()


class Subscribers:
    """The memories that are told of invalidations, as long as somebody uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._denials: weakref.WeakSet[Denials] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return bool(self._all())

    def add(self, denials: Denials) -> None:
        with self._lock:
            self._denials.add(denials)

    def discard(self, denials: Denials) -> None:
        with self._lock:
            self._denials.discard(denials)

    def told(self, message: Any) -> None:
        """A message of the listener: keys that have changed, or None for all; or the answer to its own PING."""
        if message[0] != b"message":
            return
        for denials in self._all():
            if message[2] is None:
                denials.forget_all()
            else:
                denials.forget(message[2])

    def lost(self) -> None:
        """Invalidations may have been missed."""
        for denials in self._all():
            denials.forget_all()

    def begin_anew(self) -> None:
        """In a forked process."""
        self._lock = threading.Lock()
        for denials in self._all():
            denials.begin_anew()

    def _all(self) -> list[Denials]:
        with self._lock:
            return list(self._denials)


class Tracker(Protocol):
    """What tells memories of denials about the keys of one server."""

    def ask(self, denials: Denials, demand: Demand) -> bool:
        """Ask for what is to be remembered; False where invalidations are not heard of."""


class Trackers:
    """The trackers of one client, one a server."""

    def __init__(self, make: Callable[[Home, Subscribers], Tracker]) -> None:
        self.subscribers = Subscribers()
        self._make = make
        self._lock = threading.Lock()
        self._trackers: dict[str, Tracker] = {}

    def ask(self, home: Home, denials: Denials, demand: Demand) -> bool:
        tracker = self._trackers.get(home.name)
        if tracker is None:
            with self._lock:
                tracker = self._trackers.get(home.name) or self._make(home, self.subscribers)
                self._trackers[home.name] = tracker
        return tracker.ask(denials, demand)


class TrackersOfClients:
    """The trackers of each client, which all its limiters share."""

    def __init__(self, make: Callable[[Home, Subscribers], Tracker]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._trackers: weakref.WeakKeyDictionary[Any, Trackers] = weakref.WeakKeyDictionary()

    def of(self, client: Any) -> Trackers:
        with self._lock:
            return self._trackers.setdefault(client, Trackers(self._make))
