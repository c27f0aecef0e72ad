"""Every command, given up wherever it can be: it is undone, or done, and nobody else notices.

Other clients have units of every key, some older than the command. Were too much given back, or as of a wrong instant,
or by a guess from what a reply looks like, they would lose some.
"""

import asyncio
import itertools
import threading
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio

import swlimit
from support.contents import info
from support.waiting import eventually

from .scripted import Scripted, speaking

LIMIT, OLD, NEW = 1000, 10, 5
ID = b"chosen"


class Scene:
    """Limiters of either kind on one server, with keys of which others have units."""

    def __init__(self, server, admin, client, kinds, number):
        options = {"timeout": 20.0}
        limiter, holds, budget = kinds
        self.server, self.admin = server, admin
        self.rate = limiter(client, LIMIT, "1h", "1s", mode="direct", **options)
        self.full = limiter(client, OLD + NEW, "1h", "1s", mode="direct", **options)
        self.holds = holds(client, 100, **options)
        self.taken = holds(client, 1, **options)
        self.budget = budget(client, LIMIT, "year", **options)
        self.keys = SimpleNamespace(**{name: f"{{{number}}}{name}" for name in ("rate", "hold", "budget", "quiet")})
        admin.call("SWLIMIT.RECORD", self.keys.rate, LIMIT, "1h", "1s", "COST", OLD, "AGE", "10s")
        admin.call("SWLIMIT.RECORD", self.keys.rate, LIMIT, "1h", "1s", "COST", NEW)
        admin.call("SWLIMIT.HOLD", self.keys.hold, 1, "1h", "neighbour")
        now = int(admin.call("TIME")[0]) * 1000
        self.old_until = now - 5000
        admin.call("SWLIMIT.BUDGET", self.keys.budget, LIMIT, now + 10**9, "COST", OLD)

    def limiters(self):
        return self.rate, self.full, self.holds, self.taken, self.budget

    def state(self):
        """What is counted: of the rate the old units and all, of the budget, and who holds."""
        rate, budget = (self.admin.call("SWLIMIT.INFO", key) for key in (self.keys.rate, self.keys.budget))
        old = total = blocked = used = 0
        if isinstance(rate, list):
            fields = dict(zip(rate[::2], rate[1::2]))
            old = sum(units for instant, units in fields[b"counts"] if instant < self.old_until)
            total, blocked = fields[b"total"], fields[b"blocked"] > 0
        if isinstance(budget, list):
            used = dict(zip(budget[::2], budget[1::2]))[b"used"]
        holders = self.admin.call("SWLIMIT.HOLDERS", self.keys.hold)
        return old, total, bool(blocked), used, sorted(holder[0] == b"neighbour" for holder in holders)


BEFORE = OLD, OLD + NEW, False, OLD, [True]


def changed(old=OLD, total=OLD + NEW, blocked=False, used=OLD, holders=(True,)):
    return old, total, blocked, used, list(holders)


ROOM = changed(total=OLD + NEW - 2, holders=[])
WAIT = ["acquire waits", "hold waits"]
"""What the commands below ask for that others have at first."""


def everything(scene):
    return [scene.rate.request(scene.keys.rate, 3), scene.budget.request(scene.keys.budget, 2)]


def held(scene):
    return [*everything(scene), scene.holds.request(scene.keys.hold)]


COMMANDS = {
    "allow": (lambda one: one.rate.allow(one.keys.rate, 3), [BEFORE]),
    "allow partial": (lambda one: one.rate.allow(one.keys.rate, LIMIT, partial=True), [BEFORE]),
    "allow denied": (lambda one: one.rate.allow(one.keys.rate, LIMIT), [BEFORE]),
    "allow block": (lambda one: one.rate.allow(one.keys.rate, LIMIT, block="1h"), [BEFORE, changed(blocked=True)]),
    "peek": (lambda one: one.rate.peek(one.keys.rate, 3), [BEFORE]),
    "record": (lambda one: one.rate.record(one.keys.rate, 3), [BEFORE, changed(total=OLD + NEW + 3)]),
    "refund": (lambda one: one.rate.refund(one.keys.rate, 2), [BEFORE, changed(total=OLD + NEW - 2)]),
    "block": (lambda one: one.rate.block(one.keys.rate, "1h"), [BEFORE, changed(blocked=True)]),
    "unblock": (lambda one: one.rate.unblock(one.keys.rate), [BEFORE]),
    "reset": (lambda one: one.rate.reset(one.keys.rate), [BEFORE, changed(old=0, total=0)]),
    "acquire": (lambda one: one.rate.acquire(one.keys.rate, 3, timeout=20), [BEFORE]),
    "acquire waits": (lambda one: one.full.acquire(one.keys.rate, 2, timeout="2h"), [ROOM]),
    "allow_all": (lambda one: swlimit.allow_all(
        one.rate.request(one.keys.rate, 3), one.rate.request(one.keys.quiet, 2)), [BEFORE]),
    "budget": (lambda one: one.budget.allow(one.keys.budget, 3), [BEFORE]),
    "budget partial": (lambda one: one.budget.allow(one.keys.budget, LIMIT, partial=True), [BEFORE]),
    "budget record": (lambda one: one.budget.record(one.keys.budget, 3), [BEFORE, changed(used=OLD + 3)]),
    "budget refund": (lambda one: one.budget.refund(one.keys.budget, 3), [BEFORE, changed(used=OLD - 3)]),
    "budget reset": (lambda one: one.budget.reset(one.keys.budget), [BEFORE, changed(used=0)]),
    "hold": (lambda one: one.holds.hold(one.keys.hold), [BEFORE]),
    "hold waits": (lambda one: one.taken.hold(one.keys.hold, wait="1m"), [ROOM]),
    "holders": (lambda one: one.holds.holders(one.keys.hold), [BEFORE]),
    "admit": (lambda one: swlimit.admit(everything(one)), [BEFORE]),
    "admit an age": (lambda one: swlimit.admit(everything(one), max_age="1h"), [BEFORE]),
    "admit a hold": (lambda one: swlimit.admit(held(one)), [BEFORE]),
    "admit a chosen id": (lambda one: swlimit.admit(held(one), id=ID), [
        BEFORE, changed(total=OLD + NEW + 3, used=OLD + 2, holders=[False, True]),
        changed(total=OLD + NEW + 3, used=OLD + 2)]),  # the guard was there already, and was dropped
}


def waiting(scene):
    """Whether anybody waits: in the server, or, without the module, in this process."""
    if isinstance(scene.server, Scripted):
        queue = scene.taken._queues._queues.get(scene.keys.hold.encode())
        return queue is not None and queue.is_taken
    return int(info(scene.server)["swlimit_waiting"]) > 0


@contextmanager
def room(scene, name):
    """Make room once the command waits, where it does, or at the end."""
    if name not in WAIT:
        yield
        return
    is_over = threading.Event()

    def make_room():
        eventually(lambda: is_over.is_set() or waiting(scene))
        with speaking(scene.server) as connection:
            connection.call("SWLIMIT.REFUND", scene.keys.rate, 2)
            connection.call("SWLIMIT.RELEASE", scene.keys.hold, "neighbour")

    thread = threading.Thread(target=make_room)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        eventually(lambda: not waiting(scene))


# Tasks.


class Stepping:
    """Awaits something, and cancels its own task when that has waited so often, in one of several manners."""

    def __init__(self, awaitable, stop, moment):
        self.awaitable, self.stop, self.moment, self.is_cancelled = awaitable, stop, moment, False

    def __await__(self):
        task, steps = asyncio.current_task(), self.awaitable.__await__()
        advance, is_cancelled = partial(steps.send, None), False
        for step in itertools.count():
            try:
                future = advance()
            except StopIteration as done:
                return done.value
            assert not is_cancelled, "who is cancelled goes on"
            if step == self.stop:
                self.cancel(task, future)
            try:
                yield future
            except BaseException as error:
                advance, is_cancelled = partial(steps.throw, error), self.is_cancelled  # else a timeout has come
            else:
                advance = partial(steps.send, None)

    def cancel(self, task, future):
        loop = asyncio.get_running_loop()

        def cancel(_):
            self.is_cancelled = True
            task.cancel()

        if self.moment == "with the reply" and future is not None:
            future.add_done_callback(cancel)  # before the task itself knows
            return
        rounds = {"at once": 0, "under way": 2}.get(self.moment, 1)

        def later(left=rounds):
            if left:
                loop.call_soon(later, left - 1)
            else:
                cancel(None)
        later()


async def given_up(scene, name, stop, moment):
    """Whether the command was cancelled there; else it has ended before."""
    others = asyncio.create_task(scene.rate.allow(scene.keys.quiet))
    task = asyncio.create_task(awaited(Stepping(COMMANDS[name][0](scene), stop, moment)))
    await asyncio.wait([task], timeout=30)
    assert task.done(), (name, stop, moment)
    assert (await others).source == (await scene.rate.peek(scene.keys.rate)).source == "server", name
    if not task.cancelled() and hasattr(task.result(), "release"):
        await task.result().release()
    return task.cancelled()


async def awaited(steps):
    return await steps


@pytest.mark.parametrize("moment", ["at once", "under way", "with the reply"])
@pytest.mark.parametrize("name", COMMANDS)
def test_tasks(server, name, moment):
    async def main():
        client = redis.asyncio.Redis(port=server.port)
        kinds = swlimit.AsyncLimiter, swlimit.AsyncHoldLimiter, swlimit.AsyncBudgetLimiter
        scenes = []
        with speaking(server) as admin:
            for stop in itertools.count():
                scenes.append(Scene(server, admin, client, kinds, stop))
                entered = room(scenes[-1], name)
                await asyncio.to_thread(entered.__enter__)
                is_cancelled = await given_up(scenes[-1], name, stop, moment)
                await asyncio.to_thread(entered.__exit__, None, None, None)
                if not is_cancelled:
                    break
                await asyncio.to_thread(settled, scenes[-1], name)
            assert len(scenes) > 1
            for scene in scenes[:-1]:
                assert scene.state() in COMMANDS[name][1], name
            for scene in scenes:
                for limiter in scene.limiters():
                    await limiter.close()
    asyncio.run(main())


def settled(scene, name):
    """Wait until it is undone, or done."""
    allowed = COMMANDS[name][1]
    state = []
    eventually(lambda: state.append(scene.state()) or state[-1] in allowed, log=lambda: f"{name}: {state[-1]}")


# Threads.


class Interrupted(BaseException):
    pass


class Interrupting:
    """Raises Interrupted in this thread at one of the places at which it waits, sends or reads."""

    def __init__(self, monkeypatch, moment):
        self.moment, self.left = moment, None
        connection = redis.connection.AbstractConnection
        for owner, name in ((connection, "can_read"), (connection, "send_packed_command"), (connection, "connect"),
                            (threading.Condition, "wait"), (redis.connection.Connection, "read_response")):
            monkeypatch.setattr(owner, name, self.patched(getattr(owner, name), name))

    def patched(self, function, name):
        def patched(*args, **options):
            if self.left is None or threading.current_thread() is not threading.main_thread():
                return function(*args, **options)
            if self.moment == "before" or name == "read_response":
                self.step()
                return function(*args, **options)
            outcome = function(*args, **options)
            self.step()
            return outcome
        return patched

    def step(self):
        if self.left == 0:
            self.left = None
            raise Interrupted
        self.left -= 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", COMMANDS)
def test_threads(server, monkeypatch, name, moment):
    interrupting = Interrupting(monkeypatch, moment)
    client = redis.Redis(port=server.port)
    kinds = swlimit.Limiter, swlimit.HoldLimiter, swlimit.BudgetLimiter
    scenes = []
    with speaking(server) as admin:
        for stop in itertools.count():
            scenes.append(Scene(server, admin, client, kinds, stop))
            with room(scenes[-1], name):
                interrupting.left = stop
                try:
                    outcome = COMMANDS[name][0](scenes[-1])
                    break
                except Interrupted:
                    outcome = None
                finally:
                    interrupting.left = None
                assert scenes[-1].rate.peek(scenes[-1].keys.rate).source == "server"
            settled(scenes[-1], name)
        assert len(scenes) > 1
        for scene in scenes[:-1]:
            assert scene.state() in COMMANDS[name][1], name
        if hasattr(outcome, "release"):
            outcome.release()
        for scene in scenes:
            for limiter in scene.limiters():
                limiter.close()
