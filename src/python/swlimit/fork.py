"""A process that forks takes none of its parent's connections, threads or locks with it."""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def begin_anew(self) -> None:
        """Forget what belongs to the parent, its locks too: in the child nobody would ever release them."""


_all: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def remember(forkable: Forkable) -> None:
    """Have `begin_anew` called in each child, before anything else runs there."""
    _all.add(forkable)


def _in_child() -> None:
    for forkable in list(_all):
        forkable.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
