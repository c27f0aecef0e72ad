"""Access logs of web servers: the common log format, the combined one, and either with more fields behind.

Every line is one request.
"""

import re
from datetime import datetime
from functools import lru_cache

from .events import Event, milliseconds

NAME = "access"
EVENT = "request"
FIELDS = ("address", "user", "method", "path", "status", "referer", "agent")
SIZES = ("bytes",)

# A quoted field. Servers escape a quote inside as \" (Apache, nginx), so a field that never ends is a damaged line.
QUOTED = r'"(?P<{}>(?:[^"\\]|\\.)*)"'
LINE = re.compile(
    r"(?P<address>\S+) \S+ "                                        # client, identd's answer (in practice always "-")
    r"(?P<user>\S.*?) "                                             # a user's name may hold spaces
    r"\[(?P<stamp>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    + QUOTED.format("request") + r" "
    r"(?P<status>\d{3}) (?P<bytes>\d+|-)"                           # end of the common format
    r"(?: " + QUOTED.format("referer") + " " + QUOTED.format("agent")  # end of the combined format
    + r'(?: (?:"(?:[^"\\]|\\.)*"|[^\s"]+))*)?'                      # what some servers add, such as the time taken
)
REQUEST = re.compile(r"(?P<method>[A-Za-z-]+) (?P<path>\S+)(?: HTTP/\d(?:\.\d)?)?")


@lru_cache(maxsize=1024)  # busy logs repeat their stamps
def instant(stamp):
    """The Unix time in milliseconds; the stamp's own offset from UTC counts."""
    return milliseconds(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z"))


def parse(number, line):
    """The request on this line, or None if the line cannot be read."""
    match = LINE.fullmatch(line)
    if not match:
        return None
    try:
        at = instant(match["stamp"])
    except ValueError:  # no such date
        return None
    # What is not an HTTP request (a TLS greeting sent to a plain port, a connection without a word) has no path.
    request = REQUEST.fullmatch(match["request"])
    fields = {
        "address": match["address"],
        "user": _said(match["user"]),
        "method": request and request["method"],
        "path": request and request["path"].split("?", 1)[0],
        "status": match["status"],
        "referer": _said(match["referer"]),
        "agent": _said(match["agent"]),
        "bytes": 0 if match["bytes"] == "-" else int(match["bytes"]),
    }
    return Event(at, number, fields)


def looks_like(line):
    """Whether the line could be one of this format."""
    return LINE.fullmatch(line) is not None


def read(lines, account, **_):
    """The requests in these lines, in the order of the file."""
    for number, line in lines:
        event = parse(number, line)
        if event:
            yield event
        else:
            account.cannot_read(number, line)


def _said(text):
    return None if text in ("-", "", None) else text
