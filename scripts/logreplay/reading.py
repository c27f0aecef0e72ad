"""Open a log, tell its format, and make of it the requests to replay, in order of time."""

import gzip
import io
import sys
import zlib
from datetime import UTC
from itertools import chain, islice
from typing import NamedTuple

from .errors import UserError
from .events import Account
from .formats import PRESETS, Format
from .stamps import Calendar

SAMPLE = 200  # lines to tell the format by


class Request(NamedTuple):
    """One request to a rate limiter. Its fields stand in the order in which requests are sorted."""

    at: int    # Unix time in milliseconds
    line: int  # of the log
    key: str
    cost: int


class Log(NamedTuple):
    """The requests of a log and an account of its lines."""

    name: str
    format: Format
    key: str  # the fields that make the key of a request
    account: Account
    requests: list


def read(path, key=None, cost=1, format=None, zone=UTC, year=None, watch=lambda file: file):
    """Read the log at `path` (`-`: standard input). `watch` may wrap the file, to show progress.

    `key` names the fields that make the key, separated by commas, or `all`; `cost` is a number of units or "bytes";
    without a `format`, the lines tell which of the presets it is.
    """
    account, calendar = Account(), Calendar(zone, year)
    try:
        with _open(path) as file:
            lines = _lines(file, watch, account)
            sample = list(islice(lines, SAMPLE))
            format = format or _recognise(path, sample)
            key = key or format.key
            make = _maker(format, key, cost, account)
            events = format.read(chain(sample, lines), account, calendar)
            requests = [request for event in events for request in make(event)]
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if calendar.assumed:
        account.notes.append(f"stamps without a year: the first was taken as {calendar.assumed} (see --year)")
    requests.sort()  # real logs are not in order; the number of the line decides between equal instants
    return Log("standard input" if path == "-" else path, format, key, account, requests)


def _open(path):
    return sys.stdin.buffer if path == "-" else open(path, "rb")


def _lines(file, watch, account):
    """Numbered lines without their ends. Any bytes are welcome: surrogateescape keeps those that are not UTF-8."""
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    file = watch(file)
    if packed:
        file = gzip.GzipFile(fileobj=file)
    for number, line in enumerate(io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="\n"), 1):
        account.lines = number
        yield number, line.rstrip("\r\n")


def _recognise(path, sample):
    votes = {name: sum(format.fits(line) for _, line in sample) for name, format in PRESETS.items()}
    best = max(votes, key=votes.get)
    if not votes[best]:
        raise UserError(f"{path} does not look like an access log or one of sshd (--pattern tells how to read others)")
    return PRESETS[best]


def _maker(format, key, cost, account):
    """The function that turns an event into requests: none if it lacks what the key or the cost is made of."""
    names = [] if key == "all" else key.split(",")
    unknown = [name for name in names if name not in format.keys]
    if unknown:
        raise UserError(f"no key '{unknown[0]}' in this format ({format.name}): it has {', '.join(format.keys)}, all")
    if cost == "bytes" and "bytes" not in format.pattern.groupindex:
        raise UserError(f"no bytes in this format ({format.name}): --cost takes a number here")

    def make(event):
        parts = [event.fields[name] for name in names]
        units = _bytes(event) if cost == "bytes" else cost
        missing = [name for name, part in zip(names, parts) if part is None]
        if units == 0:
            missing.append("bytes")
        if missing:
            account.other[f"{format.event}s with no {missing[0]}"] += 1
            return
        for _ in range(event.times):
            yield Request(event.at, event.line, " ".join(parts) if names else "all", units)

    return make


def _bytes(event):
    number = event.fields["bytes"] or ""
    return int(number) if number.isdecimal() else 0
