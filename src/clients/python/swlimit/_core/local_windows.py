"""Windows in this process: the module's arithmetic, without a server."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from . import fork
from .bounded import BoundedMap
from .quota import Quota, part
from .window import Key, Reply


class LocalWindows:
    """At most `max_keys` keys. share: this process's share of each limit, in millionths.

    Those go first that were not used for the longest time, and blocked ones last.
    """

    def __init__(self, share: int = 1_000_000, max_keys: int = 100_000) -> None:
        self._share = share
        self._keys: BoundedMap[Key] = BoundedMap(
            max_keys, lambda key, now: now < key.blocked_until, lambda key, now: now < key.end)
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def evicted(self) -> int:
        """How many keys were forgotten that still counted, because there were too many."""
        return self._keys.evicted

    def execute(self, command: str, key: bytes, quota: Quota, now: int, cost: int = 1, partial: bool = False,
                age: int = 0, block: int | None = None) -> Reply:
        """What the module would reply to ALLOW, PEEK or RECORD at the instant `now`."""
        with self._lock:
            return self._execute(command, key, quota, now, cost, partial, age, block)

    def _execute(self, command: str, key: bytes, quota: Quota, now: int, cost: int, partial: bool = False,
                 age: int = 0, block: int | None = None) -> Reply:
        mine = self._mine(quota)
        if command == "ALLOW":
            return self._kept(key, now).allow(mine, now, cost, partial, block)
        if command == "PEEK":
            return (self._keys.used(key) or Key()).peek(mine, now, cost, partial)
        return self._kept(key, now).record(mine, now, cost, age, block)

    def check(self, key: bytes, quota: Quota, now: int, cost: int) -> Reply:
        """What `take` would reply. Only `allow_all` calls both, which has the lock."""
        return self._execute("PEEK", key, quota, now, cost)

    def take(self, key: bytes, quota: Quota, now: int, cost: int) -> Reply:
        return self._execute("ALLOW", key, quota, now, cost)

    def change(self, command: str, key: bytes, now: int, **options: Any) -> int:
        """What the module would reply to REFUND, BLOCK or UNBLOCK, and the server to DEL."""
        with self._lock:
            if command == "DEL":
                return int(self._keys.pop(key) is not None)
            found = self._kept(key, now) if command == "BLOCK" else self._keys.used(key) or Key()
            changed: int = getattr(found, command.lower())(now=now, **options)
            return changed

    def _mine(self, quota: Quota) -> Quota:
        return quota if self._share == 1_000_000 else quota.at(part(quota.limit, self._share))

    def _kept(self, name: bytes, now: int) -> Key:
        key = self._keys.used(name)
        if key is None:
            key = Key()
            self._keys.put(name, key, now)
        return key


def allow_all(members: Sequence[tuple[LocalWindows, bytes, Quota, int]], now: int, *,
              counts: bool = True) -> list[Reply]:
    """What the module would reply to MALLOW: all are granted, or none is counted. counts: whether to count at all."""
    with ExitStack() as locked:
        for windows in sorted({windows for windows, *_ in members}, key=id):
            locked.enter_context(windows._lock)
        replies = [windows.check(key, quota, now, cost) for windows, key, quota, cost in members]
        if counts and all(reply[0] for reply in replies):
            replies = [windows.take(key, quota, now, cost) for windows, key, quota, cost in members]
        return replies
