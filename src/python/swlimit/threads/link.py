"""Does steps in threads."""

import threading
import time
from typing import Any, TypeVar

from ..errors import ServerAway
from ..link import Link, Links, Locate, Probe, Send, Sleep, Step, Steps
from ..servers import Server
from .pool import Pool
from .tracker import ThreadTracker

T = TypeVar("T")


class ThreadLink(Link):
    """The connections of one client's limiters, and the threads beside them."""

    def begin_anew(self) -> None:
        super().begin_anew()
        self._lock = threading.Lock()
        self._locating: threading.Event | None = None

    def wire(self, server: Server) -> Pool:
        return Pool(server)

    def tracker(self, server: Server) -> ThreadTracker:
        return ThreadTracker(server, self.subscribers)

    def spawn(self, steps: Steps[None]) -> None:
        threading.Thread(target=run, args=(steps, do), name="swlimit", daemon=True).start()

    def probe(self, server: Server) -> None:
        try:
            super().probe(server)
        except RuntimeError:  # no thread is to be had, as when the interpreter ends: requests find out themselves
            server.breaker.begin_anew()

    def locate(self, wait: float) -> None:
        """Many may wait for one answer."""
        with self._lock:
            done = self._locating
            if done is None:
                done = self._locating = threading.Event()
                threading.Thread(target=self._learn, args=(done,), name="swlimit-cluster", daemon=True).start()
        if not done.wait(wait):
            raise ServerAway("the cluster has not told in time which servers it has")

    def _learn(self, done: threading.Event) -> None:
        try:
            self.topology.learn()
            self.located()
        except Exception:  # noqa: S110  (whoever asks for a key finds no server, or the old one)
            pass
        finally:
            with self._lock:
                self._locating = None
            done.set()


def do(step: Step) -> Any:
    """What needs no limiter."""
    if isinstance(step, Send):
        return step.server.wire.send(step)
    if isinstance(step, Probe):
        return step.server.wire.probe(step.key)
    if isinstance(step, Locate):
        return step.link.locate(step.wait)
    if isinstance(step, Sleep):
        return time.sleep(step.seconds)
    raise AssertionError(step)


def run(steps: Steps[T], do: Any) -> T:
    """What the steps come to, each done by `do`."""
    try:
        action = next(steps)
        while True:
            try:
                outcome = do(action)
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


links = Links(ThreadLink)

