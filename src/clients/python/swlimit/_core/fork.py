"""A forked process uses none of its parent's connections, threads or locks.

Nor does a program whose threads become greenlets: gunicorn's gevent workers patch the modules that they were forked
with, and greenlets would block their whole thread on locks and connections from before.
"""

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    def reset(self) -> None:
        """Forget what belongs to the parent, also its locks: nobody would ever release them in the child."""


_all: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def remember(forkable: Forkable) -> None:
    """Call `reset` in each child, before anything else runs there."""
    _all.add(forkable)


lock_type = threading.Lock
"""The type of locks; gevent replaces it."""


def reset_after_patch() -> None:
    """Threads are greenlets from now on."""
    global lock_type
    lock_type = threading.Lock
    _reset_all()


def _reset_all() -> None:
    for forkable in list(_all):
        forkable.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
