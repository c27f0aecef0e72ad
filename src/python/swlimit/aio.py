"""The limiter for programs with asyncio."""

import asyncio
import functools
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import redis

from .connections import SILENCE, Home
from .core import (
    Acquire,
    Deciding,
    Key,
    KeyOf,
    Request,
    Sleep,
    Steps,
    as_bytes,
    deciding_all,
    instant_after,
    key_for,
)
from .decision import Decision, Decisions
from .denials import Demand, Denials
from .errors import Limited, NobodyLetsWait
from .local import Words
from .quota import Duration
from .tracking import CHANNEL, Pauses, Register, Subscribers, TrackersOfClients, log

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncLimiter(Deciding):
    """Decides for any number of keys with one quota, on a client of redis.asyncio."""

    def _begin(self, max_waiting: int) -> None:
        self._waiting = Waiting(max_waiting)
        self._turns: weakref.WeakValueDictionary[bytes, asyncio.Lock] = weakref.WeakValueDictionary()
        if self._denials is not None:
            self._trackers = trackers.of(self._client)

    async def allow(self, key: Key, cost: int = 1, *, partial: bool = False,
                    block: Duration | None = None) -> Decision:
        """Decide, and count if granted. `partial` grants as much as is left; `block` begins one with a denial."""
        return await self._run(self._allowing(key, cost, partial, block))

    async def peek(self, key: Key, cost: int = 1, *, partial: bool = False) -> Decision:
        """The same decision, without counting."""
        return await self._run(self._peeking(key, cost, partial))

    async def record(self, key: Key, cost: int = 1, *, age: Duration = 0, block: Duration | None = None) -> Decision:
        """Count, whatever the limit says; `age` ago."""
        return await self._run(self._recording(key, cost, age, block))

    async def refund(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units: the newest, or those counted that long ago. Returns how many. Raises ServerAway."""
        return await self._run(self._refunding(key, units, age))

    async def block(self, key: Key, duration: Duration, *, nx: bool = False) -> float:
        """Let the key grant nothing for so long; `nx`: unless it is blocked. Returns until when (Unix time)."""
        return await self._run(self._blocking(key, duration, nx))

    async def unblock(self, key: Key) -> bool:
        """Lift a block; whether there was one. Raises ServerAway."""
        return await self._run(self._unblocking(key))

    async def acquire(self, key: Key, cost: int = 1, timeout: float | None = None) -> Decision:
        """`allow` that waits for its turn, at most so many seconds; with no hope in that time it does not wait."""
        name, ends = as_bytes(key), instant_after(timeout)
        decision = await self._run(self._acquiring(name, cost, ends))
        if decision is not None:
            return decision
        async with self._turn(name, ends - time.monotonic()) as mine:
            return await self._run(self._awaiting(name, cost, ends if mine else 0.0))

    def limit(self, key: KeyOf, cost: int = 1, *, timeout: float | None = 0.0) -> "AsyncLimit":
        """A context, or a decorator, that is entered only when granted, and raises Limited otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits.
        """
        return AsyncLimit(self, key, cost, timeout)

    async def close(self) -> None:
        """Let go of connections and of what is remembered."""
        await self._waiting.close()
        if self._denials is not None and self._trackers is not None:
            self._trackers.subscribers.discard(self._denials)
            self._denials = self._trackers = None

    @asynccontextmanager
    async def _turn(self, key: bytes, timeout: float) -> AsyncIterator[bool]:
        """Whether one's turn has come within so many seconds; asyncio's locks are first come, first served."""
        lock = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with time_limit(max(0.001, timeout)):
                await lock.acquire()
        except asyncio.TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    async def _run(self, steps: Steps[T]) -> T:
        try:
            action = next(steps)
            while True:
                try:
                    reply = await self._do(action)
                except Exception as error:
                    action = steps.throw(error)
                else:
                    action = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _do(self, action: Words | Acquire | Sleep) -> Any:
        if isinstance(action, Acquire):
            return await self._waiting.execute(self._home(action.key), action.words, action.timeout)
        if isinstance(action, Sleep):
            return await asyncio.sleep(action.seconds)
        async with _within(self._timeout):
            return await self._client.execute_command(*action)


@asynccontextmanager
async def _within(seconds: float | None) -> AsyncIterator[None]:
    """Not asyncio's `wait_for`: before Python 3.12 it may miss that its task is cancelled, which then never ends."""
    try:
        async with time_limit(seconds):
            yield
    except asyncio.TimeoutError as error:
        raise redis.TimeoutError("no time is left for the server") from error


class AsyncLimit:
    """See `AsyncLimiter.limit`."""

    def __init__(self, limiter: AsyncLimiter, key: KeyOf, cost: int, timeout: float | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    async def __aenter__(self) -> Decision:
        return await self._enter(key_for(self._key, (), {}))

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            await self._enter(key_for(self._key, args, kwargs))
            return await function(*args, **kwargs)
        return limited

    async def _enter(self, key: Key) -> Decision:
        if self._timeout == 0:
            decision = await self._limiter.allow(key, self._cost)
        else:
            decision = await self._limiter.acquire(key, self._cost, self._timeout)
        if not decision:
            raise Limited(key, decision)
        return decision


async def allow_all(*requests: Request) -> Decisions:
    """Grant what all of these limits grant, or count nothing."""
    limiter = requests[0].limiter
    if not isinstance(limiter, AsyncLimiter):
        raise TypeError(f"{limiter} is no AsyncLimiter; see swlimit.allow_all")
    return await limiter._run(deciding_all(requests))


class TaskTracker:
    """A tracker in a task of the loop that runs, which ends when nobody subscribes any more."""

    def __init__(self, home: Home, subscribers: Subscribers) -> None:
        self._home = home
        self._subscribers = subscribers
        self._register = Register()
        self._to_send: asyncio.Queue[Words] | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, denials: Denials, demand: Demand) -> bool:
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._to_send = None
            self._register = Register()
            self._subscribers.lost()
            self._task = asyncio.get_running_loop().create_task(self._track(), name="swlimit-tracking")
        if self._to_send is None or self._register.is_full:
            return False
        self._to_send.put_nowait(self._register.ask(denials, demand, time.monotonic()))
        return True

    async def _track(self) -> None:
        pauses = Pauses()
        while self._subscribers:
            listener, asker = (_connection(self._home) for _ in range(2))
            tasks: list[asyncio.Task[None]] = []
            try:
                identity = await _call(listener, "CLIENT", "ID")
                await _call(listener, "SUBSCRIBE", CHANNEL)
                await _call(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
                pauses.reset()
                self._to_send = asyncio.Queue()
                tasks += [asyncio.create_task(step) for step in (
                    self._listen(listener), self._hear(asker, self._to_send), self._send(asker, self._to_send))]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            except (redis.RedisError, OSError, ValueError) as error:
                log.debug("not tracking: %s", error)  # the server does not track, or is away
            finally:
                self._register.clear()
                if self._to_send is not None:
                    self._to_send = None
                    self._subscribers.lost()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for connection in (listener, asker):
                    await connection.disconnect(nowait=True)
            if self._subscribers:
                await asyncio.sleep(pauses.next())

    async def _listen(self, listener: Any) -> None:
        async for message in _replies(listener, lambda: _send(listener, ("PING",)), self._subscribers):
            self._subscribers.told(message)

    async def _hear(self, asker: Any, to_send: "asyncio.Queue[Words]") -> None:
        async def ping() -> None:
            to_send.put_nowait(self._register.ask_whether_alive())

        async for reply in _replies(asker, ping, self._subscribers):
            self._register.answered(reply, time.monotonic())

    async def _send(self, asker: Any, to_send: "asyncio.Queue[Words]") -> None:
        while True:
            await _send(asker, await to_send.get())


async def _replies(connection: Any, ping: Callable[[], Awaitable[None]], wanted: Subscribers) -> AsyncIterator[Any]:
    """All that a connection tells, errors too; an error is raised when it is lost, or says nothing even to a ping."""
    pinged = False
    while wanted:
        try:
            reply = await connection.read_response(timeout=SILENCE)
        except redis.ResponseError as error:
            reply = error
        if reply is not None:
            pinged = False
            yield reply
        elif pinged:
            raise redis.TimeoutError("a connection is open, but nobody answers")
        else:
            pinged = True
            await ping()


def _connection(home: Home) -> Any:
    """One that has no timeouts of its own, for which redis-py would use `wait_for`; see `_within`."""
    return home.connection(socket_timeout=None, socket_connect_timeout=None)


async def _send(connection: Any, words: Words) -> None:
    await connection.send_packed_command(connection.pack_command(*words), check_health=False)


async def _call(connection: Any, *words: Any) -> Any:
    async with _within(SILENCE):
        await connection.connect()
        await _send(connection, words)
        return await connection.read_response()


async def _has_data(connection: Any) -> bool:
    """Nothing is expected; redis-py 8 has another name for looking."""
    look = getattr(connection, "can_read", None) or connection.can_read_destructive
    return bool(await look())


trackers = TrackersOfClients(TaskTracker)


class Waiting:
    """At most so many connections, each of which one request at a time may block."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._idle: defaultdict[str, list[Any]] = defaultdict(list)

    async def execute(self, home: Home, words: Words, timeout: float) -> Any:
        """The reply to a command that the server answers within `timeout` seconds, or soon after."""
        ends = time.monotonic() + timeout
        try:
            async with time_limit(max(timeout, 0.001)):
                await self._free.acquire()
        except asyncio.TimeoutError:
            raise NobodyLetsWait from None
        try:
            connection = await self._connection(home)
            try:
                await _send(connection, words)
                reply = await connection.read_response(timeout=max(0.0, ends - time.monotonic()) + SILENCE)
            except redis.ResponseError:
                raise
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                self._idle[home.name].append(connection)
            if reply is None:
                await connection.disconnect(nowait=True)
                raise redis.TimeoutError("the server has not answered in time")
            return reply
        finally:
            self._free.release()

    async def _connection(self, home: Home) -> Any:
        idle = self._idle[home.name]
        connection = idle.pop() if idle else _connection(home)
        try:
            if connection.is_connected and await _has_data(connection):
                await connection.disconnect()
        except (redis.RedisError, OSError):
            await connection.disconnect()  # the server has closed it
        async with _within(SILENCE):
            await connection.connect()
        return connection

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect()
