"""sshd's lines in a syslog file (`auth.log`, `secure`): failed attempts to log in.

What counts, each attempt once although sshd and PAM write several lines about it:

* `Failed METHOD for USER from ADDRESS` is one attempt, and `message repeated N times: [ … ]` is N more of them.
* A connection without any such line, but with others that show it failed before it was authenticated (HINTS below:
  an invalid user, too many failures, closed in the `[preauth]` phase, no SSH at all) is one attempt, at the first of
  them. Where passwords are switched off, sshd writes nothing else about a guess.

Anything else is well-formed but not an attempt: other programs, sessions, successful logins. sshd's process id tells
which lines belong to the same connection.
"""

import re
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from .events import Event, milliseconds

NAME = "auth"
EVENT = "attempt"
FIELDS = ("address", "user", "host")
SIZES = ()

NO_ATTEMPT = "not an attempt"
SAME_ATTEMPT = "more about an attempt already counted"

LINE = re.compile(
    r"(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?) "
    r"(?P<host>\S+) "
    r"(?:(?P<program>[^\s:\[]+)(?:\[(?P<pid>\d+)\])?: ?(?P<message>.*)"
    r"|last message repeated (?P<repeats>\d+) times?"               # older syslogs: the line before, of the same host
    r"|-- MARK --)"
)
REPEATED = re.compile(r"message repeated (?P<times>\d+) times: \[ ?(?P<message>.*)\]")
PROGRAMS = ("sshd", "sshd-session", "sshd-auth")                    # split up since OpenSSH 9.8 and 10.0

# User names come from the client and may hold anything, " from 192.0.2.1 port 22" too. They are matched greedily, so
# that the address is always the last one on the line, which sshd wrote.
FAILURE, SUCCESS, HINT = "failure", "success", "hint"
PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in (
    (FAILURE, r"Failed (?P<method>\S+) for (?:invalid user )?(?P<user>.*) from (?P<address>\S+) port \d+"
              r"(?: ssh\d?)?(?:: .*)?"),
    (SUCCESS, r"Accepted \S+ for (?P<user>.*) from (?P<address>\S+) port \d+.*"),
    (HINT, r"Invalid user (?P<user>.*) from (?P<address>\S+?)(?: port \d+)?"),
    (HINT, r"User (?P<user>.*) from (?P<address>\S+) not allowed because .*"),
    (HINT, r"(?:error: )?maximum authentication attempts exceeded for (?:invalid user )?(?P<user>.*)"
           r" from (?P<address>\S+) port \d+(?: ssh\d?)?(?: \[preauth\])?"),
    (HINT, r"(?:Connection (?:closed|reset) by|Disconnected from|Disconnecting) (?:invalid|authenticating) user"
           r" (?P<user>.*) (?P<address>\S+) port \d+(?:: .*)? \[preauth\]"),
    (HINT, r"(?:Connection (?:closed|reset) by|Disconnected from|Disconnecting) (?P<address>\S+?)(?: port \d+)?"
           r"(?:: .*)? \[preauth\]"),
    (HINT, r"Received disconnect from (?P<address>\S+?)(?: port \d+:|: )\d+:.* \[preauth\]"),
    (HINT, r"(?:fatal: )?Unable to negotiate with (?P<address>\S+) port \d+: .*"),
    (HINT, r"(?:fatal: )?Timeout before authentication for (?P<address>\S+?)(?: port \d+)?"),
    (HINT, r"Did not receive identification string from (?P<address>\S+?)(?: port \d+)?"),
    (HINT, r"Bad protocol version identification '.*' from (?P<address>\S+?)(?: port \d+)?"),
    (HINT, r"(?:error: )?banner exchange: Connection from (?P<address>\S+) port \d+: .*"),
    (HINT, r"error: PAM: .* for (?:illegal user )?(?P<user>.*) from (?P<address>\S+)"),
    (HINT, r"pam_\w+\(sshd:auth\): authentication failure; .*\brhost=(?P<address>\S+)(?: +user=(?P<user>.*?))? *"),
)]

# sshd ends a connection that is not authenticated within LoginGraceTime (2 minutes, if not configured otherwise); the
# same process id after a much longer silence is another connection.
SILENCE = 10 * 60 * 1000

MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
DISORDER = timedelta(days=30)


class Calendar:
    """Turns stamps into instants: adds the time zone and the year where a stamp names none.

    A stamp without a year follows the line before it: a step back of up to DISORDER is disorder in the file, a longer
    one is the turn of a year. The first takes the latest year in which it has happened already, if none is given.
    """

    def __init__(self, zone=timezone.utc, year=None, now=None):
        self.zone = zone
        self.year = year
        self.assumed = None  # the year that had to be assumed
        self.now = (now or datetime.now(timezone.utc)).astimezone(zone).replace(tzinfo=None)
        self.previous = None

    def instant(self, stamp):
        """Unix time in milliseconds; ValueError if there is no such date."""
        if stamp[0].isdigit():
            moment = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
            moment = moment if moment.tzinfo else moment.replace(tzinfo=self.zone)
        else:
            moment = self._with_year(*_parts(stamp)).replace(tzinfo=self.zone)
        at = milliseconds(moment)
        self.previous = moment.astimezone(self.zone).replace(tzinfo=None)
        return at

    def _with_year(self, *parts):
        if self.previous:
            nearby, earliest = range(self.previous.year - 1, self.previous.year + 2), self.previous - DISORDER
            return next(moment for moment in _dates(nearby, parts) if moment >= earliest)
        if self.year:
            return datetime(self.year, *parts)
        recent = range(self.now.year, self.now.year - 9, -1)
        first = next(moment for moment in _dates(recent, parts) if moment <= self.now)
        self.assumed = first.year
        return first


def _parts(stamp):
    """Month, day, hour, minute and second of `Mar 27 13:06:56`."""
    if stamp[:3] not in MONTHS:
        raise ValueError("no such month")
    return (MONTHS[stamp[:3]], int(stamp[4:6]), *(int(part) for part in stamp[7:].split(":")))


def _dates(years, parts):
    """The dates that exist: 29 February does not every year, 30 February never."""
    for year in years:
        with suppress(ValueError):
            yield datetime(year, *parts)


class Connection:
    """What has been seen of one connection."""

    def __init__(self):
        self.last = 0
        self.failed = False  # it has attempts of its own
        self.hint = None     # the attempt it is as long as it has none


def looks_like(line):
    """Whether the line could be one of this format."""
    return LINE.fullmatch(line) is not None


def read(lines, account, zone=timezone.utc, year=None):
    """The attempts in these lines. Not in their order: a hint stands only when its connection is over."""
    connections = {}
    for number, at, host, pid, message, times in _messages(lines, account, Calendar(zone, year)):
        kind, fields = classify(message)
        if kind is None:
            account.other[NO_ATTEMPT] += 1
            continue
        event = Event(at, number, fields | {"host": host}, times)
        name = (host, pid or fields["address"])
        seen = connections.get(name)
        if seen is None or at - seen.last > SILENCE:
            if seen and seen.hint:
                yield seen.hint
            seen = connections[name] = Connection()
        seen.last = at
        if kind == FAILURE:
            if seen.hint:
                account.other[SAME_ATTEMPT] += 1
            seen.failed, seen.hint = True, None
            yield event
        elif kind == SUCCESS:  # so the hint (PAM asking one source of passwords after another) was none
            account.other[NO_ATTEMPT] += 1 + bool(seen.hint)
            seen.hint = None
        elif seen.failed:
            account.other[SAME_ATTEMPT] += 1
        elif seen.hint:
            account.other[SAME_ATTEMPT] += 1
            if seen.hint.fields["user"] is None:
                seen.hint.fields["user"] = fields["user"]
        else:
            seen.hint = event._replace(times=1)
    yield from (seen.hint for seen in connections.values() if seen.hint)


def classify(message):
    """What a message of sshd says about an attempt: FAILURE, HINT, SUCCESS or None, and of whom."""
    for kind, pattern in PATTERNS:
        match = pattern.fullmatch(message)
        if match:
            found = match.groupdict()
            # "none" asks which methods there are; sshd itself does not call that a failure.
            asked = kind == FAILURE and found["method"] == "none"
            return HINT if asked else kind, {"address": found["address"], "user": found.get("user")}
    return None, None


def _messages(lines, account, calendar):
    """(line number, instant, host, pid, message, how often) of what sshd wrote; accounts for all other lines."""
    before = {}  # the last line of each host
    for number, line in lines:
        match = LINE.fullmatch(line)
        try:
            at = calendar.instant(match["stamp"]) if match else None
        except (ValueError, StopIteration):
            at = None
        if at is None:
            account.cannot_read(number, line)
            continue
        times = int(match["repeats"] or 1)
        if match["repeats"]:
            program, pid, message = before.get(match["host"], (None, None, ""))
        else:
            program, pid, message = before[match["host"]] = match["program"], match["pid"], match["message"]
            repeated = REPEATED.fullmatch(message or "")
            if repeated:
                times, message = int(repeated["times"]), repeated["message"]
        if program in PROGRAMS:
            yield number, at, match["host"], pid, message, times
        else:
            account.other[NO_ATTEMPT] += 1
    if calendar.assumed:
        account.notes.append(f"stamps without a year: the first was taken as {calendar.assumed} (see --year)")
