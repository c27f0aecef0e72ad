"""The program of scripts/replay: it asks a real server about each request of a log, and shows who is limited.

Access logs in the common and combined format, and the failed logins of sshd, are known; a pattern describes any other.
"""

import argparse
import gzip
import re
import secrets
import signal
import sys
import zlib
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import redis

from support.server import Server

BATCH = 1000
KEEP_SECONDS = 24 * 3600  # longer than any replay takes, short enough to clean up after one that was killed
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DISORDER = timedelta(days=30)

QUOTED = r'"(?:[^"\\]|\\.)*"'  # servers escape a quote inside as \", so a field that never ends is a damaged line
ACCESS = re.compile(
    r"\A(?P<address>\S+) \S+ (?:-|(?P<user>\S.*?)) "
    r"\[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    # What is no HTTP request, such as a TLS greeting sent to a plain port, has no path.
    r'(?:"(?P<method>[A-Za-z-]+) (?P<path>[^\s"?]+)(?:\?(?:[^\s"\\]|\\.)*)?(?: HTTP/\d(?:\.\d)?)?"|' + QUOTED + ") "
    r"(?P<status>\d{3}) (?:-|(?P<bytes>\d+))"
    rf'(?: (?:{QUOTED}|[^\s"]+))*\Z')
# A user's name comes from the client and may hold anything; the last address on the line is sshd's own.
SSHD = re.compile(
    r"\A(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<host>\S+) sshd[^\s:]*: "
    r"(?:message repeated (?P<times>\d+) times: \[ )?"
    r"Failed (?!none )\S+ for (?:invalid user )?(?P<user>.*) from (?P<address>\S+?) port \d+")
PRESETS = ACCESS, SSHD
ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
NO_KEYS = "time", "bytes", "times"


class ReplayError(Exception):
    """What the user must change. Its text is shown as it is."""


class Request(NamedTuple):
    """One request to a rate limiter. Requests are sorted by these fields."""

    at: int    # Unix time in ms
    line: int  # of the log
    key: str
    cost: int  # units


class Log(NamedTuple):
    """The requests of a log, in order of time, and how many lines have none."""

    requests: list
    key: str  # the fields that make the key
    lines: int
    skipped: int
    example: str  # the first skipped line


class Limit(NamedTuple):
    """As the commands of the module take it."""

    limit: str
    window: str
    resolution: str
    strict: bool = False

    def command(self, name, key, cost, at, *options):
        strict = ("STRICT",) if self.strict else ()
        return [name, key, self.limit, self.window, self.resolution, "COST", cost, "AT", at, *options, *strict]


def read(path, key=None, cost=1, pattern=None, year=None):
    """Read the log at `path`, plain or gzip.

    `key` has the fields that make a key, separated by commas, or `all`. `cost` is a number of units or `bytes`.
    `pattern` is a compiled regular expression (default: the preset that fits a line first). `year` is that of the first
    stamp without a year (default: the last year in which that date has passed).
    """
    try:
        with open(path, "rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(file) if packed else nullcontext(file) as unpacked:
                lines = [line.decode("utf-8", "surrogateescape").rstrip("\r\n") for line in unpacked]
    except (OSError, EOFError, zlib.error) as error:
        raise ReplayError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    pattern = pattern or _recognise(path, lines)
    known = [name for name in pattern.groupindex if name not in NO_KEYS]
    key = key or ("address" if pattern in PRESETS else ",".join(known))
    names = [] if key == "all" else key.split(",")
    if unknown := [name for name in names if name not in known]:
        raise ReplayError(f"no key '{unknown[0]}' in this log: it has {', '.join(known)}, all")
    if cost == "bytes" and "bytes" not in pattern.groupindex:
        raise ReplayError("no bytes in this log: --cost takes a number here")
    requests, skipped, example, calendar = [], 0, "", Calendar(year)
    for number, line in enumerate(lines, 1):
        match = pattern.search(line)
        at = calendar.instant(match["time"]) if match else None
        fields = match.groupdict() if match else {}
        units = _number(fields.get("bytes"), 0) if cost == "bytes" else cost
        if at is None or units == 0 or any(fields[name] is None for name in names):
            skipped, example = skipped + 1, example or line
            continue
        request = Request(at, number, " ".join(fields[name] for name in names) or "all", units)
        requests += [request] * _number(fields.get("times"), 1)
    return Log(sorted(requests), key, len(lines), skipped, example)


def _number(text, otherwise):
    return int(text) if text and text.isdecimal() else otherwise


def _recognise(path, lines):
    found = next((preset for line in lines for preset in PRESETS if preset.search(line)), None)
    if not found:
        raise ReplayError(f"{path} does not look like an access log or one of sshd; --pattern describes any other")
    return found


class Calendar:
    """Turns stamps of access logs, of syslog, of ISO 8601 and Unix seconds into Unix time in ms.

    A stamp without a zone is UTC. One without a year follows the stamp before it: a step back of up to 30 days is
    disorder in the file, a longer one a new year.
    """

    def __init__(self, year=None):
        self.year = year
        self.previous = None

    def instant(self, stamp):
        """None if there is no such date, or one before 1970."""
        try:
            moment = self._with_year(stamp) if stamp[:1].isalpha() else _dated(stamp)
            at = (moment - EPOCH) // timedelta(milliseconds=1)
        except (ValueError, OverflowError):
            return None
        self.previous = moment
        return at if at >= 0 else None

    def _with_year(self, stamp):
        if self.year is None:
            now = datetime.now(UTC)
            self.year = now.year - (_syslog(stamp, now.year) > now)
        moment = _syslog(stamp, self.year)
        if self.previous and moment < self.previous - DISORDER:
            self.year += 1
            moment = _syslog(stamp, self.year)
        elif self.previous and moment > self.previous + timedelta(days=365) - DISORDER:
            moment = _syslog(stamp, self.year - 1)  # a late line of the old year
        return moment


def _syslog(stamp, year):
    return datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)


@lru_cache(maxsize=1024)  # busy logs repeat their stamps
def _dated(stamp):
    if re.fullmatch(r"\d+(\.\d+)?", stamp):
        return EPOCH + timedelta(seconds=float(stamp))
    if "/" in stamp:
        return datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z")
    moment = datetime.fromisoformat(stamp)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def connected(address=None):
    """A client of the server at `address` (HOST:PORT), or of one that lives as long as this context."""
    if address:
        try:
            client = redis.Redis.from_url(f"redis://{address}")
        except ValueError as error:
            raise ReplayError(f"--server takes HOST:PORT: {error}") from error
        with client:
            yield client
    else:
        server = Server()
        try:  # not `with server`: an interrupted start has to end it, too
            server.start()
            with server.client() as client:
                yield client
        finally:
            server.close()


def check(client, limit, cost):
    """Let the server judge the limit, before any work."""
    try:
        client.execute_command(*limit.command("SWLIMIT.PEEK", b"", cost, 0))
    except redis.ConnectionError as error:
        raise ReplayError(f"cannot reach the server: {error}") from error
    except redis.ResponseError as error:
        missing = str(error).startswith("unknown command")
        raise ReplayError("this server has not loaded the module swlimit" if missing else str(error)) from error


def allow(client, limit, requests, name, *options, memory=False):
    """Ask for each of these requests; yields the module's replies, with MEMORY USAGE of the key after each if wanted.

    `name` gives the key of a request. Keys expire in wall time, and a busy second of traffic can take longer to play
    than it lasted. So nothing may expire between two requests of a key: the server's clock stands still within a
    transaction, and at its end every key is given longer to live.
    """
    for first in range(0, len(requests), BATCH):
        batch = [(request, name(request)) for request in requests[first:first + BATCH]]
        with client.pipeline(transaction=True) as pipeline:
            for request, key in batch:
                pipeline.execute_command(*limit.command("SWLIMIT.ALLOW", key, request.cost, request.at, *options))
                if memory:
                    pipeline.execute_command("MEMORY", "USAGE", key)
            for key in {key for _, key in batch}:
                pipeline.expire(key, KEEP_SECONDS, gt=True)
            with uninterrupted():
                replies = iter(pipeline.execute()[:len(batch) * (1 + memory)])
        yield from zip(replies, replies) if memory else replies


@contextmanager
def uninterrupted():
    """Signals that end a replay wait for the end of this: an exception raised inside of hiredis crashes Python."""
    waiting = []
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in waiting:
        signal.raise_signal(number)


def replay(client, requests, limit):
    """Ask for every request, under names of this replay alone; gives whether each is granted."""
    prefix = f"swlimit:replay:{secrets.token_hex(8)}:".encode()
    names = {request.key: prefix + request.key.encode("utf-8", "surrogateescape") for request in requests}
    try:
        return [reply[0] > 0 for reply in allow(client, limit, requests, lambda request: names[request.key])]
    finally:
        client.connection_pool.disconnect()  # an interrupted batch leaves its connection unusable
        for name in names.values():
            client.unlink(name)


def show(log, granted, top):
    """Print the most limited keys, those with the most denied units first, and the totals."""
    tallies, denials = defaultdict(Counter), defaultdict(list)
    for request, is_granted in zip(log.requests, granted):
        for key in (request.key, None):  # None: all together
            tallies[key]["granted" if is_granted else "denied"] += request.cost
            if not is_granted:
                denials[key].append(request.at)
    total = tallies.pop(None)
    limited = sorted(tallies, key=lambda key: (-tallies[key]["denied"], -tallies[key].total(), key))
    width = max([len("address"), *(len(printable(key)) for key in limited[:top])])
    print(f"{log.key:{width}}  {'offered':>9}  {'granted':>9}  {'denied':>9}   share  first denial (UTC)   last denial")
    for name, tally, at in [(printable(key), tallies[key], denials[key]) for key in limited[:top]] + [
            (f"all {len(tallies):,}", total, denials[None])]:
        moments = "  ".join(f"{EPOCH + timedelta(milliseconds=one):%Y-%m-%d %H:%M:%S}" for one in (*at[:1], *at[-1:]))
        print(f"{name:{width}}  {tally.total():9,}  {tally['granted']:9,}  {tally['denied']:9,}  "
              f"{tally['denied'] / tally.total():6.1%}  {moments}".rstrip())


def printable(text):
    """A key as it may be shown: logs hold what strangers sent, control characters too."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogateescape").decode()
                   for one in text) or '""'


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        raise ReplayError(f"{message} (--help shows the options)")


def options(words=None):
    parser = Parser(prog="replay", allow_abbrev=False, description="LIMIT, WINDOW and RESOLUTION are those of "
                    "SWLIMIT.ALLOW. Access logs have the keys address, user, method, path and status, sshd's have "
                    "address, user and host.")
    parser.add_argument("log", metavar="LOG")
    for name in Limit._fields[:3]:
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--strict", action="store_true", help="never more than LIMIT in any window")
    parser.add_argument("--cost", default="1", metavar="N|bytes", help="units of a request: a number, or the bytes of "
                        "its response (default: 1)")
    parser.add_argument("--key", metavar="FIELD,…", help="what is limited (default: address; with --pattern all its "
                        "groups); all: everything together")
    parser.add_argument("--pattern", metavar="REGEX", help="finds a request in a line, in Python's spelling: its group "
                        "(?P<time>…) is a stamp, (?P<bytes>…) is for --cost bytes, others make the key")
    parser.add_argument("--year", type=int, metavar="YYYY", help="of the first stamp, where stamps have no year")
    parser.add_argument("--server", metavar="HOST:PORT", help="a running server with the module, from which the keys "
                        "used are removed again (default: start one)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="keys to show (default: 10)")
    chosen = parser.parse_args(words)
    if chosen.cost != "bytes":
        if not chosen.cost.isdecimal():
            parser.error("--cost takes a number of units or bytes")
        chosen.cost = int(chosen.cost)
    if chosen.pattern is not None:
        try:
            chosen.pattern = re.compile(chosen.pattern)
        except re.error as error:
            parser.error(f"--pattern is no regular expression: {error}")
        if "time" not in chosen.pattern.groupindex or not set(chosen.pattern.groupindex) - set(NO_KEYS):
            parser.error("--pattern needs the group (?P<time>…) and, for the key, others such as (?P<user>…)")
    return chosen


def main(words=None):
    """Run, and return the exit code."""
    try:
        chosen = options(words)
        limit = Limit(chosen.limit, chosen.window, chosen.resolution, chosen.strict)
        with connected(chosen.server) as client:
            check(client, limit, 1 if chosen.cost == "bytes" else chosen.cost)
            log = read(chosen.log, chosen.key, chosen.cost, chosen.pattern, chosen.year)
            print(f"{printable(chosen.log)}: {len(log.requests):,} requests in {log.lines - log.skipped:,} of "
                  f"{log.lines:,} lines")
            if log.skipped:
                print(f"the first line without a request: {printable(log.example)[:200]}")
            if log.requests:
                show(log, replay(client, log.requests, limit), chosen.top)
    except ReplayError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except redis.RedisError as error:
        print(f"replay: the server failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    for ending in ENDING[1:]:
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # an exception, so that the server is ended
    sys.exit(main())
