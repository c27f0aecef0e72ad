"""Hearing of what is given back: what both kinds of trackers share. No connection.

A tracker has two connections to one server: a listener, which reads invalidations, and an asker, whose PEEKs register
their keys for them (`CLIENT TRACKING ON REDIRECT listener`). The reply to a PEEK is what is remembered, and for no
longer than the key lives by the PTTL sent behind it. Not NOLOOP: a key that has expired is deleted by the PEEK that
finds it so, and that has to be told, too.
"""

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from . import fork
from .decision import Decision
from .denials import Denials, Ticket
from .servers import Words

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


class _Look(NamedTuple):
    """A PEEK, and the PTTL behind it."""

    denials: Denials
    ticket: Ticket


class Register:
    """What was asked on one asker, in order. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: deque[_Look | None] = deque()
        self._keys: set[bytes] = set()
        self._peeked: Any = None
        self.round_trip = 0.0
        """The last one's, in seconds."""
        self.is_refused = False
        """Whether the server lets nobody know how long a key lives."""

    def is_asking(self, key: bytes) -> bool:
        return key in self._keys or len(self._pending) >= MAX_PENDING

    def ask(self, denials: Denials, ticket: Ticket, now: float) -> tuple[Words, Words]:
        """The PEEK and the PTTL to be sent at once."""
        demand = ticket.demand
        self._pending.append(_Look(denials, denials.ticket(demand, now, ticket.block_ends)))
        self._keys.add(demand.key)
        quota = demand.quota
        strict = ["STRICT"] if quota.strict else []
        return ("SWLIMIT.PEEK", demand.key, *quota.words, "COST", demand.cost, *strict), ("PTTL", demand.key)

    def ask_whether_alive(self) -> tuple[Words]:
        self._pending.append(None)
        return (("PING",),)

    def answered(self, reply: Any, now: float) -> None:
        """The oldest command is answered; an error teaches nothing."""
        look = self._pending[0]
        if look is None:
            self._pending.popleft()
        elif self._peeked is None:
            self._peeked = reply
        else:
            peeked, self._peeked = self._peeked, None
            self._pending.popleft()
            self._keys.discard(look.ticket.demand.key)
            self.round_trip = now - look.ticket.sent
            self.is_refused = isinstance(reply, NoPermissionError)
            if isinstance(peeked, Sequence) and isinstance(reply, int) and reply != -2:
                at_most = math.inf if reply == -1 else reply / 1000
                look.denials.learn(look.ticket, Decision.of(peeked, look.ticket.demand.quota), now, at_most)

    def clear(self) -> None:
        self._pending.clear()
        self._keys.clear()
        self._peeked = None


class Subscribers:
    """The memories that are told of invalidations, as long as somebody uses them."""

    def __init__(self) -> None:
        self._denials: weakref.WeakSet[Denials] = weakref.WeakSet()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

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

    def _all(self) -> list[Denials]:
        with self._lock:
            return list(self._denials)
