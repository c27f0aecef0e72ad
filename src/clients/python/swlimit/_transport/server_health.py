"""What is known about a server: whether it answers, how fast, and what it can do."""

import logging
import time
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import redis

from .._protocol.commands import Acquire, Command, RateCommand, Time, Words
from .._protocol.replies import ERROR_REPLIES, is_failure, is_unknown_command, reason, with_code
from .._protocol.script_fallback import Dialect, Module, TakenOver, unpacked
from ..errors import ModuleMissing, NotExecuted, ServerAway
from .circuit_breaker import CircuitBreaker
from .endpoint import Endpoint

log = logging.getLogger("swlimit")


class ServerState(NamedTuple):
    """The state of a server, as far as this process knows."""

    address: str
    """Host and port, a socket's path, or the name that sentinels know it by."""
    state: Literal["up", "slow", "away"]
    """`up`: it answers in time, or was not asked yet; `slow`: its last reply came after the timeout; `away`: it is
    unavailable, and only probes are sent to it."""
    reason: str | None
    """Why it is away, in one word; None unless it is."""
    message: str
    """The same in the words of the server, the system or the client; empty unless it is away."""
    since: datetime
    """When this state began; at first, when the server became known."""
    lacks: tuple[str, ...]
    """Rights that the server refused last and that limiters do without, as ACLs name them."""
    round_trip: float | None
    """The last reply's round trip in seconds; None before the first reply."""
    backend: Literal["module", "script"] | None
    """What decides on it; None before it is known."""
    failovers: int
    """How often sentinels have named another primary."""


class ServerHealth:
    """What one server's replies and failures have shown."""

    def __init__(self, endpoint: Endpoint, module: Module, taken_over: TakenOver) -> None:
        self.endpoint = endpoint
        self.breaker = CircuitBreaker(endpoint.name)
        self.dialect = Dialect(module, taken_over)
        self.lacks: set[str] = set()
        self.round_trip: float | None = None
        self.failovers = 0
        self._is_slow = False
        self._slow_changed = 0.0
        self._served = False
        self._known = time.time()

    def close(self) -> None:
        """Close all connections; the next request connects again."""
        raise NotImplementedError

    def repeat(self, command: Command) -> None:
        """Send a command in the background until the server answers, as its `repeat` says."""
        raise NotImplementedError

    @property
    def state(self) -> ServerState:
        breaker = self.breaker
        away, since = breaker.is_open, max(self._known, breaker.changed, self._slow_changed)
        state: Literal["up", "slow", "away"] = "away" if away else "slow" if self._is_slow else "up"
        message = breaker.reason if away else ""
        backend: Literal["module", "script"] = "script" if self.dialect.uses_script else "module"
        return ServerState(self.endpoint.name, state, reason(message) if away else None, message,
                           datetime.fromtimestamp(since, timezone.utc), tuple(sorted(self.lacks)), self.round_trip,
                           backend if self._served else None, self.failovers)

    def replied(self, command: Command, reply: Any, in_time: bool = True) -> Any:
        """Take in a reply. Returns it decoded, or the error to raise."""
        key = command.key
        if isinstance(reply, ERROR_REPLIES):
            if is_unknown_command(reply) and not isinstance(command, Acquire):  # the first release has no ACQUIRE
                if not self._served or command.is_newer:
                    self.breaker.answered()
                    return ModuleMissing(str(command.words()[0]), self.dialect.has_old_module)
                self.breaker.failed(reply, key)
                return NotExecuted(f"{self.endpoint.name} has lost its module: {reply}")
            if is_failure(reply):
                if isinstance(reply, redis.ReadOnlyError):  # it is no longer a primary
                    self.close()
                self.breaker.failed(with_code(reply), key)
                return NotExecuted(f"{self.endpoint.name}: {reply or type(reply).__name__}")
        else:
            self._served = True
        if in_time:
            self.breaker.answered()
            if self._is_slow:
                self._is_slow, self._slow_changed = False, time.time()
                log.warning("%s is in time again", self.endpoint.name)
        if isinstance(reply, bytes) and isinstance(command, RateCommand):
            return unpacked(reply, command.quota.limit)
        return reply

    def replied_late(self, command: Command, reply: Any, round_trip: float, timeout: float) -> Any:
        """Take in a reply that took `round_trip` seconds, more than the timeout."""
        self.round_trip = round_trip
        if not self._is_slow:
            self._is_slow, self._slow_changed = True, time.time()
            log.warning("%s is slow: a reply came after %.0f ms, and the timeout is %.0f ms", self.endpoint.name,
                        round_trip * 1000, timeout * 1000)
        return self.replied(command, reply, in_time=False)

    def lost(self, error: BaseException, key: bytes | None = None) -> ServerAway:
        """A connection failed or broke. Returns the error to raise."""
        self.dialect.reset()
        self.breaker.failed(error, key)
        return ServerAway(f"{self.endpoint.name}: {error or type(error).__name__}")

    def undo(self, command: Command, reply: Any, sent: float) -> list[Command]:
        """The commands that undo one whose reply (None: no reply) nobody takes, for the same connection. Commands that
        must be repeated are sent in the background instead."""
        if isinstance(reply, Exception):
            if isinstance(command, Time):
                self.refused(command.words(), reply)
            return []
        commands = command.undo(reply, sent)
        for one in commands:
            if one.repeat is not None:
                self.repeat(one)
        return [one for one in commands if one.repeat is None]

    def refused(self, words: Words, error: Exception) -> None:
        """The server answers, but refuses a command that was sent in the background."""
        if not isinstance(error, redis.exceptions.NoPermissionError):
            log.warning("%s refuses %s: %s", self.endpoint.name, words[0], error)
            return
        right = _right(words)
        if right not in self.lacks:
            self.lacks.add(right)
            log.warning("%s refuses %s, and swlimit does without: %s", self.endpoint.name, right, error)

    def allowed(self, words: Words) -> None:
        """The server has executed a command that was sent in the background."""
        self.lacks.discard(_right(words))


def _right(words: Words) -> str:
    """The name that ACLs use for this command."""
    return "|".join(words[:2] if words[0] == "CLIENT" else words[:1]).lower()
