"""An exception that comes between two instructions: a signal's, or a Timeout of gevent, wherever Python lets it in.

The interpreter takes signals in at the start of a function, after a call and where a loop begins again. A request is
interrupted once at each such place of its path, in our code, redis-py's and the library's. Nobody has what the server
granted then, so nothing may stay counted and no place be taken, and other threads go on.
"""

import dis
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import redis

import swlimit
from support.contents import info
from support.waiting import eventually
from swlimit._transport.thread_backend import run
from swlimit._transport.thread_pool import MOST_OPENING, ThreadPool

pytestmark = [pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]  # interrupted finalizers
LIMIT, OTHERS = 1_000_000, 5
CHECKED = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_KW",
                                        "CALL_METHOD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "RESUME") if name in dis.opmap}
"""The instructions after which the interpreter looks for signals."""


class Interrupted(BaseException):
    pass


class Interrupting:
    """Raises Interrupted at the first place at which it has not yet: an instruction of a code object."""

    def __init__(self):
        self.places = set()
        self.place = None
        """Where it was raised last."""
        self._is_within = False

    @contextmanager
    def once(self):
        self.place, self._is_within = None, False
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame, event, arg):
        if frame.f_code is run.__code__:
            self._is_within = True
        if not self._is_within or self.place is not None:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return partial(self._at, [None])

    def _at(self, last, frame, event, arg):
        if event == "return" and frame.f_code is run.__code__:
            self._is_within = False  # its caller has the outcome
        if event != "opcode":
            return partial(self._at, last)
        before, last[0] = last[0], frame.f_lasti
        place = frame.f_code, frame.f_lasti
        if before is not None and frame.f_code.co_code[before] in CHECKED and place not in self.places:
            self.places.add(place)
            self.place = place
            sys.settrace(None)
            raise Interrupted
        return partial(self._at, last)

    def __str__(self):
        code, instruction = self.place
        line = next(line for start, end, line in code.co_lines() if start <= instruction < end)
        return f"{code.co_filename.rpartition('/')[2]}:{line} {code.co_name} +{instruction}"


class Scene:
    """Limiters on one server. Others have filled some keys."""

    def __init__(self, server, module="auto"):
        options = {"timeout": 20.0, "max_waiting": 1, "module": module}
        self.server, self.module, client = server, module, redis.Redis(port=server.port)
        self.rate = swlimit.Limiter(client, LIMIT, "1h", mode="direct", **options)
        self.full = swlimit.Limiter(client, OTHERS, "1h", mode="direct", **options)
        self.holds, self.taken = (swlimit.HoldLimiter(client, limit, **options) for limit in (10, 1))

    def close(self):
        for one in (self.rate, self.full, self.holds, self.taken):
            one.close()

    def close_connections(self):
        self.rate._state.topology.all()[0].connections.close()

    def is_waiting(self, key):
        """In the server, or by the script in this process."""
        if self.module == "auto":
            return int(info(self.server, "swlimit")["swlimit_waiting"]) > 0
        return self.taken._queues.is_taken(f"{key}:h".encode())

    def left(self, key):
        """What is counted, and how many hold."""
        return LIMIT - self.rate.peek(key).remaining, len(self.holds.holders(f"{key}:h"))

    @contextmanager
    def room(self, key, others):
        """Others leave once the request waits, or when it has ended."""
        is_over = threading.Event()
        self.full.record(key, OTHERS)
        neighbour = self.taken.hold(f"{key}:h")

        def leave():
            eventually(lambda: is_over.is_set() or self.is_waiting(key))
            self.full.refund(key, OTHERS)
            neighbour.release()

        leaving = others.submit(leave)
        try:
            yield
        finally:
            is_over.set()
            leaving.result(30)
            eventually(lambda: not self.is_waiting(key))


PATHS = {
    "allow": lambda scene, key: scene.rate.allow(key, 3),
    "allow_all": lambda scene, key: swlimit.allow_all(scene.rate.request(key, 3), scene.rate.request(f"{key}:2", 2)),
    "acquire": lambda scene, key: scene.rate.acquire(key, 3, timeout=20),
    "hold": lambda scene, key: scene.holds.hold(f"{key}:h"),
    "admit": lambda scene, key: swlimit.admit([scene.rate.request(key, 3), scene.holds.request(f"{key}:h")]),
}
WAITS = {
    "acquire": lambda scene, key: scene.full.acquire(key, 2, timeout="2h"),
    "hold": lambda scene, key: scene.taken.hold(f"{key}:h", wait="1m"),
}


def interrupted_everywhere(scene, ask, around):
    """By key, where the request was interrupted. Afterwards other threads go on."""
    interrupting, places = Interrupting(), {}
    with ThreadPoolExecutor(2) as others:
        for number in range(10_000):
            key = f"{{{number}}}"
            with around(key, others):
                try:
                    with interrupting.once():
                        outcome = ask(scene, key)
                except (Interrupted, UnboundLocalError):  # redis-py has a `finally` that counts on what comes before
                    outcome = None
            if interrupting.place is None:
                break
            if hasattr(outcome, "release"):  # it was interrupted where Python ignores that
                outcome.release()
            places[key] = str(interrupting)
            with suppress(TimeoutError):
                others.submit(scene.rate.peek, "other").result(10)
                continue
            raise AssertionError(f"{places[key]}: others do not go on")
        assert len(places) > 100
        for key, place in places.items():
            eventually(lambda: scene.left(key), (0, 0), 15, log=lambda: place)


@pytest.mark.parametrize("is_cold", [False, True], ids=["connected", "connecting"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_stays_counted(server, path, is_cold):
    scene = Scene(server)
    scene.rate.peek("other")

    @contextmanager
    def around(key, others):
        if is_cold:
            scene.close_connections()
        yield

    interrupted_everywhere(scene, PATHS[path], around)
    scene.close()


@pytest.mark.parametrize("path, module", [("acquire", "auto"), ("hold", "auto"), ("hold", "never")])
def test_nothing_stays_counted_of_waits(server, path, module):
    """In the server, on the only connection for that; by the script, in the only place of the key's queue."""
    scene = Scene(server, module)
    interrupted_everywhere(scene, WAITS[path], scene.room)
    scene.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("when", ["at once", "in the middle"])
def test_connecting_threads_that_die(server, monkeypatch, when):
    """More of them than may connect at once: none is counted as connecting for ever."""
    left = [MOST_OPENING + 2]
    owner, name = (ThreadPool, "_open") if when == "at once" else (redis.connection.AbstractConnection, "connect")
    real = getattr(owner, name)

    def dying(*args, **options):
        if threading.current_thread().name == "swlimit-connect" and left[0]:
            left[0] -= 1
            raise SystemExit
        return real(*args, **options)

    monkeypatch.setattr(owner, name, dying)
    with swlimit.Limiter(redis.Redis(port=server.port), LIMIT, "1h", timeout=5.0, on_failure="allow") as limiter:
        eventually(lambda: limiter.allow("k").source, "server")
        assert not left[0] and limiter.servers()[0].state == "up"
