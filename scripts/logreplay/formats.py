"""The formats of logs: patterns whose named groups are what a line says.

A pattern of the user's own is a format like the others: `time` says when a line's request was made, `bytes` how much it
was answered with, and any other group can be the key.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from . import sshd
from .errors import UserError
from .events import Event


@dataclass(frozen=True)
class Format:
    """How to read the lines of a log."""

    name: str
    event: str                      # what asks for leave
    pattern: re.Pattern
    keys: tuple                     # the fields that a key can be made of
    key: str                        # those that make the key unless others are asked for
    refine: Callable | None = None  # makes of the events that the lines are those that ask for leave

    def fits(self, line):
        """Whether the line could be one of this format."""
        return self.pattern.search(line) is not None

    def read(self, lines, account, calendar):
        """The events in these numbered lines, in the order of the file."""
        events = self._read(lines, account, calendar)
        return self.refine(events, account) if self.refine else events

    def _read(self, lines, account, calendar):
        for number, line in lines:
            match = self.pattern.search(line)
            at = calendar.instant(match["time"]) if match else None
            if at is None:
                account.cannot_read(number, line)
            else:
                yield Event(at, number, match.groupdict())


def given(pattern):
    """The format that a pattern of the user's own describes."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--pattern is no regular expression: {error}") from error
    keys = _keys(compiled)
    if "time" not in compiled.groupindex or not keys:
        raise UserError("--pattern needs the group (?P<time>…) and, for the key, others such as (?P<user>…)")
    return Format("pattern", "request", compiled, keys, ",".join(keys))


def _keys(pattern):
    return tuple(name for name in pattern.groupindex if name not in ("time", "bytes"))


# What stands between quotes. Servers escape a quote inside as \" (Apache, nginx), so a field that never ends is a
# damaged line.
QUOTED = r'(?:[^"\\]|\\.)*'
ACCESS = re.compile(
    r"\A(?P<address>\S+) \S+ "                                       # client, identd's answer (in practice always "-")
    r"(?:-|(?P<user>\S.*?)) "                                        # a user's name may hold spaces
    r"\[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    # What is not an HTTP request (a TLS greeting sent to a plain port, a connection without a word) has no path.
    r'"(?:(?P<method>[A-Za-z-]+) (?=[^\s"])(?P<path>(?:[^\s"?]|(?<=\\)")*)(?:\?(?:[^\s"]|(?<=\\)")*)?'
    rf'(?: HTTP/\d(?:\.\d)?)?|{QUOTED})" '
    r"(?P<status>\d{3}) (?:-|(?P<bytes>\d+))"                        # end of the common format
    rf'(?: "(?:-?|(?P<referer>{QUOTED}))" "(?:-?|(?P<agent>{QUOTED}))"'  # end of the combined format
    rf'(?: (?:"{QUOTED}"|[^\s"]+))*)?\Z')                            # what some servers add, such as the time taken

PRESETS = {one.name: one for one in (
    Format("access", "request", ACCESS, _keys(ACCESS), "address"),
    Format("sshd", "attempt", sshd.LINE, sshd.KEYS, "address", sshd.attempts),
)}
