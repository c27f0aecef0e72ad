"""What is known about a server: whether it answers, how fast, and what it can do."""

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import redis.exceptions as redis_errors

from .._protocol.commands import NOTHING, Acquire, Command, Kept, RateCommand, ServerCommand, Time, Words
from .._protocol.replies import (
    ERROR_REPLIES,
    BadReply,
    Failure,
    is_failure,
    is_unknown_command,
    is_unknown_warm_up,
    quoted,
)
from .._protocol.script_fallback import Dialect, Module, TakenOver, unpacked
from ..errors import ModuleMissing, NotExecuted, UnavailableError
from .breaker import Breaker
from .endpoint import Endpoint

SLOW_LOGGED = 60.0
"""Seconds between two lines of the log about a slow server."""
log = logging.getLogger("swlimit")


class ServerState(NamedTuple):
    """The state of a server, as far as this process knows."""

    address: str
    """Host and port, a socket's path, or the name that sentinels know it by."""
    state: Literal["up", "slow", "unavailable"]
    """`up`: it answers in time, or was not asked yet; `slow`: its round trip is above the timeout of a limiter, whose
    policy decides; `unavailable`: only probes are sent to it."""
    reason: str | None
    """Why it is slow or unavailable, in one word; None while it is up."""
    message: str
    """The same in the words of the server, the system or the client; empty while it is up."""
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
    evicts: str | None = None
    """Its `maxmemory-policy`, if that may evict counts; None otherwise, and before it is known."""


class ServerHealth:
    """What one server's replies and failures have shown."""

    def __init__(self, endpoint: Endpoint, module: Module, taken_over: TakenOver) -> None:
        self.endpoint = endpoint
        self.breaker = Breaker(endpoint.name)
        self.dialect = Dialect(module, taken_over)
        self.lacks: set[str] = set()
        self.round_trip: float | None = None
        self.smoothed: float | None = None
        """The round trip, smoothed over the last replies, in seconds."""
        self.failovers = 0
        self.is_served = False
        """Whether it has executed a command."""
        self.evicts: str | None = None
        self.next_look = 0.0
        """When to look at what INFO says (monotonic)."""
        self._slow: tuple[float, float] | None = None
        """Its round trip, and the timeout that it is above; None when it is in time."""
        self._slow_changed = self._slow_logged = 0.0
        self._late: float | None = None
        """When a late reply came (monotonic), if none in time has come since."""
        self._known = time.time()
        self._policy_decided = False

    def close(self) -> None:
        """Close all connections; the next request connects again."""
        raise NotImplementedError

    def repeat(self, command: Command) -> None:
        """Send a command in the background until the server answers, as its `repeat` says."""
        raise NotImplementedError

    @property
    def state(self) -> ServerState:
        breaker, slow = self.breaker, self._slow
        is_open, since = breaker.is_open, max(self._known, breaker.changed, self._slow_changed)
        failure = breaker.failure if is_open else None if slow is None else Failure(
            "slow", f"a round trip of {slow[0] * 1000:.0f} ms, and a timeout of {slow[1] * 1000:.0f} ms")
        backend: Literal["module", "script"] = "script" if self.dialect.uses_script else "module"
        return ServerState(
            self.endpoint.name, "unavailable" if is_open else "slow" if slow else "up",
            failure and failure.reason, failure.message if failure else "",
            datetime.fromtimestamp(since, timezone.utc), tuple(sorted(self.lacks)), self.round_trip,
            backend if self.is_served else None, self.failovers, self.evicts)

    # Replies.

    def replied(self, command: Command, reply: Any, in_time: bool = True) -> Any:
        """Take in a reply. Returns it decoded, or the error to raise."""
        key = command.key
        if isinstance(reply, ERROR_REPLIES):
            if isinstance(reply, (redis_errors.AskError, redis_errors.TryAgainError)):
                return reply  # it says nothing about this server's health
            if is_unknown_command(reply) and not isinstance(command, Acquire):  # the first release has no ACQUIRE
                if not self.is_served or command.is_newer:
                    self.breaker.answered()
                    return ModuleMissing(str(command.words()[0]), self.dialect.has_old_module)
                return self.failed(Failure.of(reply), key, NotExecuted)
            if is_unknown_warm_up(reply, command.words()):
                self.breaker.answered()
                return ModuleMissing("WARMUP", is_old=True)
            if is_failure(reply):
                if isinstance(reply, redis_errors.ReadOnlyError):  # it is no longer a primary
                    self.close()
                return self.failed(Failure.of(reply), key, NotExecuted)
        else:
            try:
                if isinstance(reply, bytes) and isinstance(command, RateCommand):
                    reply = unpacked(reply, command.quota.limit)
                else:
                    reply = command.decoded(reply)
            except BadReply as error:
                return self.failed(Failure("bad_reply", str(error)), key)
            self.is_served = True
        if in_time and not (isinstance(command, ServerCommand) and command.is_free):
            self.breaker.answered()
        return reply

    def replied_late(self, command: Command, reply: Any, round_trip: float, timeout: float) -> Any:
        """Take in a reply that took `round_trip` seconds, more than the timeout."""
        now, before = time.monotonic(), self._late
        if now - round_trip < self.breaker.closed:
            return self.replied(command, reply, in_time=False)
        self.measured(round_trip)
        if before is not None and now - round_trip >= before:  # one of several writes in a row: the mean is too slow
            self.smoothed = round_trip
        self._late = now
        self.is_too_slow(timeout)
        return self.replied(command, reply, in_time=False)

    def failed(self, failure: Failure, key: bytes | None = None,
               kind: type[UnavailableError] = UnavailableError) -> UnavailableError:
        """The server has failed a request. Returns the error to raise."""
        self.breaker.failed(failure, key)
        return kind(f"{self.endpoint.name}: {failure.message}", failure.reason)

    def lost(self, error: BaseException, key: bytes | None = None) -> UnavailableError:
        """A connection failed or broke. Returns the error to raise."""
        self.dialect.reset()
        return self.failed(Failure.of(error), key)

    def unanswered(self) -> UnavailableError:
        """The error for a caller whose time is up."""
        return UnavailableError(f"{self.endpoint.name} has not replied in time", "no_answer")

    # How fast it is.

    def measured(self, round_trip: float) -> None:
        """A reply has taken this many seconds."""
        self.round_trip, self._late = round_trip, None
        before = self.smoothed
        self.smoothed = round_trip if before is None else before + (round_trip - before) / 8

    def is_too_slow(self, timeout: float) -> bool:
        """Whether its round trip is above this timeout: no request can be answered in time then."""
        if self.smoothed is None or self.smoothed <= timeout:
            return False
        now = time.time()
        if self._slow is None:
            self._slow_changed = now
        self._slow = self.smoothed, timeout
        if now - self._slow_logged >= SLOW_LOGGED:
            self._slow_logged = now
            log.warning("server %s is slow: the round trip is %.0f ms, and the timeout %.0f ms; on_failure decides",
                        self.endpoint.name, self.smoothed * 1000, timeout * 1000, extra={"event": "slow"})
        return True

    @property
    def slow_timeout(self) -> float | None:
        """The timeout that its round trip is above; None when it is in time."""
        return None if self._slow is None else self._slow[1]

    def looked(self, round_trip: float) -> None:
        """A probe of a slow server was answered after this many seconds."""
        self.round_trip = self.smoothed = round_trip
        if self._slow is not None and round_trip <= self._slow[1]:
            self._slow, self._slow_changed, self._slow_logged = None, time.time(), 0.0
            log.warning("server %s is in time again", self.endpoint.name, extra={"event": "in_time"})

    def policy_decides(self, error: UnavailableError) -> None:
        """A failure policy decides a request in place of the server: the first time, the log says so."""
        if not self._policy_decided and error.reason != "slow":
            self.breaker.announce(Failure(error.reason, str(error).removeprefix(self.endpoint.name).lstrip(": ")))
        self._policy_decided = True

    # What goes on beside requests.

    def undo(self, command: Command, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        """The commands that undo one whose reply (None: no reply) nobody takes, for the same connection. Commands that
        must be repeated are sent in the background instead."""
        if isinstance(reply, Exception):
            if isinstance(command, Time):
                self.refused(command.words(), reply)
            if not isinstance(reply, UnavailableError) or isinstance(reply, NotExecuted):
                return []
            reply = None  # it was not understood
        commands = command.undo(reply, sent, kept)
        for one in commands:
            if one.repeat is not None:
                self.repeat(one)
        # Units must go back to the server that counted them; what an id names is safe anywhere.
        return [] if self.endpoint.is_shared else [one for one in commands if one.repeat is None]

    def refused(self, words: Words, error: Exception) -> None:
        """The server answers, but refuses a command that was sent in the background."""
        if not isinstance(error, redis_errors.NoPermissionError):
            log.warning("%s refuses %s: %s", self.endpoint.name, words[0], quoted(error))
            return
        right = _right(words)
        if right not in self.lacks:
            self.lacks.add(right)
            log.warning("server %s refuses %s, and swlimit does without: %s", self.endpoint.name, right, quoted(error),
                        extra={"event": "lacks"})

    def allowed(self, words: Words) -> None:
        """The server has executed a command that was sent in the background."""
        self.lacks.discard(_right(words))

    def informed(self, fields: Mapping[str, str]) -> None:
        """What INFO says about its memory."""
        policy = fields.get("maxmemory_policy", "noeviction")
        evicts = policy if fields.get("maxmemory", "0") != "0" and policy != "noeviction" else None
        if evicts is not None and self.evicts is None:
            log.warning("server %s evicts keys (maxmemory-policy %s), and limits with them: use noeviction",
                        self.endpoint.name, evicts, extra={"event": "evicts"})
        self.evicts = evicts


def _right(words: Words) -> str:
    """The name that ACLs use for this command."""
    return "|".join(words[:2] if words[0] == "CLIENT" else words[:1]).lower()
