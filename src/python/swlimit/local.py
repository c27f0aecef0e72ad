"""Windows of the process's own: what the module does with a command's words, without a server."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from .quota import Quota, milliseconds
from .window import CountOverflow, Key

Words = tuple[Any, ...]
"""A command as it is sent: its name, then its arguments."""


class Local:
    """The newest `max_keys` keys. `share` is the part of every limit that this process may use."""

    def __init__(self, share: float = 1.0, max_keys: int = 10_000) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, not {share!r}")
        self._share = share
        self._max_keys = max_keys
        self._keys: OrderedDict[Any, Key] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def execute(self, words: Words, now: int) -> Any:
        """What the module would reply to ALLOW, PEEK, RECORD, REFUND, BLOCK, UNBLOCK or MALLOW at the instant `now`."""
        with self._lock:
            return getattr(self, f"_{words[0].removeprefix('SWLIMIT.').lower()}")(words[1:], now)

    def _allow(self, words: Words, now: int) -> Any:
        key, quota, options = self._request(words)
        return self._kept(key).allow(quota, now, **options)

    def _peek(self, words: Words, now: int) -> Any:
        key, quota, options = self._request(words)
        return self._keys.get(key, Key()).peek(quota, now, **options)

    def _record(self, words: Words, now: int) -> Any:
        key, quota, options = self._request(words)
        return self._kept(key).record(quota, now, **options)

    def _refund(self, words: Words, now: int) -> int:
        return self._keys.get(words[0], Key()).refund(words[1], now, **_options(words[2:]))

    def _block(self, words: Words, now: int) -> int:
        return self._kept(words[0]).block(milliseconds(words[1], least=0), now, **_options(words[2:]))

    def _unblock(self, words: Words, now: int) -> int:
        return self._keys.get(words[0], Key()).unblock(now)

    def _mallow(self, words: Words, now: int) -> list[Any]:
        number = words[0]
        keys, rest = words[1:number + 1], words[number + 1:]
        strict = "STRICT" in rest[4 * number:]
        demands = [(key, self._quota(rest[at:at + 3], strict), rest[at + 3])
                   for key, at in zip(keys, range(0, 4 * number, 4))]
        replies = [self._keys.get(key, Key()).peek(quota, now, cost) for key, quota, cost in demands]
        if not all(reply[0] for reply in replies):
            return [0, *replies]
        return [1, *(self._kept(key).allow(quota, now, cost) for key, quota, cost in demands)]

    def _request(self, words: Words) -> tuple[Any, Quota, dict[str, Any]]:
        options = _options(words[4:])
        return words[0], self._quota(words[1:4], options.pop("strict", False)), options

    def _quota(self, words: Words, strict: bool) -> Quota:
        limit, window, resolution = words
        return Quota.of(limit and max(1, int(limit * self._share)), window, resolution, strict)

    def _kept(self, name: Any) -> Key:
        key = self._keys.setdefault(name, Key())
        self._keys.move_to_end(name)
        if len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
        return key


def _options(words: Iterable[Any]) -> dict[str, Any]:
    """The options of a command, by name."""
    options: dict[str, Any] = {}
    rest: Iterator[Any] = iter(words)
    for name in rest:
        if name in ("PARTIAL", "STRICT", "NX"):
            options[name.lower()] = True
        elif name == "COST":
            options["cost"] = next(rest)
        else:
            options[name.lower()] = milliseconds(next(rest), name, least=0)
    return options


__all__ = ["CountOverflow", "Local", "Words"]
