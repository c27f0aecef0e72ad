"""Hearing of what is given back.

A tracker has two connections to one server: a listener, which reads invalidations, and an asker, whose PEEKs register
their keys for them (`CLIENT TRACKING ON REDIRECT listener`). The reply to a PEEK is what is remembered, and for no
longer than the key lives by the PTTL sent behind it. Not NOLOOP: a key that has expired is deleted by the PEEK that
finds it so, and that has to be told, too.
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

from . import fork
from .backend import unpacked
from .commands import Words
from .decision import Decision
from .denials import Denials, Ticket
from .errors import BROKEN
from .outside import Conversation, Outside
from .servers import SILENCE, Server

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
            self._peeked = unpacked(reply, look.ticket.demand.quota.limit)
        else:
            peeked, self._peeked = self._peeked, None
            self._pending.popleft()
            self._keys.discard(look.ticket.demand.key)
            self.round_trip = now - look.ticket.sent
            self.is_refused = isinstance(reply, NoPermissionError)
            if isinstance(peeked, Sequence) and isinstance(reply, int) and reply != -2:
                at_most = math.inf if reply == -1 else reply / 1000
                look.denials.learn(look.ticket, Decision.of(peeked, look.ticket.demand.quota), now, at_most)


class Subscribers:
    """The memories that are told of invalidations, as long as somebody uses them."""

    def __init__(self) -> None:
        self._denials: weakref.WeakSet[Denials] = weakref.WeakSet()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.RLock()  # reentrant: a link may be collected, and closed, while this thread holds it

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


class Tracker:
    """Hears of one server's changes, in a worker that ends when nobody subscribes any more, or it is closed."""

    _generation = 0
    """Raised when a worker is not needed any more."""

    def __init__(self, outside: Outside, server: Server, subscribers: Subscribers) -> None:
        self._outside = outside
        self._server = server
        self._home = server.home
        self._subscribers = subscribers
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self.is_refused = False
        """Whether the server does not track, as far as is known."""
        self.register = Register()
        self._lock = threading.RLock()
        """Held for the asker and its register together. Reentrant: a link may be collected, and closed, meanwhile."""
        self._asker: Conversation | None = None
        self.worker: Any = None
        self._generation += 1

    @property
    def is_up(self) -> bool:
        return self._asker is not None and self._outside.is_running(self.worker)

    def start(self) -> None:
        with self._lock:
            if self._outside.is_running(self.worker):
                return
            self._asker = None
            self._generation += 1
            self._subscribers.lost()  # where a loop has ended, its tracker may not have
            self.worker = self._outside.spawn(self._track(self._generation))

    def ask(self, denials: Denials, ticket: Ticket) -> bool:
        """Have the key of a denial registered, and the denial remembered; whether that is on its way."""
        with self._lock:
            if self._asker is None:
                return False
            peek, pttl = self.register.ask(denials, ticket, time.monotonic())
            self._outside.post(self._asker, self._server.backend.spelled(peek), pttl)
            return True

    def close(self) -> None:
        """From any thread; who asks again begins anew."""
        with self._lock:
            worker, self.worker, self._asker = self.worker, None, None
            self._generation += 1
        self._subscribers.lost()
        if worker is not None:
            self._outside.end(worker)

    def _is_needed(self, generation: int) -> bool:
        return bool(self._subscribers) and self._generation == generation

    async def _track(self, generation: int) -> None:
        pauses = Pauses()
        while self._is_needed(generation):
            listener, asker = (self._outside.conversation(self._home) for _ in range(2))
            try:
                await self._begin(listener, asker)
                pauses.reset()
                await self._listen(listener, asker, generation)
            except (redis.RedisError, *BROKEN, ValueError) as error:
                self.is_refused = True
                log.debug("not tracking: %s", error)  # a connection was lost, or the server does not track
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
                await self._outside.sleep(pauses.next())

    async def _begin(self, listener: Conversation, asker: Conversation) -> None:
        for one in (listener, asker):
            await one.connect()
        identity = await self._must(listener, "CLIENT", "ID")
        await self._must(listener, "SUBSCRIBE", CHANNEL)
        await self._must(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
        self._subscribers.lost()  # of what was asked before, nothing is told
        with self._lock:
            self.register, self._asker, self.is_refused = Register(), asker, False

    async def _must(self, conversation: Conversation, *words: Any) -> Any:
        try:
            reply = await conversation.call(*words)
        except NoPermissionError as error:
            self._server.refused(words, error)
            raise
        self._server.allowed(words)
        return reply

    async def _listen(self, listener: Conversation, asker: Conversation, generation: int) -> None:
        """Pass on what the two connections tell, until one is lost or nobody wants to know."""
        heard = dict.fromkeys((listener, asker), time.monotonic())
        pinged: set[Conversation] = set()
        ears = self._outside.ears(listener, asker)
        try:
            while self._is_needed(generation):
                told, now = await ears.next(SILENCE / 4), time.monotonic()
                if told is not None:
                    one, reply = told
                    heard[one] = now
                    pinged.discard(one)
                    if one is listener:
                        self._subscribers.told(reply)
                    else:
                        self._answered(asker, reply, now)
                for one, since in heard.items():
                    if now - since > 2 * SILENCE:
                        raise redis.TimeoutError("a connection is open, but nobody answers")
                    if now - since > SILENCE and one not in pinged:
                        pinged.add(one)
                        with self._lock:
                            self._outside.post(one, *(
                                self.register.ask_whether_alive() if one is asker else (("PING",),)))
        finally:
            await ears.close()

    def _answered(self, asker: Conversation, reply: Any, now: float) -> None:
        with self._lock:
            if self._asker is not asker:
                return  # it was closed meanwhile
            self.register.answered(reply, now)
        self._server.backend.again(("SWLIMIT.PEEK",), (self._server.backend.read_only,), reply)
        if isinstance(reply, NoPermissionError) and self.register.is_refused:
            self._server.refused(("PTTL",), reply)
