"""Rates as people write them, such as `100/minute` or `100/hour; 5/second`, and the keys of several rates."""

import re
from typing import NamedTuple

from .names import has_tag
from .quota import MAX_EXACT, MAX_WINDOW

_SPACES = " \t\r\n"
_SEPARATOR = re.compile("[;,]")
_WITHOUT_UNIT = re.compile(r"([0-9]+)([ \t\r\n]*/([ \t\r\n]*[0-9]+)?)?", re.IGNORECASE | re.ASCII)
_OF_NGINX = re.compile(r"[0-9]+[ \t\r\n]*r[ \t\r\n]*/[ \t\r\n]*(s|m)", re.IGNORECASE | re.ASCII)
_RATE = re.compile(r"([0-9]+)[ \t\r\n]*/[ \t\r\n]*([0-9]+)?[ \t\r\n]*([a-z]+)", re.IGNORECASE | re.ASCII)
_UNITS = {name: ms for ms, names in {
    1: "ms", 1_000: "s sec second seconds", 60_000: "m min minute minutes", 3_600_000: "h hour hours",
    86_400_000: "d day days"}.items() for name in names.split()}


class Rate(NamedTuple):
    """A limit, and its window in ms."""

    limit: int
    window: int


def parse_rates(text: str) -> list[Rate]:
    """The rates that a text names, in its order."""
    if not isinstance(text, str):
        raise TypeError(f"a rate must be a text such as 100/minute, not {text!r}")
    text = text.strip(_SPACES)
    if not text:
        raise ValueError("no rate: write one such as 100/minute")
    parts = [part.strip(_SPACES) for part in _SEPARATOR.split(text)]
    if not all(parts):
        raise ValueError(f"'{text}' has a separator without a rate: write such as 100/hour; 5/second")
    rates = [_rate(part) for part in parts]
    first: dict[int, str] = {}
    for part, rate in zip(parts, rates):
        if rate.window in first:
            raise ValueError(f"'{first[rate.window]}' and '{part}' have the same window: keep the lower limit")
        first[rate.window] = part
    return rates


def parse_rate(text: str) -> Rate:
    """The only rate that a text names."""
    rate, *others = parse_rates(text)
    if others:
        raise ValueError(f"'{text.strip(_SPACES)}' has {1 + len(others)} rates, and a limiter takes one: use Limits")
    return rate


def key_of_window(prefix: bytes, key: bytes, window: int) -> bytes:
    """The key that counts a window. All windows of a key have one hash tag, so that a cluster decides them together."""
    if not key:
        raise ValueError("key must not be empty")
    name = prefix + key
    if not has_tag(name):
        name = prefix + b"{" + key + b"}"
    return name + b":%d" % window


def _rate(text: str) -> Rate:
    if _WITHOUT_UNIT.fullmatch(text):
        raise ValueError(f"'{text}' has no unit: write one such as 100/minute or 5/10s")
    if _OF_NGINX.fullmatch(text):
        raise ValueError(f"'{text}' is written as for nginx, where 10r/s admits one request per 100 ms: write that as "
                         "1/100ms, or ten at once as 10/second")
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is no rate: write one such as 100/minute or 5/10s")
    limit, count, unit = _number(found[1]), _number(found[2] or "1"), found[3].lower()
    if unit in ("month", "months", "year", "years"):
        raise ValueError(f"'{text}' has no fixed length: write days, such as 100/30 days, or use a budget for a "
                         f"calendar {unit.rstrip('s')}")
    if unit not in _UNITS:
        raise ValueError(f"'{text}' has an unknown unit: write ms, second, minute, hour or day")
    if limit > MAX_EXACT:
        raise ValueError(f"'{text}' has a limit above {MAX_EXACT}: write at most that")
    if not count:
        raise ValueError(f"'{text}' has no window: write at least 1 ms")
    if count * _UNITS[unit] > MAX_WINDOW:
        raise ValueError(f"'{text}' has a window above {MAX_WINDOW // _UNITS['day']} days: write at most that")
    return Rate(limit, count * _UNITS[unit])


def _number(digits: str) -> int:
    """The number; of one that is too large in any case, the first digits, as Python refuses to read very many."""
    return int(digits.lstrip("0")[:20] or "0")
