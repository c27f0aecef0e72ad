"""What the limiters of one client share: its servers, and what goes on beside the requests.

A step is what a generator yields to have something done outside: `Link.run` does it, in threads or with asyncio.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from . import fork
from .breaker import PROBE_TIMEOUT, probe
from .denials import Denials, Ticket
from .errors import SwlimitError
from .servers import Home, Server, Words, topology
from .tracking import Subscribers

T = TypeVar("T")


class Send(NamedTuple):
    """Send these words. The reply is in time within `timeout`; whoever asks waits no longer than `wait`."""

    server: Server
    key: bytes
    words: Words
    timeout: float
    wait: float
    asking: bool = False


class Probe(NamedTuple):
    """Send this over a connection made anew, which is the server's from then on if it answers."""

    server: Server
    key: bytes


class Locate(NamedTuple):
    """Ask a cluster for its servers, waiting no longer than so many seconds; the asking goes on."""

    link: "Link"
    wait: float


class Acquire(NamedTuple):
    """Send this on a connection that may wait until the instant `ends`."""

    server: Server
    words: Callable[[float], Words]
    """Made once a connection is free, of the seconds that are left then."""
    ends: float


class TakeTurn(NamedTuple):
    """Wait for one's turn within the process, first come, first served, at most so many seconds; it is released."""

    key: bytes
    timeout: float


class Sleep(NamedTuple):
    """Do nothing for so many seconds."""

    seconds: float


Step = Send | Probe | Locate | Acquire | TakeTurn | Sleep
Steps = Generator[Step, Any, T]


class Kept(NamedTuple):
    """A record that is sent when the server is back: its words are made of the ms that have passed since it began."""

    server: Server
    key: bytes
    began: float
    matters: float
    """For how many seconds."""
    words: Callable[[int], Words]


MOST_KEPT = 100_000


class Link:
    """Made when a client's first limiter is, and closed with its last."""

    def __init__(self, client: Any) -> None:
        self.subscribers = Subscribers()
        self.topology = topology(client, self._server)
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._kept: deque[Kept] = deque(maxlen=MOST_KEPT)
        self.is_closed = False
        self.is_sending_kept = False

    def __del__(self) -> None:
        if hasattr(self, "topology"):
            self.close_connections()

    # What the two kinds of links do, each in its way.

    def wire(self, server: Server) -> Any:
        """What sends requests to a server."""
        raise NotImplementedError

    def tracker(self, server: Server) -> Any:
        """What hears of a server's changes."""
        raise NotImplementedError

    def spawn(self, steps: Steps[None]) -> Any:
        """Have these steps run beside the requests."""
        raise NotImplementedError

    # Who uses it.

    def join(self, user: Any, denials: Denials | None) -> None:
        self._users.add(user)
        if denials is not None:
            self.subscribers.add(denials)

    def leave(self, user: Any, denials: Denials | None) -> bool:
        """Whether that was the last one."""
        self._users.discard(user)
        if denials is not None:
            self.subscribers.discard(denials)
        self.is_closed = not self._users
        return self.is_closed

    @property
    def is_used(self) -> bool:
        return bool(self._users)

    def locate(self, wait: float) -> Any:
        """Have a cluster asked for its servers; to be awaited with asyncio."""
        raise NotImplementedError

    def close_connections(self) -> None:
        for server in self.topology.all():
            server.close()

    # Servers.

    def of(self, key: bytes) -> Server | None:
        return self.topology.of(key)

    def redirected(self, error: Exception) -> Server:
        server = self.topology.redirected(error)
        self.spawn(locating(self))
        self.subscribers.lost()  # nobody tells of keys whose slot another server took over
        return server

    def located(self) -> None:
        """The servers of a cluster are known anew."""
        for server in self.topology.learnt() or ():
            server.close()

    def _server(self, home: Home) -> Server:
        server = Server(home)
        server.wire, server.tracker = self.wire(server), self.tracker(server)
        weak = weakref.ref(self)

        def on_open() -> None:
            if (link := weak()) is not None:
                link.probe(server)

        server.breaker.on_open = on_open
        return server

    def probe(self, server: Server) -> None:
        """Have a server that is away asked until it is back."""
        self.spawn(probing(weakref.ref(self), server))

    def track(self, server: Server, denials: Denials, ticket: Ticket, retry_after: float) -> float | None:
        """Have the server asked for what is to be remembered. Returns for how many seconds at most this denial may be
        remembered meanwhile; None: as long as where nothing is told of changes."""
        tracker = server.tracker
        if not tracker.is_up:
            tracker.start()
            return None if tracker.is_refused else 0.0
        if tracker.register.is_refused:
            return None
        short: float = max(0.02, 4 * tracker.register.round_trip)
        if retry_after <= short or tracker.register.is_asking(ticket.demand.key):
            return short
        return 0.0 if tracker.ask(denials, ticket) else short

    def keep(self, kept: Kept) -> None:
        """The oldest go first when there are too many."""
        self._kept.append(kept)
        if not self.is_sending_kept:
            self.is_sending_kept = True
            self.spawn(self._sending_kept())

    def _sending_kept(self) -> Steps[None]:
        try:
            while self._kept and self.is_used:
                kept = self._kept[0]
                passed = time.monotonic() - kept.began
                if passed < kept.matters:
                    if kept.server.breaker.is_open:
                        yield Sleep(0.05)
                        continue
                    words = kept.words(int(passed * 1000))
                    try:
                        yield Send(kept.server, kept.key, words, PROBE_TIMEOUT, PROBE_TIMEOUT)
                    except SwlimitError:
                        yield Sleep(0.05)
                        continue
                    except Exception as error:
                        kept.server.breaker.log_refusal(words, error)
                self._kept.popleft()
        finally:
            self.is_sending_kept = False


def probing(weak: "weakref.ref[Link]", server: Server) -> Steps[None]:
    """Ask a server that is away, until it answers or nobody wants to know."""
    while server.breaker.is_open:
        yield Sleep(server.breaker.pause())
        if (link := weak()) is None or not link.is_used:
            return
        try:
            yield Probe(server, server.breaker.key)
        except SwlimitError:
            with suppress(SwlimitError):
                yield Locate(link, PROBE_TIMEOUT)
        except Exception as error:  # it is there, and refuses this key
            server.breaker.log_refusal(probe(server.breaker.key), error)
        del link


def locating(link: Link) -> Steps[None]:
    with suppress(SwlimitError):
        yield Locate(link, PROBE_TIMEOUT)


L = TypeVar("L", bound=Link)


class Links(Generic[L]):
    """The link of each client. It is its limiters' own: nothing here keeps it, or the client, from going."""

    def __init__(self, make: Callable[[Any], L]) -> None:
        self._make = make
        self._links: weakref.WeakKeyDictionary[Any, weakref.ref[L]] = weakref.WeakKeyDictionary()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    def of(self, client: Any) -> L:
        with self._lock:
            weak = self._links.get(client)
            link = weak() if weak is not None else None
            if link is None or link.is_closed:
                link = self._make(client)
                self._links[client] = weakref.ref(link)
            return link
