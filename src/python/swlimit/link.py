"""What the limiters of one client share: its servers, and what goes on beside the requests."""

import inspect
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from . import fork
from .backend import Module
from .breaker import PROBE_TIMEOUT
from .commands import Command, probe
from .denials import Denials, Ticket
from .errors import ServerAway, SwlimitError
from .outside import Outside, Signal
from .renewing import Renewer
from .sentinels import Sentinels
from .servers import Cluster, Home, OneServer, Server, Servers, home_of
from .tracking import Subscribers, Tracker


class Kept(NamedTuple):
    """A record that is sent when the server is back: it is made of the ms that have passed since it began."""

    server: Server
    began: float
    matters: float
    """For how many seconds."""
    command: Callable[[int], Command]


MOST_KEPT = 100_000


class Link:
    """Made when a client's first limiter is, and closed with its last."""

    def __init__(self, client: Any, outside: Outside, module: Module) -> None:
        self.outside = outside
        self._module = module
        self.subscribers = Subscribers()
        self.topology = topology(client, self._server, outside)
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._kept: deque[Kept] = deque(maxlen=MOST_KEPT)
        self.is_closed = False
        self._is_sending_kept = False
        self._lock = threading.Lock()
        self._located: tuple[object, Signal] | None = None
        self._probing: dict[Server, Any] = {}

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, connections end with it, and whoever holds a lock never lets go of it.
        if hasattr(self, "topology") and not is_finalizing():
            self.close_connections()

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

    def close_connections(self) -> list[Any]:
        """Returns the workers, which end soon."""
        workers = [*self._probing.values(), *self.topology.leave()]
        for worker in workers:
            self.outside.end(worker)
        for server in self.topology.all():
            workers += server.workers
            server.close()
            server.renewer.look()
        return workers

    # Servers.

    def of(self, key: bytes) -> Server | None:
        server = self.topology.of(key)
        if server is not None and server.breaker.is_open:
            self.probe(server)
        return server

    def redirected(self, error: Exception) -> Server:
        server = self.topology.redirected(error)
        self.outside.spawn(self._locating())
        self.subscribers.lost()  # nobody tells of keys whose slot another server took over
        return server

    async def locate(self, seconds: float) -> None:
        """Ask a cluster for its servers, waiting no longer than that; the asking goes on, and many wait for one."""
        with self._lock:
            scene = self.outside.scene()
            if self._located is None or self._located[0] is not scene:
                done = self.outside.signal()
                self.outside.spawn(self._learn(done))
                self._located = scene, done
            done = self._located[1]
        if not await done.wait(seconds):
            raise ServerAway("the cluster has not told in time which servers it has")

    async def _locating(self) -> None:
        with suppress(SwlimitError):
            await self.locate(PROBE_TIMEOUT)

    async def _learn(self, done: Signal) -> None:
        try:
            learning = self.topology.learn()
            if inspect.isawaitable(learning):
                await learning
            for server in self.topology.learnt() or ():
                server.close()
        except Exception:  # noqa: S110  (whoever asks for a key finds no server, or the old one)
            pass
        finally:
            with self._lock:
                if self._located is not None and self._located[1] is done:
                    self._located = None
            done.set()

    def _server(self, home: Home) -> Server:
        server = Server(home, self._module)
        weak = weakref.ref(self)
        server.wire, server.tracker = self.outside.wire(server), Tracker(self.outside, server, self.subscribers)
        server.renewer = Renewer(self.outside, server, weak)

        def on_open() -> None:
            if (link := weak()) is not None:
                link.probe(server)

        server.breaker.on_open = on_open
        return server

    def probe(self, server: Server) -> None:
        """Have a server that is away asked until it is back; in the scene that there is, not where it was found so."""
        with self._lock:
            if self.outside.is_running(self._probing.get(server)):
                return
            try:
                self._probing[server] = self.outside.spawn(probing(weakref.ref(self), server))
            except RuntimeError:  # no thread is to be had, as when the interpreter ends: requests find out themselves
                server.breaker.begin_anew()

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
        if not self._is_sending_kept:
            self._is_sending_kept = True
            self.outside.spawn(self._sending_kept())

    async def _sending_kept(self) -> None:
        try:
            while self._kept and self.is_used:
                server, began, matters, make = self._kept[0]
                passed = time.monotonic() - began
                if passed < matters:
                    if server.breaker.is_open:
                        await self.outside.sleep(0.05)
                        continue
                    command = make(int(passed * 1000))
                    try:
                        await server.wire.send(command, PROBE_TIMEOUT, PROBE_TIMEOUT)
                    except SwlimitError:
                        await self.outside.sleep(0.05)
                        continue
                    except Exception as error:
                        server.refused(command.words, error)
                self._kept.popleft()
        finally:
            self._is_sending_kept = False


async def probing(weak: "weakref.ref[Link]", server: Server) -> None:
    """Ask a server that is away, until it answers or nobody wants to know."""
    while server.breaker.is_open:
        if (link := weak()) is None:
            return
        outside = link.outside
        del link
        await outside.sleep(server.breaker.pause())
        if (link := weak()) is None or not link.is_used:
            return
        try:
            await server.wire.probe(server.breaker.key)
        except SwlimitError:
            with suppress(SwlimitError):
                await link.locate(PROBE_TIMEOUT)
        except Exception as error:  # it is there, and refuses this key
            server.refused(probe(server.breaker.key).words, error)
        del link


def topology(client: Any, make: Servers, outside: Outside) -> OneServer | Cluster:
    if hasattr(client, "nodes_manager"):
        return Cluster(client, make)
    pool = client.connection_pool
    if hasattr(pool, "sentinel_manager") and pool.is_master:
        return Sentinels(client, make, outside)
    return OneServer(home_of(pool), make)


class Links:
    """The link of each client and `module`. It is its limiters' own: nothing here keeps it or the client from going."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._links: weakref.WeakKeyDictionary[Any, dict[Module, weakref.ref[Link]]] = weakref.WeakKeyDictionary()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    def of(self, client: Any, module: Module) -> Link:
        with self._lock:
            links = self._links.setdefault(client, {})
            weak = links.get(module)
            link = weak() if weak is not None else None
            if link is None or link.is_closed:
                link = Link(client, self._outside, module)
                links[module] = weakref.ref(link)
            return link
