"""What the limiters of one client share: its servers, and what runs beside the requests."""

import inspect
import logging
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import redis.exceptions as redis_errors

from .._core import fork
from .._core.denial_cache import DenialCache, Ticket
from .._protocol.commands import Command, Probe, Record, ServerCommand
from .._protocol.replies import ERROR_REPLIES, Failure, as_raised, with_code
from .._protocol.script_fallback import Module, TakenOver, soon
from ..errors import NotExecuted, RefusedError, SwlimitError, UnavailableError, WrongClientError
from . import glide
from .breaker import LAST_PROBE, PROBE_TIMEOUT
from .endpoint import Endpoint
from .hold_renewer import HoldRenewer
from .interface import Interface, Signal, Worker
from .invalidation import Subscribers
from .libraries import glide_clients
from .sentinels import Sentinels
from .server import Server
from .topology import Cluster, MakeServer, OneServer
from .wait_queue import KeyQueues


class PendingRecord(NamedTuple):
    """A record to send when the server is back."""

    server: Server
    began: float
    matters: float
    """For how many seconds."""
    make: Callable[[int], Record]
    """Makes the command from the ms that have passed since it began."""


log = logging.getLogger("swlimit")
MOST_RECORDS = 100_000
CLOSING, CLOSING_ROUND_TRIPS, CLOSING_INTERVAL = 1.5, 6, 0.1
"""Closing takes so many seconds, or so many round trips, at most, and checks at this interval whether it is done."""
LOOK_FROM, LOOK_ROUND_TRIPS = 0.02, 4
"""The server is asked to track a denied key when the denial lasts longer than both: seconds, and round trips. Only of
many denials: `DenialCache.pays_to_look`."""

ONE_TAG = ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too"


class Core:
    """Made with a client's first limiter, and closed with its last."""

    def __init__(self, client: Any, interface: Interface, module: Module) -> None:
        self.interface = interface
        self._module: Module = module
        self.taken_over = TakenOver()
        self.subscribers = Subscribers()
        self.queues = KeyQueues(interface)
        self.topology = topology(client, self._make_server, interface)
        self._limiters: weakref.WeakSet[Any] = weakref.WeakSet()
        self.open_cluster: Callable[[], Awaitable[Any]] | None = None
        """Opens a client of the cluster that the client's address belongs to, if a limiter opened it."""
        self.opened: Any = None
        """The cluster's client that was opened."""
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._records: deque[PendingRecord] = deque(maxlen=MOST_RECORDS)
        self.is_closed = False
        self._is_sending_records = False
        self._lock = threading.Lock()
        self._refreshing: tuple[object, Signal] | None = None
        self._probing: dict[Server, Worker] = {}
        self._looking: dict[Server, Worker] = {}
        self._becoming: Signal | None = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, connections end with it, and a lock that is held is never released.
        if hasattr(self, "topology") and not is_finalizing():
            self.close_connections()

    # Its limiters.

    def join(self, limiter: Any, denials: DenialCache | None) -> None:
        self._limiters.add(limiter)
        if denials is not None:
            self.subscribers.add(denials)

    def leave(self, limiter: Any, denials: DenialCache | None) -> bool:
        """Whether that was the last limiter."""
        self._limiters.discard(limiter)
        if denials is not None:
            self.subscribers.discard(denials)
        self.is_closed = not self._limiters
        return self.is_closed

    @property
    def is_used(self) -> bool:
        return bool(self._limiters)

    async def settle(self, limiter: Any) -> None:
        """Before its last limiter leaves: send kept records, and what is repeated, while there is time. Logs the rest.
        """
        servers = self.topology.all()
        ends = time.monotonic() + max([CLOSING, *(CLOSING_ROUND_TRIPS * (one.round_trip or 0.0) for one in servers)])
        while set(self._limiters) == {limiter}:
            waits = self._records or any(one.renewer.is_repeating for one in servers)
            if not waits and not any(one.connections.owes for one in servers):
                return
            if time.monotonic() >= ends:
                if waits:
                    self._give_up(servers)
                return
            for one in servers:
                if not one.breaker.is_open:
                    one.renewer.retry()
            await self.interface.sleep(CLOSING_INTERVAL)

    def _give_up(self, servers: list[Server]) -> None:
        lost: Counter[tuple[str, bytes]] = Counter()
        for record in self._records:
            command = record.make(0)
            lost[str(command), command.key] += command.cost
        for server in servers:
            lost.update((str(command), command.key) for command in server.renewer.give_up())
        self._records.clear()
        log.warning("closed before the server answered; lost: %s", ", ".join(
            f"{name} {key.decode(errors='backslashreplace')!r} {units}" for (name, key), units in lost.items()))

    def close_connections(self) -> list[Worker]:
        """Returns the workers, which end soon."""
        workers = [*self._probing.values(), *self._looking.values(), *self.topology.close()]
        for worker in workers:
            self.interface.end(worker)
        for server in self.topology.all():
            workers += server.workers
            server.end()
            server.renewer.wake()
        return workers

    # Requests.

    async def send(self, command: Command, timeout: float, wait: float) -> Any:
        """The reply to a command; see `Connections.send`. Raises UnavailableError when the failure policy must decide,
        and RefusedError for the error replies that callers have caused."""
        server = self.of(command.key)
        if server is None:
            server = await self._locate(command.key, wait)
        try:
            reply = await self._send(server, command, timeout, wait)
            if time.monotonic() >= server.next_look:
                self._look_at(server)
            return reply
        except UnavailableError as error:
            server.policy_decides(error)
            raise
        except redis_errors.ClusterCrossSlotError as error:
            raise RefusedError(f"{with_code(error)}{ONE_TAG}") from None
        except ERROR_REPLIES as error:
            raise as_raised(error) from None

    async def _send(self, server: Server, command: Command, timeout: float, wait: float) -> Any:
        asking = is_retry = False
        if wait <= 0:
            raise NotExecuted("the caller has no time left", "no_answer")
        while True:
            if server.breaker.is_open:
                failure = server.breaker.failure
                raise NotExecuted(f"{server.endpoint.name}: {failure.message}", failure.reason)
            if server.is_too_slow(timeout):
                self._look_at_slow(server, command.key)
                raise NotExecuted(server.state.message, "slow")
            try:
                return await server.connections.send(command, timeout, wait, asking)
            except (redis_errors.AskError, redis_errors.TryAgainError) as error:
                if is_retry:
                    raise server.lost(error, command.key) from error
                is_retry = True
                asking = isinstance(error, redis_errors.AskError) and not isinstance(error, redis_errors.MovedError)
                if isinstance(error, redis_errors.AskError):
                    server = await self.follow(server, error, command.key, wait)

    async def follow(self, server: Server, error: Exception, key: bytes, wait: float) -> Server:
        """The server that MOVED or ASK names. A client of one server cannot follow: unless the limiter has opened it,
        that is an error until it was served once, and a failure afterwards."""
        if self.topology.follows:
            return self.redirected(error)
        if self.open_cluster is not None:
            await self.become_cluster(wait)
            if self.topology.follows and self.of(key) is not None:
                return self.redirected(error)
        if not server.is_served:
            raise WrongClientError(
                f"{server.endpoint.name} is part of a cluster: use a {self.topology.cluster_class} in place of a "
                "client of one server") from None
        raise server.failed(Failure.of(error), key, NotExecuted) from None

    async def _locate(self, key: bytes, wait: float) -> Server:
        """The server of a key in a cluster whose servers are not known yet."""
        await self.refresh(wait)
        server = self.of(key)
        if server is None:
            raise NotExecuted("no server of the cluster is known to have this key", "cluster")
        return server

    # Servers.

    def of(self, key: bytes) -> Server | None:
        server = self.topology.of(key)
        if server is not None and server.breaker.is_open:
            self.probe(server)
        return server

    def has_queue(self, key: bytes) -> bool:
        """Whether its server lets clients wait, as far as is known: neither the script nor the first release does, and
        connections that the program shares must not."""
        server = self.topology.of(key)
        return server is None or not (
            server.endpoint.is_shared or server.dialect.uses_script or server.dialect.lacks_acquire)

    def renewer_of(self, key: bytes) -> HoldRenewer | None:
        server = self.topology.of(key)
        return None if server is None else server.renewer

    def redirected(self, error: Exception) -> Server:
        """Raises the error where the client follows no redirection."""
        server = self.topology.redirected(error)
        self.interface.spawn(self._refresh_soon())
        self.subscribers.lost()  # nobody announces the keys of slots that another server took over
        return server

    def _look_at(self, server: Server) -> None:
        """Ask a server in the background what INFO says, once in about a minute."""
        server.next_look = soon()
        if server not in self.topology.all():  # the cluster was asked in its place
            return
        with suppress(RuntimeError):  # no thread could be started
            self.interface.spawn(look_at(weakref.ref(self), server))

    async def is_of_cluster(self) -> None:
        """A server says that it is part of a cluster."""
        if not self.topology.follows and self.open_cluster is not None:
            await self.become_cluster(0.0)

    async def become_cluster(self, wait: float) -> None:
        """The address that was opened belongs to a cluster: become its client. Goes on in the background."""
        done = self._becoming
        if done is None:
            done = self._becoming = self.interface.signal()
            self.interface.spawn(self._open_as_cluster(done))
        await done.wait(wait)

    async def _open_as_cluster(self, done: Signal) -> None:
        assert self.open_cluster is not None
        try:
            client = self.opened = await self.open_cluster()
        except Exception as error:
            log.warning("no address that the cluster names can be reached, so %s alone is asked: %s",
                        self.topology.all()[0].endpoint.name, type(error).__name__, extra={"event": "cluster"})
        else:
            before, self.topology = self.topology, Cluster(client, self._make_server)
            log.info("%s is part of a cluster, whose servers are asked now", before.all()[0].endpoint.name)
            self.subscribers.lost()
            for server in before.all():
                server.close()
        finally:
            done.set()

    async def refresh(self, seconds: float) -> None:
        """Ask a cluster for its servers, waiting at most so long. It goes on in the background, once for all callers.
        """
        with self._lock:
            loop = self.interface.current_loop()
            if self._refreshing is None or self._refreshing[0] is not loop:
                done = self.interface.signal()
                self.interface.spawn(self._refresh(done))
                self._refreshing = loop, done
            done = self._refreshing[1]
        if not await done.wait(seconds):
            raise NotExecuted("the cluster has not named its servers in time", "no_answer")

    async def _refresh_soon(self) -> None:
        with suppress(SwlimitError):
            await self.refresh(PROBE_TIMEOUT)

    async def _refresh(self, done: Signal) -> None:
        try:
            refreshing = self.topology.refresh()
            if inspect.isawaitable(refreshing):
                await refreshing
            for server in self.topology.refreshed():
                server.close()
        except Exception:  # noqa: S110  (requests find no server for their key, or the old one)
            pass
        finally:
            with self._lock:
                if self._refreshing is not None and self._refreshing[1] is done:
                    self._refreshing = None
            done.set()

    def _make_server(self, endpoint: Endpoint) -> Server:
        weak = weakref.ref(self)
        server = Server(endpoint, self._module, self.taken_over, self.interface, self.subscribers, weak)

        def on_open() -> None:
            if (state := weak()) is not None:
                state.probe(server)

        server.breaker.on_open = on_open
        return server

    def probe(self, server: Server) -> None:
        """Probe an unavailable server until it is back; in the current loop, wherever it failed."""
        with self._lock:
            if self.interface.is_running(self._probing.get(server)):
                return
            try:
                self._probing[server] = self.interface.spawn(probe_until_back(weakref.ref(self), server))
            except RuntimeError:  # no thread could be started, as when the interpreter ends: requests try themselves
                server.breaker.reset()

    def _look_at_slow(self, server: Server, key: bytes) -> None:
        """Probe a slow server until it fits a limiter's timeout again."""
        with self._lock, suppress(RuntimeError):  # no thread could be started: the next request tries again
            if not self.interface.is_running(self._looking.get(server)):
                self._looking[server] = self.interface.spawn(look_until_fast(weakref.ref(self), server, key))

    @property
    def longest_timeout(self) -> float:
        return max((one._timeout for one in list(self._limiters)), default=0.0)

    def track(self, server: Server, denials: DenialCache, ticket: Ticket, retry_after: float) -> float | None:
        """Ask the server for invalidations of a denied key. Returns for how many seconds at most the denial may be
        remembered until then; None when the server can't send invalidations."""
        tracker = server.tracker
        if server.endpoint.is_shared:
            return None
        if tracker.is_up:
            if tracker.peeks.is_refused:
                return None
            short: float = max(LOOK_FROM, LOOK_ROUND_TRIPS * tracker.peeks.round_trip)
            if retry_after <= short:
                return short
        if denials.pays_to_look(ticket.demand.key, time.monotonic(), retry_after):
            tracker.look(denials, ticket)
        return None if tracker.is_refused else 0.0

    def keep(self, record: PendingRecord) -> None:
        """Send this record when the server is back. The oldest are dropped when there are too many."""
        self._records.append(record)
        if not self._is_sending_records:
            self._is_sending_records = True
            self.interface.spawn(self._send_records())

    async def _send_records(self) -> None:
        try:
            while self._records and self.is_used:
                server, began, matters, make = self._records[0]
                passed = time.monotonic() - began
                if passed < matters:
                    if server.breaker.is_open:
                        await self.interface.sleep(0.05)
                        continue
                    command = make(int(passed * 1000))
                    try:
                        await server.connections.send(command, PROBE_TIMEOUT, PROBE_TIMEOUT)
                    except SwlimitError:
                        await self.interface.sleep(0.05)
                        continue
                    except Exception as error:
                        server.refused(command.words(), error)
                self._records.popleft()
        finally:
            self._is_sending_records = False


async def probe_until_back(weak: "weakref.ref[Core]", server: Server) -> None:
    """Probe an unavailable server until it answers, or until its client has no limiters."""
    while server.breaker.is_open:
        if (state := weak()) is None:
            return
        interface = state.interface
        del state
        await interface.sleep(server.breaker.pause())
        if (state := weak()) is None or not state.is_used:
            return
        try:
            await server.connections.probe(server.breaker.key)
        except SwlimitError:
            with suppress(SwlimitError):
                await state.refresh(PROBE_TIMEOUT)
        except Exception as error:  # the server answers, and refuses this key
            server.refused(Probe(server.breaker.key).words(), error)
        del state
    server.renewer.retry()


async def look_at(weak: "weakref.ref[Core]", server: Server) -> None:
    """Ask a server what INFO says."""
    question = ServerCommand(b"", "INFO")
    try:
        reply = await server.connections.send(question, PROBE_TIMEOUT, PROBE_TIMEOUT)
    except ERROR_REPLIES as error:
        server.refused(question.words(), error)
    except SwlimitError:
        pass
    else:
        fields = dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)
        server.informed(fields)
        if fields.get("redis_mode") == "cluster" and (state := weak()) is not None:
            await state.is_of_cluster()


async def look_until_fast(weak: "weakref.ref[Core]", server: Server, key: bytes) -> None:
    """Probe a slow server until its round trip fits the timeout that it was above."""
    while server.slow_timeout is not None and not server.breaker.is_open:
        if (state := weak()) is None or not state.is_used:
            return
        interface, at_most = state.interface, max(PROBE_TIMEOUT, state.longest_timeout)
        del state
        with suppress(SwlimitError, *ERROR_REPLIES):
            server.looked(await server.connections.probe(key, at_most))
        await interface.sleep(LAST_PROBE)


def topology(client: Any, make: MakeServer, interface: Interface) -> OneServer | Cluster:
    if isinstance(client, glide_clients(True) + glide_clients(False)):
        return OneServer(glide.endpoint(client), make)
    if hasattr(client, "nodes_manager"):
        return Cluster(client, make)
    pool = client.connection_pool
    if hasattr(pool, "sentinel_manager") and pool.is_master:
        return Sentinels(client, make, interface)
    return OneServer(Endpoint.of_pool(pool), make)


class Cores:
    """The state of each client and `module`. Only its limiters keep a state, or its client, in memory."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._states: weakref.WeakKeyDictionary[Any, dict[Module, weakref.ref[Core]]] = (
            weakref.WeakKeyDictionary())
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()

    def of(self, client: Any, module: Module) -> Core:
        with self._lock:
            states = self._states.setdefault(client, {})
            weak = states.get(module)
            state = weak() if weak is not None else None
            if state is None or state.is_closed:
                state = Core(client, self._interface, module)
                states[module] = weakref.ref(state)
            return state
