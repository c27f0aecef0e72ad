"""A process that forks takes none of its parent's connections, threads or locks with it.

Nor does a program whose threads become greenlets: gunicorn's gevent workers patch what they were forked with, and by
locks and connections from before that, greenlets would block their whole thread.
"""

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    def begin_anew(self) -> None:
        """Forget what belongs to the parent, its locks too: in the child nobody would ever release them."""


_all: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def remember(forkable: Forkable) -> None:
    """Have `begin_anew` called in each child, before anything else runs there."""
    _all.add(forkable)


lock_kind = threading.Lock
"""What locks are made by; gevent puts another one in its place."""


def patched() -> None:
    """Threads are greenlets from now on."""
    global lock_kind
    lock_kind = threading.Lock
    _begin_all_anew()


def _begin_all_anew() -> None:
    for forkable in list(_all):
        forkable.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_anew)
