"""Does steps with asyncio."""

import asyncio
import inspect
import weakref
from typing import Any, TypeVar

from ..errors import ServerAway
from ..link import Link, Links, Locate, Probe, Send, Sleep, Step, Steps, probing
from ..servers import Server
from .timing import time_limit
from .tracker import TaskTracker
from .wire import Wire

T = TypeVar("T")


class TaskLink(Link):
    """The connections of one client's limiters, and the tasks beside them."""

    def begin_anew(self) -> None:
        super().begin_anew()
        self._tasks: set[asyncio.Task[None]] = set()
        self._probing: dict[Server, asyncio.Task[None]] = {}
        self._locating: asyncio.Task[None] | None = None

    def wire(self, server: Server) -> Wire:
        return Wire(server)

    def tracker(self, server: Server) -> TaskTracker:
        return TaskTracker(server, self.subscribers)

    def spawn(self, steps: Steps[None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(run(steps, do), name="swlimit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def of(self, key: bytes) -> Server | None:
        server = super().of(key)
        if server is not None and server.breaker.is_open:
            self.probe(server)
        return server

    def probe(self, server: Server) -> None:
        """In the loop that runs, which need not be the one in which the server was found to be away."""
        task = self._probing.get(server)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            self._probing[server] = self.spawn(probing(weakref.ref(self), server))

    async def locate(self, wait: float) -> None:
        """Many may wait for one answer, which comes whoever gives up."""
        task, loop = self._locating, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._locating = loop.create_task(self._learn(), name="swlimit-cluster")
        try:
            async with time_limit(wait):
                await asyncio.shield(task)
        except asyncio.TimeoutError:
            raise ServerAway("the cluster has not told in time which servers it has") from None

    async def _learn(self) -> None:
        try:
            learning = self.topology.learn()
            if inspect.isawaitable(learning):
                await learning
            self.located()
        except Exception:  # noqa: S110  (whoever asks for a key finds no server, or the old one)
            pass


async def do(step: Step) -> Any:
    """What needs no limiter."""
    if isinstance(step, Send):
        return await step.server.wire.send(step)
    if isinstance(step, Probe):
        return await step.server.wire.probe(step.key)
    if isinstance(step, Locate):
        return await step.link.locate(step.wait)
    if isinstance(step, Sleep):
        return await asyncio.sleep(step.seconds)
    raise AssertionError(step)


async def run(steps: Steps[T], do: Any) -> T:
    """What the steps come to, each done by `do`."""
    try:
        action = next(steps)
        while True:
            try:
                outcome = await do(action)
            except Exception as error:
                action = steps.throw(error)
            else:
                action = steps.send(outcome)
    except StopIteration as done:
        result: T = done.value
        return result
    except BaseException:
        steps.close()
        raise


links = Links(TaskLink)
