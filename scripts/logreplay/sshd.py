"""sshd's lines in a syslog file (`auth.log`, `secure`): failed attempts to log in.

What counts, each attempt once although sshd and PAM write several lines about it:

* `Failed METHOD for USER from ADDRESS` is one attempt, and `message repeated N times: [ … ]` is N more of them.
* A connection without any such line, but with others that show it failed before it was authenticated (an invalid user,
  too many failures, closed in the `[preauth]` phase, no SSH at all) is one attempt, at the first of them. Where
  passwords are switched off, sshd writes nothing else about a guess.

Anything else is well-formed but not an attempt: other programs, sessions, successful logins. sshd's process id tells
which lines belong to the same connection.
"""

import re
from dataclasses import dataclass

from .events import Event

KEYS = ("address", "user", "host")
NO_ATTEMPT = "not an attempt"
SAME_ATTEMPT = "more about an attempt already counted"

LINE = re.compile(
    r"\A(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?) "
    r"(?P<host>\S+) "
    r"(?:(?P<program>[^\s:\[]+)(?:\[(?P<pid>\d+)\])?: ?(?P<message>.*)"
    r"|last message repeated (?P<times>\d+) times?"  # older syslogs: the line before, of the same host
    r"|-- MARK --)\Z")
PROGRAMS = ("sshd", "sshd-session", "sshd-auth")     # split up since OpenSSH 9.8 and 10.0
REPEATED = re.compile(r"message repeated (?P<times>\d+) times: \[ ?(?P<message>.*)\]")

# User names come from the client and may hold anything, " from 192.0.2.1 port 22" too. They are matched greedily, so
# that the address is always the last one on the line, which sshd wrote.
FROM = r"(?P<user>.*) from (?P<address>\S+?)"
FAILURE, SUCCESS, HINT = "failure", "success", "hint"
PATTERNS = [(verdict, re.compile(pattern)) for verdict, pattern in (
    # "none" asks which methods there are; sshd itself does not call that a failure.
    (FAILURE, rf"Failed (?!none )\S+ for (?:invalid user )?{FROM} port \d+(?: ssh\d?)?(?:: .*)?"),
    (SUCCESS, rf"Accepted \S+ for {FROM} port \d+.*"),
    (HINT, rf"(?:Failed none for|(?:error: )?maximum authentication attempts exceeded for)(?: invalid user)? {FROM}"
           r" port \d+(?: ssh\d?)?(?: \[preauth\])?"),
    (HINT, rf"(?:Invalid user|error: PAM: .* for(?: illegal user)?) {FROM}(?: port \d+)?"),
    (HINT, rf"User {FROM} not allowed because .*"),
    (HINT, r"(?:Connection (?:closed|reset) by|Disconnected from|Disconnecting)"
           r"(?: (?:invalid|authenticating) user (?P<user>.*)(?= \S+ port))? (?P<address>\S+?)(?: port \d+)?(?:: .*)?"
           r" \[preauth\]"),
    (HINT, r"Received disconnect from (?P<address>\S+?)(?: port \d+:|: )\d+:.* \[preauth\]"),
    (HINT, r"(?:fatal: |error: )?(?:Unable to negotiate with|Timeout before authentication for|Did not receive "
           r"identification string from|Bad protocol version identification '.*' from|banner exchange: Connection from)"
           r" (?P<address>\S+?)(?: port \d+)?(?:: .*)?"),
    (HINT, r"pam_\w+\(sshd:auth\): authentication failure; .*\brhost=(?P<address>\S+)(?: +user=(?P<user>.*?))? *"),
)]

# sshd ends a connection that is not authenticated within LoginGraceTime (2 minutes, if not configured otherwise); the
# same process id after a much longer silence is another connection.
SILENCE = 10 * 60 * 1000


@dataclass
class Connection:
    """What has been seen of one connection."""

    last: int = 0
    failed: bool = False       # it has attempts of its own
    hint: Event | None = None  # the attempt it is as long as it has none


def attempts(lines, account):
    """The attempts in these lines. Not in their order: a hint stands only when its connection is over."""
    connections = {}
    for line, said, times in _resolved(lines):
        verdict, who = classify(said["message"]) if said["program"] in PROGRAMS else (None, None)
        if verdict is None:
            account.other[NO_ATTEMPT] += 1
            continue
        event = Event(line.at, line.line, who | {"host": said["host"]}, times)
        name = (said["host"], said["pid"] or who["address"])
        seen = connections.get(name)
        if seen is None or event.at - seen.last > SILENCE:
            if seen and seen.hint:
                yield seen.hint
            seen = connections[name] = Connection()
        seen.last = event.at
        if verdict == FAILURE:
            if seen.hint:
                account.other[SAME_ATTEMPT] += 1
            seen.failed, seen.hint = True, None
            yield event
        elif verdict == SUCCESS:  # so the hint (PAM asking one source of passwords after another) was none
            account.other[NO_ATTEMPT] += 1 + bool(seen.hint)
            seen.hint = None
        elif seen.failed or seen.hint:
            account.other[SAME_ATTEMPT] += 1
            if seen.hint and seen.hint.fields["user"] is None:
                seen.hint.fields["user"] = who["user"]
        else:
            seen.hint = event._replace(times=1)
    yield from (seen.hint for seen in connections.values() if seen.hint)


def classify(message):
    """What a message of sshd says about an attempt: FAILURE, HINT, SUCCESS or None, and of whom."""
    for verdict, pattern in PATTERNS:
        if match := pattern.fullmatch(message):
            return verdict, {"user": None} | match.groupdict()
    return None, None


def _resolved(lines):
    """(line, what it says, how often), where a line may say that something was said again."""
    before = {}  # what each host said last
    for line in lines:
        said, times = line.fields, 1
        if said["times"]:
            said, times = before.get(said["host"], said), int(said["times"])
        else:
            before[said["host"]] = said
            if repeated := REPEATED.fullmatch(said["message"] or ""):
                said, times = said | {"message": repeated["message"]}, int(repeated["times"])
        yield line, said, times
