"""What a limiter needs of the outside. There are two of them, `threads` and `aio`, and everything else is written once.

All that waits is a coroutine. Those of `threads` wait as they are called, so that none of them ever suspends and
`threads.run` has the outcome of any; those of `aio` are awaited in a loop.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

from .commands import Command, Words
from .servers import SILENCE, Home, Server


class Signal(Protocol):
    """Something that happens once."""

    def set(self) -> None: ...

    async def wait(self, seconds: float) -> bool:
        """Whether it has happened, at the latest after so many seconds."""


class Mailbox(Protocol):
    """What a worker is told."""

    @property
    def is_full(self) -> bool:
        """Whether there is anything in it."""

    def put(self, mail: Any) -> None:
        """From any thread, and at any instant: it takes no lock that this thread may hold."""

    async def get(self, seconds: float) -> Any:
        """The oldest mail; None when there is none in so many seconds."""


class Wire(Protocol):
    """Sends to one server what does not wait there, over connections that all its limiters share."""

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        """The reply. It is in time within `timeout`; whoever asks waits no longer than `wait`.

        Raises ServerAway where it does not come in time, and what the server says is wrong. For somebody who is
        cancelled meanwhile, the command is undone.
        """

    async def probe(self, key: bytes) -> None:
        """Ask over a connection made anew. Raises ServerAway unless the server answers."""

    @property
    def worker(self) -> Any:
        """What reads the replies; None where whoever asks does."""

    def close(self) -> None:
        """Take nothing new on the connections there are; from any thread."""


class Conversation:
    """A connection of one's own, for commands that block it, or to be told something."""

    def __init__(self, home: Home, **options: Any) -> None:
        self.redis = home.connection(**options)
        self.run_id = b""
        """Which run of which server it leads to, where that was asked; forgotten when it connects anew."""

    async def connect(self) -> None:
        """Unless it is connected, and nothing has come that nobody asked for."""
        raise NotImplementedError

    async def write(self, *commands: Words) -> None:
        raise NotImplementedError

    async def read(self, seconds: float) -> Any:
        """The next reply, an error's too. Raises TimeoutError of redis-py when none comes in so many seconds."""
        raise NotImplementedError

    @property
    def is_connected(self) -> bool:
        raise NotImplementedError

    def hang_up(self) -> None:
        """Tell the server that nothing more is to come; what it has sent can still be read."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def exchange(self, words: Words) -> Any:
        """The reply to a command, an error's too."""
        await self.write(words)
        return await self.read(SILENCE)

    async def call(self, *words: Any) -> Any:
        """The reply to a command. Raises the server's errors."""
        reply = await self.exchange(words)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Ears(Protocol):
    """Hears what several conversations tell."""

    async def next(self, seconds: float) -> tuple[Conversation, Any] | None:
        """Who tells what; None when nobody does for so many seconds. Raises what breaks a connection."""

    async def close(self) -> None: ...


class Outside(Protocol):
    """What waits, connects, and goes on beside the requests."""

    def scene(self) -> object:
        """What all that waits belongs to: the loop that runs. What belongs to another is of no use."""

    async def sleep(self, seconds: float) -> None: ...

    def signal(self) -> Signal: ...

    def event(self) -> Any:
        """An event for the program: of `threading`, or of asyncio."""

    def mailbox(self) -> Mailbox: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Any:
        """Have this go on beside the requests. Raises RuntimeError where that is impossible."""

    def is_running(self, worker: Any) -> bool:
        """Whether what was spawned goes on, and in the scene that there is now."""

    def end(self, worker: Any) -> None:
        """It is not needed any more; from any thread."""

    async def ended(self, workers: list[Any]) -> None:
        """Wait a while until these have ended; not for threads, which end by themselves."""

    def wire(self, server: Server) -> Wire: ...

    def conversation(self, home: Home) -> Conversation: ...

    def cut(self, connection: Any) -> None:
        """Break a connection of redis-py that others may be using."""

    def ears(self, *conversations: Conversation) -> Ears: ...

    def post(self, conversation: Conversation, *commands: Words) -> None:
        """Send without waiting, in the order in which this is called."""


