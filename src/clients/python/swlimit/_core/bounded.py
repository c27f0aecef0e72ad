"""A map with a maximum number of keys."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedMap(Generic[Value]):
    """Forgets those keys first that were not used for the longest time. Pinned ones stay, up to half of all.

    pins, counts: whether a value is pinned at an instant, and whether it is still of use.
    """

    def __init__(self, max_keys: int, pins: Callable[[Value, int], bool], counts: Callable[[Value, int], bool]) -> None:
        self._max_keys, self._pins, self._counts = max_keys, pins, counts
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self.evicted = 0
        """How many keys were forgotten that were still of use."""

    def __len__(self) -> int:
        return len(self._values)

    def used(self, key: bytes) -> Value | None:
        """The value of a key, which is the newest now."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: bytes, value: Value, now: int) -> None:
        """The value of a key, which is the newest now. Makes room first."""
        if key not in self._values:
            self._make_room(now)
        self._values[key] = value
        self._values.move_to_end(key)

    def pop(self, key: bytes) -> Value | None:
        return self._values.pop(key, None)

    def clear(self) -> None:
        self._values.clear()

    def _make_room(self, now: int) -> None:
        pinned = 0
        while len(self._values) >= self._max_keys:
            key, value = next(iter(self._values.items()))
            if self._pins(value, now) and pinned < self._max_keys // 2:
                pinned += 1
                self._values.move_to_end(key)
                continue
            self.evicted += self._counts(value, now)
            del self._values[key]
