"""Threads that ask all the time, while something happens."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from .waiting import eventually


class Asking:
    """How often was asked."""

    def __init__(self, threads):
        self.over = threading.Event()
        self.made = [0] * threads

    def work(self, number, ask):
        while not self.over.is_set():
            ask()
            self.made[number] += 1

    def often(self, requests):
        """Wait until each thread has made this many requests more, or has died of one."""
        goals = [made + requests for made in self.made]
        eventually(lambda: all(made >= goal for made, goal in zip(self.made, goals)), log=lambda: str(self.made))


@contextmanager
def asking(*functions):
    """Call each of these functions over and over, in a thread of its own, while the block runs: an `Asking`.

    What one raises is raised again at the end of the block, and so it is when one has never been called in full.
    """
    load = Asking(len(functions))
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(load.work, number, function) for number, function in enumerate(functions)]
        try:
            yield load
        finally:
            load.over.set()
            for future in running:
                future.result()
    assert all(load.made), load.made
