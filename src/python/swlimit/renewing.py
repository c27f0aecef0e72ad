"""What goes on beside the holders: one worker a server renews all holds there, and gives back what nobody took.

The worker has a connection of its own, and asks whatever is known of the server's health. It sends one RENEW for all
holds of a key that are due, at most 1,000 ids in one: a third of the time to live after the last one that the server
answered, and until then a tenth after the last one sent.
"""

import heapq
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import redis

from . import fork
from .clock import running
from .commands import Command, Words, release, renew
from .errors import BROKEN, REPLIES, is_failure
from .outside import Conversation, Outside
from .servers import SILENCE, Server

MOST_IDS = 1000
IDLE = 10.0
"""Seconds after which a worker without anything to do ends, unless all limiters are closed: then it ends at once."""
SLICE = 0.1
"""The longest that a worker listens to the server before it looks whether it has more to do."""
log = logging.getLogger("swlimit")


class Held:
    """A hold of this process, as its worker knows it. Instants are those of `running`, in seconds; `ttl` is in ms."""

    def __init__(self, key: bytes, id: bytes, ttl: int, sent: float) -> None:
        self.key, self.id, self.ttl = key, id, ttl
        self.on_lost: Callable[[], None] = lambda: None
        self.is_over = False
        """Released, or lost."""
        self.renewed = sent
        """When the last command was sent that the server answered by that it is live."""

    @property
    def ends(self) -> float:
        return self.renewed + self.ttl * 0.999 / 1000  # a thousandth earlier than for the server, as clocks drift

    @property
    def is_live(self) -> bool:
        return not self.is_over and running() < self.ends

    def answered(self, sent: float, is_live: bool) -> None:
        """The reply to a RENEW."""
        if self.is_over:
            return
        if is_live and running() < self.ends:
            self.renewed = max(self.renewed, sent)
        else:
            self.lose()

    def lose(self) -> None:
        """It is over, whatever the server says later."""
        if not self.is_over:
            self.is_over = True
            self.on_lost()


class Together:
    """The holds of one key that have one time to live: they are renewed together."""

    def __init__(self, held: Held) -> None:
        self.key, self.ttl = held.key, held.ttl
        self.helds = {held.id: held}
        self._asked = -math.inf

    @property
    def due(self) -> float:
        """When they are to be renewed, or the first is lost; infinity when there are none."""
        oldest = min(self.helds.values(), key=lambda held: held.renewed, default=None)
        if oldest is None:
            return math.inf
        return min(oldest.ends, max(oldest.renewed + self.ttl / 3000, self._asked + self.ttl / 10_000))

    @property
    def is_over(self) -> bool:
        return all(held.is_over for held in self.helds.values())

    def asked(self, now: float) -> None:
        self._asked = now

    def parts(self) -> list[Held]:
        return list(self.helds.values())

    def sendings(self) -> "list[Sent]":
        """What each command that renews them is about."""
        helds = self.parts()
        return [helds[first:first + MOST_IDS] for first in range(0, len(helds), MOST_IDS)]

    def ending(self, now: float) -> list[Held]:
        """Those which have not been renewed in time. Neither they nor such as are over are here any more."""
        late = [held for held in self.helds.values() if not held.is_over and now >= held.ends]
        self.helds = {id: held for id, held in self.helds.items() if not held.is_over and now < held.ends}
        return late


class Errand:
    """A command that is sent until the server answers it, or it no longer matters."""

    def __init__(self, command: Command, every: float, ends: float,
                 settles: Callable[[Any], bool] = lambda reply: True) -> None:
        """every: seconds between two tries; infinity for one only. ends: when it no longer matters.
        settles: whether a reply is the last."""
        self.key, self.words, self._every, self._ends, self._settles = *command[:2], every, ends, settles
        self.is_over = False
        self.due = running()
        """When it is to be sent."""
        self.tries = 0

    def asked(self, now: float) -> None:
        self.due = now + self._every
        self.tries += 1

    def parts(self) -> "list[Errand]":
        return [self]

    def sendings(self) -> "list[Sent]":
        return [self]

    def ending(self, now: float) -> list[Held]:
        """None; but when it does not matter any more, it is never due."""
        if self.is_over or now >= self._ends:
            self.due = math.inf
        return []

    def answered(self, reply: Any) -> None:
        self.is_over = self.is_over or self._settles(reply)


def errand(command: Command) -> Errand:
    """Have a command sent as its `repeat` says."""
    assert command.repeat is not None
    seconds, is_done = command.repeat
    return Errand(command, seconds / 10, running() + seconds, is_done)


Sent = list[Held] | Errand
"""What one command is about: holds to be renewed, or an errand."""


class Renewer:
    """The worker of one server. `link` returns the link that the server is part of, while there is one."""

    def __init__(self, outside: Outside, server: Server, link: Callable[[], Any]) -> None:
        self._outside = outside
        self._server = server
        self._link = link
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Together | Errand]] = []
        """By instants that are not later than what is due there."""
        self._together: dict[tuple[bytes, int], Together] = {}
        self._numbers = count()
        self.worker: Any = None
        self._mailbox: Any = None
        self._wakes = 0.0
        """When the worker wakes by itself."""
        self._conversation: Conversation | None = None
        self._unanswered: deque[tuple[Sent, float]] = deque()
        self._heard = self._idle_since = 0.0

    def add(self, one: Held | Errand) -> None:
        """Renew this hold, or run this errand, until it is over."""
        with self._lock:
            if not self._outside.is_running(self.worker):
                self._heap.clear()  # what is here is of a loop that has ended
                self._together.clear()
                self._unanswered.clear()
                self._conversation = None
                self._idle_since = running()
                self._mailbox = self._outside.mailbox()
                self.worker = self._outside.spawn(self._run(self._mailbox))
            if isinstance(one, Held):
                together = self._together.get((one.key, one.ttl))
                if together is not None:
                    together.helds[one.id] = one
                    return  # they are due before this one is
                self._push(self._together.setdefault((one.key, one.ttl), Together(one)))
            else:
                self._push(one)
            if self._heap[0][0] < self._wakes:
                self._mailbox.put(None)

    def send(self, command: Command) -> None:
        """Send this command until it is answered, as its `repeat` says."""
        self.add(errand(command))

    def dropped(self, held: Held) -> None:
        """Nobody has the guard any more. Takes no lock: it may be collected while this thread holds any."""
        if not held.is_over and self._mailbox is not None:
            held.is_over = True
            self._mailbox.put(held)

    def look(self) -> None:
        """Have the worker see whether it is still wanted. Takes no lock, as `dropped`."""
        if self._mailbox is not None:
            self._mailbox.put(None)

    def _is_wanted(self) -> bool:
        link = self._link()
        return link is not None and link.is_used

    def _push(self, one: Together | Errand) -> None:
        heapq.heappush(self._heap, (one.due, next(self._numbers), one))

    async def _run(self, mailbox: Any) -> None:
        try:
            while self._mailbox is mailbox and not self._ends(mailbox):
                if self._unanswered:
                    await self._listen(min(SLICE, self._wakes - running()))
                    mail = await mailbox.get(0.0)
                else:
                    mail = await mailbox.get(max(0.0, self._wakes - running()))
                if mail is not None:
                    self.send(release(mail.key, mail.id, mail.ttl))
                await self._send(self._due(running()))
        finally:
            if self._mailbox is mailbox:  # else the connection is another worker's by now
                await self._disconnect()

    def _ends(self, mailbox: Any) -> bool:
        """Whether the worker is not needed any more; else it is said when it wakes."""
        is_wanted = self._is_wanted()
        with self._lock:
            now = running()
            if not is_wanted and all(one.is_over for _, _, one in self._heap):
                self._heap.clear()
                self._together.clear()
            if self._heap or self._unanswered or mailbox.is_full:
                self._idle_since = now
            elif not is_wanted or now - self._idle_since >= IDLE:
                self.worker = None
                return True
            self._wakes = self._heap[0][0] if self._heap else now + IDLE
            return False

    def _due(self, now: float) -> list[Sent]:
        """What is to be sent now."""
        due: list[Sent] = []
        lost: list[Held] = []
        moved: list[tuple[Server, Held | Errand]] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                one = heapq.heappop(self._heap)[2]
                lost += one.ending(now)
                server = self._other_server(one.key) if one.due <= now else None
                if server is not None:
                    moved += ((server, part) for part in one.parts())
                elif one.due <= now:
                    one.asked(now)
                    due += one.sendings()
                if one.due < math.inf and server is None:
                    self._push(one)
                elif isinstance(one, Together):
                    del self._together[one.key, one.ttl]
        for held in lost:
            held.lose()
        for server, part in moved:
            server.renewer.add(part)
        return due

    def _other_server(self, key: bytes) -> Server | None:
        """Who has the key by now, if it is another one."""
        link = self._link()
        server: Server | None = None if link is None else link.topology.of(key)
        return None if server is self._server else server

    async def _send(self, due: list[Sent]) -> None:
        if not due:
            return
        now = running()
        if self._unanswered and now - max(self._heard, self._unanswered[0][1]) > SILENCE:
            await self._disconnect()
        try:
            if self._conversation is None:
                self._conversation = self._outside.conversation(self._server.home)
            if not self._unanswered:
                await self._conversation.connect()
            sent = running()
            self._unanswered.extend((one, sent) for one in due)
            await self._conversation.write(*map(_words, due))
        except (*BROKEN, redis.RedisError) as error:
            await self._broken(error)

    async def _listen(self, seconds: float) -> None:
        """Take in the next reply, if it comes so soon."""
        assert self._conversation is not None
        try:
            reply = await self._conversation.read(max(0.0, seconds))
        except redis.TimeoutError:
            return
        except (*BROKEN, redis.RedisError) as error:
            await self._broken(error)
            return
        self._heard = running()
        what, sent = self._unanswered.popleft()
        if isinstance(reply, REPLIES):
            await self._refused(what, reply)
        elif isinstance(what, Errand):
            what.answered(reply)
        else:
            for held, is_live in zip(what, reply):
                held.answered(sent, bool(is_live))

    async def _refused(self, what: Sent, error: Exception) -> None:
        """Nothing was done; where that can change, it is asked again when it is due."""
        if isinstance(error, redis.exceptions.MovedError):
            if (link := self._link()) is not None:
                link.redirected(error)
        elif is_failure(error):
            await self._broken(error)
        elif not isinstance(error, (redis.exceptions.AskError, redis.exceptions.TryAgainError)):
            self._server.refused(_words(what), error)
            if isinstance(what, Errand):
                what.is_over = True

    async def _broken(self, error: BaseException) -> None:
        log.debug("%s: holds are not renewed at the moment: %s", self._server.home.name, error or type(error).__name__)
        await self._disconnect()

    async def _disconnect(self) -> None:
        conversation, self._conversation = self._conversation, None
        self._unanswered.clear()
        if conversation is not None:
            await conversation.close()


def _words(sent: Sent) -> Words:
    return sent.words if isinstance(sent, Errand) else renew(sent[0].key, sent[0].ttl, (held.id for held in sent)).words
