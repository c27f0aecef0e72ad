"""The I/O that limiters need. `thread_backend` and `asyncio_backend` provide it; everything else is written once.

Everything that waits is a coroutine. Those of `thread_backend` block instead of suspending, so that its `run` gets the
outcome of any coroutine in one step; those of `asyncio_backend` are awaited in a loop.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol

from .._protocol.commands import Command, Words
from .breaker import PROBE_TIMEOUT
from .endpoint import SILENCE, Endpoint
from .server_health import ServerHealth


class Signal(Protocol):
    """An event that happens once."""

    def set(self) -> None: ...

    async def wait(self, seconds: float) -> bool:
        """Whether it has happened, after `seconds` at most."""
        ...


Worker = threading.Thread | asyncio.Task[None]
"""What runs beside the requests."""


class Mailbox(Protocol):
    """Messages to a worker."""

    @property
    def has_mail(self) -> bool: ...

    def put(self, mail: object) -> None:
        """Callable from any thread at any time: takes no lock that this thread may hold."""

    async def get(self, seconds: float) -> object:
        """The oldest message; None when none comes within `seconds`."""


class Owned(Protocol):
    """What was sent for a caller, and must be undone unless that gets the outcome."""

    def delivered(self) -> None: ...

    def abandon(self) -> None: ...


class Connections(Protocol):
    """Sends commands that do not wait in the server, over connections that all limiters share."""

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        """The reply. It is in time within `timeout` seconds; the caller waits at most `wait` seconds.

        Raises UnavailableError when no reply comes in time, and error replies. When the caller is cancelled, the
        command is undone.
        """

    async def probe(self, key: bytes, at_most: float = PROBE_TIMEOUT) -> float:
        """Ask over a new connection. Returns the round trip; raises UnavailableError unless the server answers in so
        many seconds."""
        ...

    @property
    def owes(self) -> bool:
        """Whether late replies may still come."""
        ...

    @property
    def worker(self) -> Worker | None:
        """The task that reads the replies; None when each caller reads its own."""

    def close(self) -> None:
        """Close the connections when nothing is under way; from any thread."""

    def end(self) -> None:
        """Close them now: what is under way is in doubt."""


class DedicatedConnection:
    """A connection with one user, for commands that block it, or for subscriptions."""

    def __init__(self, endpoint: Endpoint, **options: float | None) -> None:
        self.redis = endpoint.connection(**options)
        self.run_id = b""
        """The run_id of the server that it leads to, once known; empty again when it reconnects."""

    async def connect(self, at_most: float = SILENCE) -> None:
        """Connect, unless it is connected and idle. Raises redis-py's TimeoutError when it takes more seconds."""
        raise NotImplementedError

    async def write(self, *commands: Words) -> None:
        raise NotImplementedError

    async def read(self, seconds: float) -> object:
        """The next reply, also an error reply. Raises redis-py's TimeoutError when none comes within `seconds`."""
        raise NotImplementedError

    @property
    def is_connected(self) -> bool:
        raise NotImplementedError

    def shut_down(self) -> None:
        """Close the sending side; what the server has sent can still be read."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def exchange(self, words: Words, at_most: float = SILENCE) -> object:
        """The reply to a command, also an error reply."""
        await self.write(words)
        return await self.read(at_most)

    async def call(self, *words: str | bytes | int) -> Any:
        """The reply to a command. Raises error replies."""
        reply = await self.exchange(words)
        if isinstance(reply, Exception):
            raise reply
        return reply


class ReplyReader(Protocol):
    """Reads from several connections at once."""

    async def next(self, seconds: float) -> tuple[DedicatedConnection, object] | None:
        """The next reply and its connection; None when none comes within `seconds`. Raises when a connection breaks.
        """

    async def close(self) -> None: ...


class Interface(Protocol):
    """Waiting, connecting, and running workers."""

    def current_loop(self) -> object:
        """The loop that runs; None for threads. What belongs to another loop cannot be used."""

    async def sleep(self, seconds: float) -> None: ...

    async def own(self, one: Owned) -> None:
        """Hand over what is about to be sent, to be undone if an exception interrupts the caller's code anywhere. A
        task is cancelled only where it waits."""

    def signal(self) -> Signal: ...

    def event(self) -> threading.Event | asyncio.Event:
        """An event for the program: of `threading`, or of asyncio."""
        ...

    def mailbox(self) -> Mailbox: ...

    def spawn(self, coroutine: Coroutine[Owned, None, None]) -> Worker:
        """Run this in the background. Raises RuntimeError when that is impossible."""
        ...

    def is_running(self, worker: Worker | None) -> bool:
        """Whether this worker runs, and in the current loop."""
        ...

    def end(self, worker: Worker) -> None:
        """Stop a worker; from any thread. A thread stops by itself when it sees that it is not needed."""

    async def ended(self, workers: list[Worker]) -> None:
        """Wait a moment until these tasks have ended. Threads are not waited for."""

    def connections(self, health: ServerHealth) -> Connections: ...

    def connection(self, endpoint: Endpoint) -> DedicatedConnection: ...

    def abort(self, connection: object) -> None:
        """Break a connection of the client's library that others may be using."""

    def reply_reader(self, *connections: DedicatedConnection) -> ReplyReader: ...

    def post(self, connection: DedicatedConnection, *commands: Words) -> None:
        """Send without waiting, in the order of calls."""
