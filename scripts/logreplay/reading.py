"""Open a log, tell its format, and make of it the requests to replay, in order of time."""

import gzip
import io
import sys
import zlib
from datetime import timezone
from itertools import chain, islice
from typing import NamedTuple

from . import access, auth
from .errors import UserError
from .events import Account

FORMATS = {format.NAME: format for format in (access, auth)}
SAMPLE = 200  # lines to tell the format by


class Request(NamedTuple):
    """One request to a rate limiter. Its fields stand in the order in which requests are sorted."""

    at: int    # Unix time in milliseconds
    line: int  # of the log
    key: str
    cost: int


class Log:
    """The requests of a log and an account of its lines."""

    def __init__(self, name, format, account, requests):
        self.name = name
        self.format = format
        self.account = account
        self.requests = requests


def read(path, key="address", cost=1, format="auto", zone=timezone.utc, year=None, watch=lambda file: file):
    """Read the log at `path` (`-`: standard input). `watch` may wrap the file, to show progress.

    `key` names the fields that make the key, separated by commas, or `all`; `cost` is a number of units or "bytes".
    """
    account = Account()
    try:
        with _open(path) as file:
            lines = _lines(file, watch, account)
            sample = list(islice(lines, SAMPLE))
            chosen = FORMATS[format] if format != "auto" else _recognise(path, sample)
            make = _maker(chosen, key, cost, account)
            settings = {"zone": zone, "year": year} if chosen is auth else {}
            events = chosen.read(chain(sample, lines), account, **settings)
            requests = [request for event in events for request in make(event)]
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    requests.sort()  # real logs are not in order; the number of the line decides between equal instants
    return Log("standard input" if path == "-" else path, chosen, account, requests)


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
    votes = {name: sum(format.looks_like(line) for _, line in sample) for name, format in FORMATS.items()}
    best = max(votes, key=votes.get)
    if not votes[best]:
        raise UserError(f"{path} does not look like an access log or an auth.log (--format takes one without asking)")
    return FORMATS[best]


def _maker(format, key, cost, account):
    """The function that turns an event into requests: none if it lacks what the key or the cost is made of."""
    names = [] if key == "all" else key.split(",")
    unknown = [name for name in names if name not in format.FIELDS]
    if unknown:
        raise UserError(f"no key '{unknown[0]}' in this format ({format.NAME}): it has {', '.join(format.FIELDS)}, all")
    if cost == "bytes" and "bytes" not in format.SIZES:
        raise UserError(f"no bytes in this format ({format.NAME}): --cost takes a number here")

    def make(event):
        parts = [event.fields[name] for name in names]
        units = event.fields["bytes"] if cost == "bytes" else cost
        missing = [name for name, part in zip(names, parts) if part is None]
        if units == 0:
            missing.append("bytes")
        if missing:
            account.other[f"{format.EVENT}s with no {missing[0]}"] += 1
            return
        for _ in range(event.times):
            yield Request(event.at, event.line, " ".join(parts) if names else "all", units)

    return make
