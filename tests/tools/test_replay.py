"""scripts/replay: what it reads in a log, what it decides with a real server, and how it behaves as a program."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from logreplay import formats, player, reading, sshd
from logreplay.__main__ import main
from logreplay.errors import UserError
from logreplay.outcome import STEPS, Outcome
from logreplay.report import describe_lines, printable
from logreplay.stamps import Calendar
from support.lacking import lacking

DATA = Path(__file__).parent / "data"
SCRIPTS = Path(__file__).parents[2] / "scripts"
REAL = Path(__file__).parents[3] / "shared/data"
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def utc(*parts, ms=0):
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1000 + ms


def requests_of(log):
    return [(request.at, request.line, request.key) for request in log.requests]


# Reading.

def test_access_log_is_read_in_order_of_time():
    log = reading.read(str(DATA / "access.log"))
    assert log.format.name == "access"
    assert requests_of(log) == [
        (utc(2024, 10, 10, 13, 55, 30), 6, "192.0.2.3"),
        (utc(2024, 10, 10, 13, 55, 31), 10, "192.0.2.3"),
        (utc(2024, 10, 10, 13, 55, 35), 2, "192.0.2.2"),   # 15:55:35 +0200
        (utc(2024, 10, 10, 13, 55, 36), 1, "192.0.2.1"),
        (utc(2024, 10, 10, 13, 55, 36), 3, "192.0.2.1"),   # the same instant: in the order of the file
        (utc(2024, 10, 10, 13, 55, 37), 5, "2001:db8::7"),  # 08:25:37 -0530
    ]
    assert log.account.lines == 10
    assert log.account.unreadable == 4
    assert [number for number, _ in log.account.examples] == [4, 7, 8]
    assert log.account.examples[0] == (4, "this is no log line")
    assert log.account.other == Counter()


@pytest.mark.parametrize("key, keys, without", [
    ("path", ["/login", "/index.html", "/style.css", "/index.html"], {"requests with no path": 2}),
    ("user", ["alice", "mary ann"], {"requests with no user": 4}),
    ("method", ["POST", "GET", "GET", "HEAD"], {"requests with no method": 2}),
    ("status", ["400", "408", "302", "200", "304", "200"], {}),
    ("agent", [r"curl/8.5 \"quoted\"", "Mozilla/5.0 (X11; Linux)"], {"requests with no agent": 4}),
    ("all", ["all"] * 6, {}),
    ("address,path", ["192.0.2.2 /login", "192.0.2.1 /index.html", "192.0.2.1 /style.css", "2001:db8::7 /index.html"],
     {"requests with no path": 2}),
])
def test_keys_of_an_access_log(key, keys, without):
    log = reading.read(str(DATA / "access.log"), key)
    assert [request.key for request in log.requests] == keys
    assert log.account.other == without


def test_cost_in_bytes_leaves_out_responses_without_any():
    log = reading.read(str(DATA / "access.log"), cost="bytes")
    assert [request.cost for request in log.requests] == [226, 2326, 51]
    assert log.account.other == {"requests with no bytes": 3}


def test_auth_log_counts_each_attempt_once():
    log = reading.read(str(DATA / "auth.log"), year=2023)
    assert log.format.name == "sshd"
    assert requests_of(log) == [
        (utc(2023, 12, 31, 23, 58, 13), 5, "192.0.2.1"),
        *[(utc(2023, 12, 31, 23, 58, 20), 6, "192.0.2.1")] * 3,   # message repeated 3 times
        (utc(2023, 12, 31, 23, 59, 0), 8, "192.0.2.2"),           # the only sign of it
        (utc(2023, 12, 31, 23, 59, 58), 13, "2001:db8::9"),       # late in the file
        (utc(2024, 1, 1, 0, 0, 5), 11, "192.0.2.1"),
        *[(utc(2024, 1, 1, 0, 0, 6), 12, "192.0.2.1")] * 2,       # last message repeated 2 times
        (utc(2024, 1, 1, 0, 0, 9), 16, "192.0.2.4"),              # not the address in the name of the user
        (utc(2024, 1, 1, 0, 0, 10), 17, "192.0.2.5"),
        (utc(2024, 1, 1, 1, 0, 10), 18, "2001:10::5"),            # the process id again, an hour later
        (utc(2024, 1, 1, 1, 0, 11), 19, "192.0.2.6"),
        (utc(2024, 9, 1, 1, 0, 14), 23, "192.0.2.8"),
    ]
    assert log.account.lines == 23
    assert log.account.other == {sshd.NO_ATTEMPT: 6, sshd.SAME_ATTEMPT: 4}
    assert log.account.unreadable == 2
    assert [number for number, _ in log.account.examples] == [20, 22]
    assert log.account.notes == []
    assert list(describe_lines(log))[1] == "  11 with 14 attempts"


def test_users_of_an_auth_log():
    log = reading.read(str(DATA / "auth.log"), "user", year=2023)
    assert Counter(request.key for request in log.requests) == {
        "admin": 4, "root": 4, "x from 192.0.2.99 port 1 ssh2: y": 1, "": 1, "git": 1}
    assert log.account.other["attempts with no user"] == 3


def test_auth_log_with_iso_stamps():
    log = reading.read(str(DATA / "auth_iso.log"), "host,user")
    assert requests_of(log) == [
        (utc(2024, 2, 29, 11, 0, 0, ms=125), 2, "beta bob"),
        (utc(2024, 2, 29, 11, 0, 0, ms=250), 1, "beta root"),
    ]
    assert log.account.other == {sshd.NO_ATTEMPT: 1}


@pytest.mark.parametrize("message, user, address", [
    ("Failed password for root from 192.0.2.1 port 22 ssh2", "root", "192.0.2.1"),
    ("Invalid user a b from 192.0.2.1", "a b", "192.0.2.1"),
    ("User bob from 192.0.2.1 not allowed because not listed in AllowUsers", "bob", "192.0.2.1"),
    ("Connection reset by 2001:db8::1 port 22 [preauth]", None, "2001:db8::1"),
    ("Connection closed by invalid user from 192.0.2.9 port 5 192.0.2.1 port 22 [preauth]", "from 192.0.2.9 port 5",
     "192.0.2.1"),
    ("Disconnecting authenticating user root 192.0.2.1 port 22: Too many authentication failures [preauth]", "root",
     "192.0.2.1"),
    ("Received disconnect from 192.0.2.1: 11: Bye Bye [preauth]", None, "192.0.2.1"),
    ("Unable to negotiate with 192.0.2.1 port 22: no matching cipher found. Their offer: none [preauth]", None,
     "192.0.2.1"),
    ("fatal: Timeout before authentication for 192.0.2.1 port 22", None, "192.0.2.1"),
    ("Bad protocol version identification 'GET / HTTP/1.1' from 192.0.2.1 port 22", None, "192.0.2.1"),
    ("banner exchange: Connection from 192.0.2.1 port 22: invalid format", None, "192.0.2.1"),
    ("error: PAM: Authentication failure for illegal user bob from 192.0.2.1", "bob", "192.0.2.1"),
    ("pam_sss(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.1 user=bob", "bob",
     "192.0.2.1"),
])
def test_what_shows_an_attempt(message, user, address):
    kind, fields = sshd.classify(message)
    assert kind in (sshd.FAILURE, sshd.HINT)
    assert fields == {"user": user, "address": address}


@pytest.mark.parametrize("message", [
    "Connection from 192.0.2.1 port 22 on 192.0.2.2 port 22",
    "Connection closed by 192.0.2.1 port 22",                      # after the login
    "Received disconnect from 192.0.2.1 port 22:11: disconnected by user",
    "PAM 2 more authentication failures; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.1 user=root",
    "pam_unix(sshd:session): session opened for user bob by (uid=0)",
])
def test_what_shows_none(message):
    assert sshd.classify(message) == (None, None)


@pytest.mark.parametrize("now, stamps, expected", [
    ((2024, 6, 1), ["May 31 23:59:59"], [(2024, 5, 31, 23, 59, 59)]),
    ((2024, 6, 1), ["Jun  2 00:00:00"], [(2023, 6, 2)]),                                # not yet this year
    ((2026, 6, 1), ["Feb 29 00:00:00", "Mar  1 00:00:00"], [(2024, 2, 29), (2024, 3, 1)]),
    ((2024, 6, 1), ["Dec 31 10:00:00", "Jan  1 00:00:00", "Dec 31 11:00:00", "Jan  1 00:00:01"],
     [(2023, 12, 31, 10), (2024, 1, 1), (2023, 12, 31, 11), (2024, 1, 1, 0, 0, 1)]),
    ((2024, 6, 1), ["Jan  1 00:00:00", "Nov  1 00:00:00"], [(2024, 1, 1), (2024, 11, 1)]),  # a gap is no turn
    ((2024, 6, 1), ["2022-12-31T23:00:00Z", "Jan  1 00:00:00"], [(2022, 12, 31, 23), (2023, 1, 1)]),
])
def test_years_that_stamps_lack(now, stamps, expected):
    calendar = Calendar(now=datetime(*now, tzinfo=UTC))
    assert [calendar.instant(stamp) for stamp in stamps] == [utc(*parts) for parts in expected]


@pytest.mark.parametrize("stamp", ["Feb 30 00:00:00", "Foo  1 00:00:00", "Jan  1 24:00:00", "2023-02-29T00:00:00Z"])
def test_dates_that_do_not_exist_are_unreadable(tmp_path, stamp):
    path = tmp_path / "auth.log"
    path.write_text(f"Jan  2 00:00:00 host sshd[1]: Failed none\n{stamp} host sshd[1]: Failed none\n")
    account = reading.read(str(path), year=2023).account
    assert (account.unreadable, account.examples[0][0]) == (1, 2)


def test_syslog_in_another_time_zone():
    log = reading.read(str(DATA / "auth.log"), zone=ZoneInfo("America/New_York"), year=2023)
    assert log.requests[0].at == utc(2024, 1, 1, 4, 58, 13)
    assert log.requests[-1].at == utc(2024, 9, 1, 5, 0, 14)  # in summer, four hours


@pytest.mark.parametrize("stamp, instant", [
    ("1700000000", utc(2023, 11, 14, 22, 13, 20)),
    ("1700000000.25", utc(2023, 11, 14, 22, 13, 20, ms=250)),
    ("2023-11-14 22:13:20,5", utc(2023, 11, 14, 17, 13, 20, ms=500)),  # five hours ahead of UTC
    ("2023-11-14T22:13:20Z", utc(2023, 11, 14, 22, 13, 20)),
    ("14/Nov/2023:22:13:20 +0100", utc(2023, 11, 14, 21, 13, 20)),
    ("Nov 14 22:13:20", utc(2023, 11, 14, 17, 13, 20)),
    *((wrong, None) for wrong in ("", "9" * 30, "1969-12-31", "now", "14/Nov/2023")),
])
def test_stamps_of_every_kind(stamp, instant):
    assert Calendar(ZoneInfo("Asia/Karachi"), year=2023).instant(stamp) == instant


def test_a_pattern_of_ones_own(tmp_path):
    path = tmp_path / "app.log"
    path.write_text("1700000001.5 GET user=ann took=7\n1700000000 PUT user=bob took=-\nno line of it\n")
    format = formats.given(r"^(?P<time>\S+) (?P<verb>[A-Z]+) user=(?P<user>\w+) took=(?:-|(?P<bytes>\d+))")
    log = reading.read(str(path), format=format)
    assert log.key == "verb,user"
    assert requests_of(log) == [(1_700_000_000_000, 2, "PUT bob"), (1_700_000_001_500, 1, "GET ann")]
    assert (log.account.unreadable, log.account.examples) == (1, [(3, "no line of it")])
    assert [request.cost for request in reading.read(str(path), "user", "bytes", format).requests] == [7]


def test_an_assumed_year_is_said():
    log = reading.read(str(DATA / "auth.log"))
    assert len(log.account.notes) == 1 and "--year" in log.account.notes[0]


@pytest.mark.parametrize("name", ["access.log", "auth.log"])
def test_gzip_reads_alike_whatever_its_name(tmp_path, name):
    packed = tmp_path / "log"
    packed.write_bytes(gzip.compress((DATA / name).read_bytes()))
    assert requests_of(reading.read(str(packed), year=2023)) == requests_of(reading.read(str(DATA / name), year=2023))


def test_any_bytes_are_read_and_shown_harmlessly(tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes(b'192.0.2.1 - - [10/Oct/2024:13:55:36 +0000] "GET /\xff\x1b[2J\r$x HTTP/1.1" 200 1\r\n\x1b[2J\n')
    log = reading.read(str(path), "path")
    assert [printable(request.key) for request in log.requests] == []  # a carriage return ends no path
    path.write_bytes(path.read_bytes().replace(b"\r$", b"$"))
    log = reading.read(str(path), "path")
    assert [printable(request.key) for request in log.requests] == [r"/\udcff\x1b[2J$x"]
    assert list(describe_lines(log))[-1] == r"    line 2: \x1b[2J"


# Replaying.

def milliseconds(duration):
    number = duration.rstrip("msh")
    return int(number) * UNITS[duration[len(number):]]


def exact_decisions(requests, limit, window, resolution, strict=False):
    """The specification's formula in exact fractions, over nothing but the requests granted so far."""
    size, slots = milliseconds(resolution), milliseconds(window) // milliseconds(resolution)
    history = {}
    for request in requests:
        current = request.at // size
        past = history[request.key] = [(slot, cost) for slot, cost in history.get(request.key, ())
                                       if slot >= current - slots]
        full = sum(cost for slot, cost in past if slot > current - slots)
        trailing = sum(cost for slot, cost in past if slot == current - slots)
        weight = 1 if strict else Fraction(size - (request.at - current * size), size)
        granted = full + trailing * weight + request.cost <= int(limit)
        if granted:
            past.append((current, request.cost))
        yield granted


def replay(server, requests, limit):
    """The outcome of a replay, after a check that it left nothing behind."""
    outcome = Outcome(requests[0].at, requests[-1].at)
    with server.client() as client:
        player.check(client, limit, 1)
        player.replay(client, requests, limit, outcome)
        assert client.dbsize() == 0
    return outcome


def assert_exact(outcome, requests, limit):
    """Totals, keys, denials and the course over time agree with the exact calculation."""
    decided = list(zip(requests, exact_decisions(requests, *limit)))
    assert outcome.total.granted == sum(granted for _, granted in decided)
    assert outcome.total.offered_units == sum(outcome.offered) == sum(request.cost for request in requests)
    assert outcome.total.granted_units == sum(outcome.granted)
    for key, tally in outcome.keys.items():
        mine = [(request, granted) for request, granted in decided if request.key == key]
        denials = [request.at for request, granted in mine if not granted]
        assert (tally.offered, tally.denied) == (len(mine), len(denials))
        assert tally.granted_units == sum(request.cost for request, granted in mine if granted)
        assert (tally.first_denial, tally.last_denial) == ((denials[0], denials[-1]) if denials else (None, None))
    for step, granted in enumerate(outcome.granted):
        first = outcome.start + step * outcome.step
        assert granted == sum(request.cost for request, granted in decided
                              if granted and first <= request.at < first + outcome.step)


LIMITS = [("5", "10s", "1s", False), ("5", "10s", "1s", True), ("7", "3s", "3s", False), ("1", "60s", "15s", False),
          ("20", "1m", "250ms", True), ("0", "1m", "1s", False)]


@pytest.mark.parametrize("limit", [player.Limit(*limit) for limit in LIMITS], ids=str)
def test_decisions_are_exact(server, limit):
    dice = random.Random(str(limit))
    at, requests = 1_700_000_000_000, []
    for line in range(2500):  # more than two batches
        at += int(dice.expovariate(1 / 300))
        requests.append(reading.Request(at, line, dice.choice("aaabbc"), dice.choice((1, 1, 1, 2, 5))))
    outcome = replay(server, requests, limit)
    assert outcome.total.denied > 0
    assert_exact(outcome, requests, limit)


def test_keys_do_not_expire_because_the_replay_is_slow(server, monkeypatch):
    monkeypatch.setattr(player, "BATCH", 5)
    requests = [reading.Request(1_700_000_000_000, line, "a", 1) for line in range(50)]
    granted = 0
    with server.client() as client:
        for reply in player.allow(client, player.Limit("3", "2ms", "1ms"), requests, lambda request: request.key):
            granted += reply[0]
            time.sleep(0.002)
    assert granted == 3


def test_other_keys_of_a_server_stay(server):
    server.cli("SET", "mine", "1")
    requests = [reading.Request(1_700_000_000_000, 1, "mine", 1)]
    with server.client() as client:
        player.replay(client, requests, player.Limit("1", "1s", "1s"), Outcome(requests[0].at, requests[0].at))
        assert client.keys() == [b"mine"]


@pytest.mark.parametrize("span, step", [(0, 1), (119, 1), (120, 2), (84 * 3600, 3600), (365 * 86400, 4 * 86400)])
def test_steps_of_time(span, step):
    outcome = Outcome(1_700_000_000_000, 1_700_000_000_000 + span * 1000)
    assert outcome.step == step * 1000
    assert len(outcome.offered) <= STEPS + 1


# Real logs, where they are at hand.

def real(name):
    path = REAL / name
    if not path.exists():
        lacking(path.name)
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("limit", [player.Limit("20", "1m", "1s"), player.Limit("100", "1h", "5m", True)], ids=str)
def test_real_access_log(server, limit):
    path = real("apache_access_10k.log.gz")
    log = reading.read(path)
    assert (log.account.lines, log.account.unreadable, len(log.requests)) == (10_000, 1, 9_999)
    with gzip.open(path, "rt") as file:
        first_words = Counter(line.split()[0] for line in file if line.rstrip().endswith('"'))
    assert Counter(request.key for request in log.requests) == first_words
    assert_exact(replay(server, log.requests, limit), log.requests, limit)


@pytest.mark.parametrize("key", ["address", "user"])
def test_real_auth_log(server, key):
    path = real("ssh_auth.log.gz")
    log = reading.read(path, key, year=2017)
    assert (log.account.lines, log.account.unreadable) == (7_121, 0)
    if key == "address":
        with gzip.open(path, "rt") as file:
            failed = Counter()
            for words in map(str.split, file):
                if "Failed" in words:
                    failed[words[words.index("port") - 1]] += int(words[7]) if "repeated" in words else 1
        replayed = Counter(request.key for request in log.requests)
        assert failed.total() > 900
        assert all(replayed[address] >= times for address, times in failed.items())
    limit = player.Limit("5", "10m", "1m")
    assert_exact(replay(server, log.requests, limit), log.requests, limit)


# The program.

def command(*words, **options):
    env = os.environ | {"PYTHONPATH": f"{SCRIPTS}:{SCRIPTS.parent}/tests"} | options.pop("env", {})
    return subprocess.Popen([sys.executable, "-m", "logreplay", *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=env, **options)


def run(*words, **options):
    stdin = options.pop("input", None)
    process = command(*words, stdin=subprocess.PIPE, **options)
    output, errors = process.communicate(stdin, timeout=60)
    return process.returncode, output, errors


def write_long_log(path, lines):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    path.write_text("".join(
        f"192.0.2.{line % 250} - - [{start + timedelta(seconds=line):%d/%b/%Y:%H:%M:%S %z}] \"GET / HTTP/1.1\" 200 5\n"
        for line in range(lines)))
    return path


@pytest.fixture
def announced(tmp_path):
    """Environment for a server that writes its process id down, and the file it writes it to."""
    program, pid = tmp_path / "server", tmp_path / "pid"
    program.write_text(f'#!/bin/sh\necho $$ > {pid}\nexec {os.environ.get("SWLIMIT_SERVER", "redis-server")} "$@"\n')
    program.chmod(0o755)
    return {"SWLIMIT_SERVER": str(program)}, pid


def ended(pid_file):
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_the_whole_program_with_a_server_of_its_own(tmp_path, announced):
    env, pid = announced
    picture, found = tmp_path / "picture.svg", tmp_path / "found.json"
    code, output, errors = run(DATA / "auth.log", 2, "1h", "1m", "--year", 2023, "--picture", picture, "--json", found,
                               "--top", 2, env=env)
    assert (code, errors) == (0, "")
    assert ended(pid)
    cells = [re.split("  +", line.strip()) for line in output.splitlines()]
    assert ["192.0.2.1", "7", "2", "5", "71.4 %", "2023-12-31 23:58:20", "2024-01-01 00:00:06"] in cells
    assert ["all 8", "14", "9", "5", "35.7 %", "2023-12-31 23:58:20", "2024-01-01 00:00:06"] in cells
    assert "… 6 more" in output and "2 per 1h (resolution 1m) for each address: 1 of 8 limited" in output
    assert "2 unreadable, such as" in output and "line 20: Jan 32 01:00:12" in output
    assert picture.read_text().startswith("<svg")
    content = json.loads(found.read_text())
    assert content["total"]["denied"] == 5
    assert content["lines"]["unreadable"] == 2
    assert content["keys"][0] | {"key": "192.0.2.1", "offered": 7, "granted": 2} == content["keys"][0]
    assert sum(content["timeline"]["granted_units"]) == 9


def test_the_whole_program_with_a_running_server(tmp_path, server):
    picture = tmp_path / "picture.PNG"
    code, output, errors = run("-", 3000, "1m", "1s", "--cost", "bytes", "--server", f"127.0.0.1:{server.port}",
                               "--key", "all", "--picture", picture, input=(DATA / "access.log").read_text())
    assert (code, errors) == (0, "")
    assert "standard input: 10 lines" in output
    assert ["all 1", "2,603", "2,603", "0", "0.0 %"] in [re.split("  +", line.strip()) for line in output.splitlines()]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert server.cli("DBSIZE") == "0"
    assert server.alive


def test_a_log_without_attempts(tmp_path):
    path = tmp_path / "auth.log"
    path.write_text("2024-02-29T11:00:01Z beta sudo: pam_unix(sudo:session): session opened for user root\n")
    code, output, errors = run(path, 1, "1m", "1s", "--picture", tmp_path / "none.svg")
    assert (code, errors) == (0, "")
    assert output.endswith("Nothing to replay.\n")
    assert not (tmp_path / "none.svg").exists()


def test_equal_replays_make_equal_pictures(tmp_path, server):
    for name in ("one.svg", "two.svg"):
        assert run(DATA / "access.log", 1, "1m", "1s", "--server", f"127.0.0.1:{server.port}", "--key", "path",
                   "--picture", tmp_path / name)[0] == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


LIMIT = ("5", "1m", "1s")


@pytest.mark.parametrize("words, message", [
    (["access.log", "many", "1m", "1s"], "limit must be an integer between 0 and 9007199254740991"),
    (["access.log", "5", "1 minute", "1s"], "window must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["access.log", "5", "1m", "7s"], "resolution must divide the window evenly"),
    (["access.log", *LIMIT, "--cost", "0"], "cost must be an integer between 1 and 9007199254740991"),
    (["access.log", *LIMIT, "--cost", "much"], "argument --cost: takes a number of units or 'bytes'"),
    (["access.log", *LIMIT, "--key", "colour"], "no key 'colour' in this format (access): it has address, "),
    (["auth.log", *LIMIT, "--key", "path"], "no key 'path' in this format (sshd): it has address, user, host, all"),
    (["auth.log", *LIMIT, "--cost", "bytes"], "no bytes in this format (sshd)"),
    (["access.log", *LIMIT, "--pattern", "(?P<time>"], "--pattern is no regular expression: "),
    (["access.log", *LIMIT, "--pattern", r"(?P<time>\S+)"], "--pattern needs the group (?P<time>…) and"),
    (["access.log", *LIMIT, "--pattern", "(?P<time>.)(?P<key>.)", "--format", "access"], "not allowed with argument"),
    (["missing.log", *LIMIT], "No such file or directory"),
    (["../data", *LIMIT], "Is a directory"),
    (["../test_replay.py", *LIMIT], "does not look like an access log or one of sshd"),
    (["access.log", *LIMIT, "--timezone", "Mars/Olympus"], "knows no time zone 'Mars/Olympus'"),
    (["access.log", *LIMIT, "--picture", "picture.gif"], "takes a file that ends in .svg or .png, or none"),
    (["access.log", *LIMIT, "--json", "no/where.json"], "there is no folder for no/where.json"),
    (["access.log", *LIMIT, "--server", "127.0.0.1:1"], "cannot reach the server"),
    (["access.log", *LIMIT, "--server", "127.0.0.1:port"], "--server takes HOST:PORT"),
    (["access.log", "5"], "the following arguments are required: WINDOW, RESOLUTION"),
])
def test_mistakes_end_with_one_line(words, message, monkeypatch, capsys):
    monkeypatch.chdir(DATA)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process is not the program
    assert main(words) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("replay: ") and errors.count("\n") == 1
    assert message in errors


def test_a_server_without_the_module(start):
    server = start(module=None)
    code, _, errors = run(DATA / "access.log", *LIMIT, "--server", f"127.0.0.1:{server.port}", "--picture", "none")
    assert (code, errors) == (2, "replay: this server has not loaded the module swlimit\n")


def test_a_damaged_gzip(tmp_path):
    packed = gzip.compress((DATA / "access.log").read_bytes())
    (tmp_path / "cut.gz").write_bytes(packed[:len(packed) // 2])
    with pytest.raises(UserError, match="cannot read .*cut.gz"):
        reading.read(str(tmp_path / "cut.gz"))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_replay_cleans_up(tmp_path, server, number, code):
    log = write_long_log(tmp_path / "access.log", 60_000)
    process = command(log, *LIMIT, "--picture", "none", "--server", f"127.0.0.1:{server.port}")
    deadline = time.monotonic() + 30
    with server.client() as client:
        while client.dbsize() == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (code, "", "")
    assert server.cli("DBSIZE") == "0"


def test_an_interrupted_replay_ends_its_server(tmp_path, announced):
    env, pid = announced
    process = command(write_long_log(tmp_path / "access.log", 60_000), *LIMIT, "--picture", "none", env=env,
                      start_new_session=True)
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the server as well
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "", "")
    assert ended(pid)


def test_a_closed_pipe_is_no_error(server):
    process = command(DATA / "access.log", *LIMIT, "--picture", "none", "--server", f"127.0.0.1:{server.port}")
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(30)
    assert errors == ""
    assert server.cli("DBSIZE") == "0"
