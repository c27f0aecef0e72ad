"""Renews the holds of this process, and releases those that nobody took: one worker for each server.

The worker has a connection of its own, and sends whatever the server's health. It sends one RENEW for all holds of a
key that are due, at most 1,000 ids at once: a third of the time to live after the last one that the server answered,
and until then a tenth after the last one sent.
"""

import heapq
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import redis

from .._core import fork
from .._core.clock import running
from .._protocol.commands import Command, Preparation, Release, Renew, Repeat
from .._protocol.exchange import Exchange
from .._protocol.replies import BROKEN, ERROR_REPLIES, is_failure
from .._protocol.script_fallback import Dialect
from .endpoint import SILENCE
from .interface import DedicatedConnection, Interface, Mailbox, Worker
from .server_health import ServerHealth

MOST_IDS = 1000
RENEWALS_PER_TTL, RETRIES_PER_TTL = 3, 10
DRIFT = 1000
"""Clocks may drift by one part in so many."""
IDLE = 10.0
"""Seconds after which an idle worker ends. When all limiters are closed, it ends at once."""
SLICE = 0.1
"""The longest that a worker waits for a reply before it checks for other work."""
log = logging.getLogger("swlimit")


class LiveHold:
    """A hold of this process. Instants are those of `running`, in seconds; `ttl` is in ms."""

    def __init__(self, key: bytes, id: bytes, ttl: int, sent: float, max_age: float = math.inf) -> None:
        """max_age: seconds for which it is renewed at most."""
        self.key, self.id, self.ttl, self.renewed_until = key, id, ttl, sent + max_age
        self.on_lost: Callable[[], None] = lambda: None
        self.is_over = False
        """Released, or lost."""
        self.renewed = sent
        """When the last command was sent that the server confirmed."""

    @property
    def ends(self) -> float:
        return self.renewed + (self.ttl - self.ttl / DRIFT) / 1000

    @property
    def is_live(self) -> bool:
        return not self.is_over and running() < self.ends

    def answered(self, sent: float, is_live: bool) -> None:
        """Take in the reply to a RENEW."""
        if self.is_over:
            return
        if is_live and running() < self.ends:
            self.renewed = max(self.renewed, sent)
        else:
            self.lose()

    def lose(self) -> None:
        """It is over, whatever the server replies later."""
        if not self.is_over:
            self.is_over = True
            self.on_lost()


class RenewalGroup:
    """The holds of one key that have the same time to live: one command renews them."""

    def __init__(self, hold: LiveHold) -> None:
        self.key, self.ttl = hold.key, hold.ttl
        self.holds = {hold.id: hold}
        self._sent = -math.inf

    @property
    def due(self) -> float:
        """When to renew them, or when the first is lost; infinity when there are none."""
        oldest = min(self.holds.values(), key=lambda hold: hold.renewed, default=None)
        if oldest is None:
            return math.inf
        return min(oldest.ends, max(oldest.renewed + self.ttl / 1000 / RENEWALS_PER_TTL,
                                    self._sent + self.ttl / 1000 / RETRIES_PER_TTL))

    @property
    def is_over(self) -> bool:
        return all(hold.is_over for hold in self.holds.values())

    def sent(self, now: float) -> None:
        self._sent = now

    def members(self) -> list[LiveHold]:
        return list(self.holds.values())

    def requests(self) -> "list[PendingRequest]":
        """What each command that renews them is about. The oldest are left to end."""
        now = running()
        holds = [hold for hold in self.holds.values() if now < hold.renewed_until]
        return [holds[first:first + MOST_IDS] for first in range(0, len(holds), MOST_IDS)]

    def drop_ended(self, now: float) -> list[LiveHold]:
        """Forget the holds that are over. Returns those that were not renewed in time."""
        late = [hold for hold in self.holds.values() if not hold.is_over and now >= hold.ends]
        self.holds = {id: hold for id, hold in self.holds.items() if not hold.is_over and now < hold.ends}
        return late


class RepeatedCommand:
    """A command that is sent until the server answers it, or until it no longer matters."""

    def __init__(self, command: Command, every: float, ends: float,
                 is_done: Callable[[Any], bool] = lambda reply: True) -> None:
        """every: seconds between two tries; infinity: one try. ends: when it no longer matters.
        is_done: whether a reply is the last."""
        self.key, self.command, self._every, self._ends, self._is_done = command.key, command, every, ends, is_done
        self.is_over = False
        self.due = running()
        """When to send it."""
        self._sent = -math.inf
        self.tries = 0

    @classmethod
    def of(cls, command: Command) -> "RepeatedCommand":
        """A command that is sent as its `repeat` says."""
        assert command.repeat is not None
        seconds, is_done = command.repeat
        return cls(command, seconds / RETRIES_PER_TTL, running() + seconds, is_done)

    def sent(self, now: float) -> None:
        self.due, self._sent = now + self._every, now
        self.tries += 1

    def retry(self) -> None:
        """Send it now, or when the answer to the last try can no longer be expected."""
        self.due = min(self.due, self._sent + SILENCE)

    def members(self) -> "list[RepeatedCommand]":
        return [self]

    def requests(self) -> "list[PendingRequest]":
        return [self]

    def drop_ended(self, now: float) -> list[LiveHold]:
        """It loses no hold; once it no longer matters, it is never due."""
        if self.is_over or now >= self._ends:
            self.due = math.inf
        return []

    def answered(self, reply: Any) -> None:
        self.is_over = self.is_over or self._is_done(reply)


PendingRequest = list[LiveHold] | RepeatedCommand
"""What one command is about: holds to renew, or a repeated command."""


class PendingExchange(Exchange):
    """A command that was sent, and what it is about."""

    __slots__ = ("request",)

    def __init__(self, request: PendingRequest, dialect: Dialect) -> None:
        command = (request.command if isinstance(request, RepeatedCommand)
                   else Renew(request[0].key, request[0].ttl, [hold.id for hold in request]))
        super().__init__(command, dialect)
        self.request = request


class Client(Protocol):
    """What a renewer needs from the client that its server belongs to."""

    @property
    def is_used(self) -> bool: ...

    def renewer_of(self, key: bytes) -> "HoldRenewer | None":
        """The renewer of the server that has this key now."""

    def redirected(self, error: Exception) -> object: ...


class HoldRenewer:
    """The worker of one server. `client` returns its client as long as that exists."""

    def __init__(self, interface: Interface, health: ServerHealth, client: Callable[[], Client | None]) -> None:
        self._interface = interface
        self._health = health
        self._client = client
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, RenewalGroup | RepeatedCommand]] = []
        """Each with an instant no later than when it is due."""
        self._groups: dict[tuple[bytes, int], RenewalGroup] = {}
        self._numbers = count()
        self.worker: Worker | None = None
        self._mailbox: Mailbox | None = None
        self._wakes = 0.0
        """When the worker wakes by itself."""
        self._connection: DedicatedConnection | None = None
        self._pending: deque[tuple[PendingExchange | Preparation, float]] = deque()
        self._last_reply = self._idle_since = 0.0

    def add(self, one: LiveHold | RepeatedCommand) -> None:
        """Renew this hold, or send this command, until it is over."""
        with self._lock:
            if not self._interface.is_running(self.worker):
                self._heap.clear()  # the entries belong to a loop that has ended
                self._groups.clear()
                self._pending.clear()
                self._connection = None
                self._idle_since = running()
                self._mailbox = self._interface.mailbox()
                self.worker = self._interface.spawn(self._run(self._mailbox))
            if isinstance(one, LiveHold):
                group = self._groups.get((one.key, one.ttl))
                if group is not None:
                    group.holds[one.id] = one
                    return  # the group is due before this hold is
                self._push(self._groups.setdefault((one.key, one.ttl), RenewalGroup(one)))
            else:
                self._push(one)
            if self._heap[0][0] < self._wakes:
                self.wake()

    def repeat(self, command: Command) -> None:
        """Send this command until it is answered, as its `repeat` says."""
        self.add(RepeatedCommand.of(command))

    @property
    def is_repeating(self) -> bool:
        """Whether commands wait for an answer."""
        with self._lock:
            has_mail = self._mailbox is not None and self._mailbox.has_mail
            return bool(self._repeated()) or has_mail and self._interface.is_running(self.worker)

    def retry(self) -> None:
        """Send the repeated commands soon: the server is back, or the client is being closed."""
        with self._lock:
            for one in self._repeated():
                one.retry()
            self._heap = [(one.due, number, one) for _, number, one in self._heap]
            heapq.heapify(self._heap)
        self.wake()

    def give_up(self) -> list[Command]:
        """Repeat nothing any more. Returns what was not answered."""
        with self._lock:
            given_up = self._repeated()
            for one in given_up:
                one.is_over = True
        return [one.command for one in given_up]

    def _repeated(self) -> list[RepeatedCommand]:
        return [one for _, _, one in self._heap if isinstance(one, RepeatedCommand) and not one.is_over
                and one.due < math.inf]

    def release(self, hold: LiveHold) -> None:
        """Release a hold whose guard was collected. Takes no lock: this thread may hold any."""
        if not hold.is_over and self._mailbox is not None:
            hold.is_over = True
            self._mailbox.put(hold)

    def wake(self) -> None:
        """Have the worker check whether it is still needed. Takes no lock, as `release`."""
        if self._mailbox is not None:
            self._mailbox.put(None)

    def _is_needed(self) -> bool:
        client = self._client()
        return client is not None and client.is_used

    def _push(self, one: RenewalGroup | RepeatedCommand) -> None:
        heapq.heappush(self._heap, (one.due, next(self._numbers), one))

    async def _run(self, mailbox: Mailbox) -> None:
        try:
            while self._mailbox is mailbox and not self._ends(mailbox):
                if self._pending:
                    await self._read(min(SLICE, self._wakes - running()))
                    hold = await mailbox.get(0.0)
                else:
                    hold = await mailbox.get(max(0.0, self._wakes - running()))
                if isinstance(hold, LiveHold):
                    self.repeat(Release(hold.key, [hold.id], Repeat(hold.ttl / 1000)))
                await self._send(self._take_due(running()))
        finally:
            if self._mailbox is mailbox:  # otherwise another worker has the connection now
                await self._disconnect()

    def _ends(self, mailbox: Mailbox) -> bool:
        """Whether the worker is no longer needed; otherwise sets when it wakes."""
        is_needed = self._is_needed()
        with self._lock:
            now = running()
            if not is_needed and not self._repeated():  # the reservation may be left of a settlement
                self._heap.clear()
                self._groups.clear()
                self._pending.clear()  # a renewal that nobody answers
            if self._heap or self._pending or mailbox.has_mail:
                self._idle_since = now
            elif not is_needed or now - self._idle_since >= IDLE:
                self.worker = None
                return True
            self._wakes = self._heap[0][0] if self._heap else now + IDLE
            return False

    def _take_due(self, now: float) -> list[PendingRequest]:
        """What to send now."""
        due: list[PendingRequest] = []
        lost: list[LiveHold] = []
        moved: list[tuple[HoldRenewer, LiveHold | RepeatedCommand]] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                one = heapq.heappop(self._heap)[2]
                lost += one.drop_ended(now)
                other = self._other_renewer(one.key) if one.due <= now else None
                if other is not None:
                    moved += ((other, member) for member in one.members())
                elif one.due <= now:
                    one.sent(now)
                    due += one.requests()
                if one.due < math.inf and other is None:
                    self._push(one)
                elif isinstance(one, RenewalGroup):
                    del self._groups[one.key, one.ttl]
        for hold in lost:
            hold.lose()
        for renewer, member in moved:
            renewer.add(member)
        return due

    def _other_renewer(self, key: bytes) -> "HoldRenewer | None":
        """The renewer of the server that has the key by now, if it is another one."""
        client = self._client()
        renewer = None if client is None else client.renewer_of(key)
        return None if renewer is self else renewer

    async def _send(self, due: list[PendingRequest]) -> None:
        if not due:
            return
        if self._pending and running() - max(self._last_reply, self._pending[0][1]) > SILENCE:
            await self._disconnect()
        try:
            if self._connection is None:
                self._connection = self._interface.connection(self._health.endpoint)
            if not self._pending:
                await self._connection.connect()
            await self._write([PendingExchange(request, self._health.dialect) for request in due])
        except (*BROKEN, redis.RedisError) as error:
            await self._broken(error)

    async def _write(self, exchanges: Sequence[PendingExchange | Preparation]) -> None:
        assert self._connection is not None
        sent = running()
        self._pending.extend((one, sent) for one in exchanges)
        await self._connection.write(*(one.words() if isinstance(one, Preparation) else one.encode()
                                       for one in exchanges))

    async def _read(self, seconds: float) -> None:
        """Take in the next reply, if it comes so soon."""
        assert self._connection is not None
        try:
            reply = await self._connection.read(max(0.0, seconds))
        except redis.TimeoutError:
            return
        except (*BROKEN, redis.RedisError) as error:
            await self._broken(error)
            return
        self._last_reply = running()
        one, sent = self._pending.popleft()
        if isinstance(one, Preparation):
            one.answered(reply)
            return
        before = one.again(reply)
        if before is not None:
            try:
                await self._write([*before, one])
            except (*BROKEN, redis.RedisError) as error:
                await self._broken(error)
        elif isinstance(one.answer, ERROR_REPLIES):
            await self._refused(one, one.answer)
        elif isinstance(one.request, RepeatedCommand):
            one.request.answered(one.answer)
        else:
            for hold, is_live in zip(one.request, one.answer):
                hold.answered(sent, bool(is_live))

    async def _refused(self, one: PendingExchange, error: Exception) -> None:
        """The server has done nothing. Where that can change, the command is sent again when it is due."""
        if isinstance(error, redis.exceptions.MovedError):
            if (client := self._client()) is not None:
                with suppress(redis.exceptions.MovedError):  # a client of one server follows nothing
                    client.redirected(error)
        elif is_failure(error):
            await self._broken(error)
        elif not isinstance(error, (redis.exceptions.AskError, redis.exceptions.TryAgainError)):
            self._health.refused(one.command.words(), error)
            if isinstance(one.request, RepeatedCommand):
                one.request.is_over = True

    async def _broken(self, error: BaseException) -> None:
        log.debug("%s: cannot renew holds at the moment: %s", self._health.endpoint.name,
                  error or type(error).__name__)
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._pending.clear()
        if connection is not None:
            await connection.close()
