"""Invalidations: the server announces when a key changes whose denial is remembered.

A tracker has two connections to one server: a listener, which reads invalidations, and an asker, whose PEEKs register
their keys for them (`CLIENT TRACKING ON REDIRECT listener`). The reply to a PEEK is remembered, for no longer than the
key lives by the PTTL sent after it. Not NOLOOP: a PEEK deletes a key that it finds expired, which must be announced,
too.
"""

import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoPermissionError

from .._core import fork
from .._core.decision import Decision
from .._core.denial_cache import DenialCache, Ticket
from .._core.quota import Quota
from .._protocol.commands import Peek, Words
from .._protocol.replies import BROKEN
from .._protocol.script_fallback import unpacked
from .endpoint import SILENCE
from .interface import DedicatedConnection, Interface, Worker
from .server_health import ServerHealth

CHANNEL = "__redis__:invalidate"
MAX_PENDING = 1000
_ANY_PEEK = Peek(b"", Quota.of(0, 1))
log = logging.getLogger("swlimit")


class Pauses:
    """Seconds to wait before the next try to connect: more each time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next = 0.1

    def next(self) -> float:
        pause, self._next = self._next, min(10.0, 2 * self._next)
        return pause


class _PendingPeek(NamedTuple):
    """A PEEK, and the PTTL after it."""

    denials: DenialCache
    ticket: Ticket


class PendingPeeks:
    """What was asked on one asker, in order. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: deque[_PendingPeek | None] = deque()
        self._keys: set[bytes] = set()
        self._peeked: Any = None
        self.round_trip = 0.0
        """The last one's, in seconds."""
        self.is_refused = False
        """Whether the server refuses PTTL."""

    def is_asking(self, key: bytes) -> bool:
        return key in self._keys or len(self._pending) >= MAX_PENDING

    def ask(self, denials: DenialCache, ticket: Ticket, now: float) -> tuple[Peek, Words]:
        """The PEEK and the PTTL to send together."""
        demand = ticket.demand
        self._pending.append(_PendingPeek(denials, denials.ticket(demand, now, ticket.block_ends)))
        self._keys.add(demand.key)
        return Peek(demand.key, demand.quota, demand.cost), ("PTTL", demand.key)

    def ping(self) -> tuple[Words]:
        self._pending.append(None)
        return (("PING",),)

    def answered(self, reply: Any, now: float) -> None:
        """Take in the reply to the oldest command; an error reply is ignored."""
        peek = self._pending[0]
        if peek is None:
            self._pending.popleft()
        elif self._peeked is None:
            limit = peek.ticket.demand.quota.limit
            self._peeked = unpacked(reply, limit) if isinstance(reply, bytes) else reply
        else:
            peeked, self._peeked = self._peeked, None
            self._pending.popleft()
            self._keys.discard(peek.ticket.demand.key)
            self.round_trip = now - peek.ticket.sent
            self.is_refused = isinstance(reply, NoPermissionError)
            if isinstance(peeked, Sequence) and isinstance(reply, int) and reply != -2:
                at_most = math.inf if reply == -1 else reply / 1000
                peek.denials.learn(peek.ticket, Decision.of(peeked, peek.ticket.demand.quota), now, at_most)


class Subscribers:
    """The caches that receive invalidations, as long as somebody uses them."""

    def __init__(self) -> None:
        self._denials: weakref.WeakSet[DenialCache] = weakref.WeakSet()
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: collecting a client state closes it

    def __bool__(self) -> bool:
        return bool(self._all())

    def add(self, denials: DenialCache) -> None:
        with self._lock:
            self._denials.add(denials)

    def discard(self, denials: DenialCache) -> None:
        with self._lock:
            self._denials.discard(denials)

    def received(self, message: Any) -> None:
        """A message to the listener: keys that have changed, or None for all; or the reply to its own PING."""
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

    def _all(self) -> list[DenialCache]:
        with self._lock:
            return list(self._denials)


class Tracker:
    """Receives one server's invalidations, in a worker that ends when it is closed or has no subscribers."""

    _generation = 0
    """Incremented when a worker is no longer needed."""

    def __init__(self, interface: Interface, health: ServerHealth, subscribers: Subscribers) -> None:
        self._interface = interface
        self._health = health
        self._subscribers = subscribers
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self.is_refused = False
        """Whether the server is known not to send invalidations."""
        self.peeks = PendingPeeks()
        self._lock = threading.RLock()
        """Guards the asker and its peeks. Reentrant: a client state may be collected, and closed, while it is held."""
        self._asker: DedicatedConnection | None = None
        self.worker: Worker | None = None
        self._generation += 1

    @property
    def is_up(self) -> bool:
        return self._asker is not None and self._interface.is_running(self.worker)

    def start(self) -> None:
        with self._lock:
            if self._interface.is_running(self.worker):
                return
            self._asker = None
            self._generation += 1
            self._subscribers.lost()  # the tracker of a loop that has ended may still have a connection
            self.worker = self._interface.spawn(self._track(self._generation))

    def look(self, denials: DenialCache, ticket: Ticket) -> None:
        """Ask to remember a denial and to track its key, or begin to connect."""
        if not self.is_up:
            self.start()
        with self._lock:
            if self._asker is not None and not self.peeks.is_asking(ticket.demand.key):
                peek, pttl = self.peeks.ask(denials, ticket, time.monotonic())
                self._interface.post(self._asker, self._health.dialect.encode(peek), pttl)

    def close(self) -> None:
        """End the worker; `start` begins another. From any thread."""
        with self._lock:
            worker, self.worker, self._asker = self.worker, None, None
            self._generation += 1
        self._subscribers.lost()
        if worker is not None:
            self._interface.end(worker)

    def _is_needed(self, generation: int) -> bool:
        return bool(self._subscribers) and self._generation == generation

    async def _track(self, generation: int) -> None:
        pauses = Pauses()
        while self._is_needed(generation):
            listener, asker = (self._interface.connection(self._health.endpoint) for _ in range(2))
            try:
                await self._subscribe(listener, asker)
                pauses.reset()
                await self._listen(listener, asker, generation)
            except (redis.RedisError, *BROKEN, ValueError) as error:
                self.is_refused = True
                log.debug("not tracking: %s", error)  # a connection was lost, or the server sends none
            finally:
                with self._lock:
                    was_up = self._asker is asker
                    if was_up:
                        self._asker = None
                if was_up:
                    self._subscribers.lost()
                for one in (listener, asker):
                    await one.close()
            if self._is_needed(generation):
                await self._interface.sleep(pauses.next())

    async def _subscribe(self, listener: DedicatedConnection, asker: DedicatedConnection) -> None:
        for one in (listener, asker):
            await one.connect()
        identity = await self._call(listener, "CLIENT", "ID")
        await self._call(listener, "SUBSCRIBE", CHANNEL)
        await self._call(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
        self._subscribers.lost()  # nothing is announced about what was asked before
        with self._lock:
            self.peeks, self._asker, self.is_refused = PendingPeeks(), asker, False

    async def _call(self, connection: DedicatedConnection, *words: Any) -> Any:
        try:
            reply = await connection.call(*words)
        except NoPermissionError as error:
            self._health.refused(words, error)
            raise
        self._health.allowed(words)
        return reply

    async def _listen(self, listener: DedicatedConnection, asker: DedicatedConnection, generation: int) -> None:
        """Pass on what the two connections receive, until one is lost or the worker is no longer needed."""
        last_reply = dict.fromkeys((listener, asker), time.monotonic())
        pinged: set[DedicatedConnection] = set()
        reader = self._interface.reply_reader(listener, asker)
        try:
            while self._is_needed(generation):
                found, now = await reader.next(SILENCE / 4), time.monotonic()
                if found is not None:
                    one, reply = found
                    last_reply[one] = now
                    pinged.discard(one)
                    if one is listener:
                        self._subscribers.received(reply)
                    else:
                        self._answered(asker, reply, now)
                for one, since in last_reply.items():
                    if now - since > 2 * SILENCE:
                        raise redis.TimeoutError("the connection is open, but the server does not answer")
                    if now - since > SILENCE and one not in pinged:
                        pinged.add(one)
                        with self._lock:
                            self._interface.post(one, *(
                                self.peeks.ping() if one is asker else (("PING",),)))
        finally:
            await reader.close()

    def _answered(self, asker: DedicatedConnection, reply: Any, now: float) -> None:
        with self._lock:
            if self._asker is not asker:
                return  # it was closed in the meantime
            self.peeks.answered(reply, now)
        dialect = self._health.dialect
        dialect.again(_ANY_PEEK, (dialect.read_only,), reply)
        if isinstance(reply, NoPermissionError) and self.peeks.is_refused:
            self._health.refused(("PTTL",), reply)
