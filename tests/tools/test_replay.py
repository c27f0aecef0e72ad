"""scripts/replay: what it reads in a log, what it decides with a real server, and how it behaves as a program."""

import gzip
import random
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

import replay
from support.lacking import lacking
from support.server import ROOT

DATA = Path(__file__).parent / "data"
REAL = ROOT.parent / "shared/data"
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def utc(*parts):
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1000


def requests_of(log):
    return [(request.at, request.line, request.key) for request in log.requests]


def test_an_access_log_is_read_in_order_of_time():
    log = replay.read(DATA / "access.log")
    assert requests_of(log) == [
        (utc(2024, 10, 10, 13, 55, 30), 6, "192.0.2.3"),
        (utc(2024, 10, 10, 13, 55, 31), 10, "192.0.2.3"),
        (utc(2024, 10, 10, 13, 55, 35), 2, "192.0.2.2"),    # 15:55:35 +0200
        (utc(2024, 10, 10, 13, 55, 36), 1, "192.0.2.1"),
        (utc(2024, 10, 10, 13, 55, 36), 3, "192.0.2.1"),    # the same instant: in the order of the file
        (utc(2024, 10, 10, 13, 55, 37), 5, "2001:db8::7"),  # 08:25:37 -0530
    ]
    assert (log.lines, log.skipped, log.example) == (10, 4, "this is no log line")


def test_keys_and_costs_of_an_access_log():
    assert [request.key for request in replay.read(DATA / "access.log", "method,path").requests] == [
        "POST /login", "GET /index.html", "GET /style.css", "HEAD /index.html"]
    assert {request.key for request in replay.read(DATA / "access.log", "user").requests} == {"alice", "mary ann"}
    by_bytes = replay.read(DATA / "access.log", "all", "bytes").requests
    assert [(request.key, request.cost) for request in by_bytes] == [("all", 226), ("all", 2326), ("all", 51)]


def test_failed_logins_of_sshd():
    """A name may hold what looks like an address, a line may stand for several attempts, and the year turns."""
    log = replay.read(DATA / "auth.log", "address,user", year=2017)
    assert [(request.at, request.key) for request in log.requests] == [
        (utc(2017, 12, 31, 23, 58, 13), "192.0.2.1 admin"),
        *[(utc(2017, 12, 31, 23, 58, 20), "192.0.2.1 admin")] * 3,
        (utc(2018, 1, 1, 0, 0, 5), "192.0.2.1 root"),
        (utc(2018, 1, 1, 0, 0, 9), "192.0.2.4 x from 192.0.2.99 port 1 ssh2: y"),
        (utc(2018, 1, 1, 1, 0, 11), "192.0.2.6 "),
        (utc(2018, 9, 1, 1, 0, 14), "192.0.2.8 git"),
    ]
    assert requests_of(replay.read(DATA / "auth_iso.log", "user")) == [(utc(2024, 2, 29, 11) + 125, 2, "bob")]


@pytest.mark.parametrize("stamp, instant", [
    ("1700000000.25", 1_700_000_000_250), ("2024-02-29T12:00:00+01:00", utc(2024, 2, 29, 11)),
    ("2024-02-29 11:00:00", utc(2024, 2, 29, 11)), ("29/Feb/2024:11:00:00 +0000", utc(2024, 2, 29, 11)),
    ("Feb 29 11:00:00", None), ("Feb 28 11:00:00", utc(2023, 2, 28, 11)), ("31/Feb/2024:11:00:00 +0000", None),
    ("1969-12-31T23:59:59Z", None), ("9" * 400, None),
])
def test_stamps(stamp, instant):
    assert replay.Calendar(2023).instant(stamp) == instant


def test_a_late_line_of_the_old_year_stays_in_it():
    calendar = replay.Calendar(2017)
    assert [calendar.instant(stamp) for stamp in ("Jan  1 00:00:05", "Dec 31 23:59:58", "Jan  1 00:00:06")] == [
        utc(2017, 1, 1, 0, 0, 5), utc(2016, 12, 31, 23, 59, 58), utc(2017, 1, 1, 0, 0, 6)]


def test_a_number_that_is_none_counts_nothing(tmp_path):
    log = tmp_path / "app.log"
    log.write_text("1 ann 7\n2 ann -\n")
    pattern = re.compile(r"(?P<time>\S+) (?P<user>\S+) (?P<bytes>\S+)")
    assert [request.cost for request in replay.read(log, cost="bytes", pattern=pattern).requests] == [7]


def exact_decisions(requests, limit, window, resolution, strict):
    """The specification's formula in exact fractions, over nothing but the requests granted so far."""
    milliseconds = [int(text.rstrip("msh")) * UNITS[text.lstrip("0123456789")] for text in (window, resolution)]
    size, slots, history = milliseconds[1], milliseconds[0] // milliseconds[1], {}
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


def assert_exact(server, requests, limit):
    """The server's decisions agree with the exact calculation, and no key is left behind."""
    with server.client() as client:
        granted = replay.replay(client, requests, limit)
        assert client.dbsize() == 0
    assert granted == list(exact_decisions(requests, *limit))
    assert False in granted


@pytest.mark.parametrize("limit", [replay.Limit(*limit) for limit in (
    ("5", "10s", "1s"), ("5", "10s", "1s", True), ("7", "3s", "3s"), ("20", "1m", "250ms", True), ("0", "1m", "1s"))])
def test_decisions_are_exact(server, limit):
    dice = random.Random(str(limit))
    at, requests = 1_700_000_000_000, []
    for line in range(2500):  # more than two batches
        at += int(dice.expovariate(1 / 300))
        requests.append(replay.Request(at, line, dice.choice("aaabbc"), dice.choice((1, 1, 1, 2, 5))))
    assert_exact(server, requests, limit)


@pytest.mark.parametrize("log, key, limit", [
    pytest.param("apache_access_10k.log.gz", "address", replay.Limit("20", "1m", "1s"), marks=pytest.mark.long),
    ("ssh_auth.log.gz", "address", replay.Limit("5", "10m", "1m")),
    ("ssh_auth.log.gz", "user", replay.Limit("5", "10m", "1m", True)),
])
def test_real_logs(server, log, key, limit):
    if not (REAL / log).exists():
        lacking(log)
    requests = replay.read(REAL / log, key, year=2017).requests
    assert len(requests) > 900
    assert_exact(server, requests, limit)


def test_keys_do_not_expire_because_the_replay_is_slow(server, monkeypatch):
    monkeypatch.setattr(replay, "BATCH", 5)
    requests = [replay.Request(1_700_000_000_000, line, "a", 1) for line in range(50)]
    granted = 0
    with server.client() as client:
        for reply in replay.allow(client, replay.Limit("3", "2ms", "1ms"), requests, lambda request: request.key):
            granted += reply[0]
            time.sleep(0.002)
    assert granted == 3


def program(*words, **options):
    return subprocess.Popen([sys.executable, "-m", "replay", *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options,
                            env={"PYTHONPATH": f"{ROOT}/scripts:{ROOT}/tests", "PATH": "/usr/bin:/bin:/usr/local/bin"})


def test_the_whole_program():
    process = program(DATA / "auth.log", 2, "1h", "1m", "--year", 2023, "--top", 1)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    lines = [line.split() for line in output.splitlines()]
    assert lines[3][:5] == ["192.0.2.1", "5", "2", "3", "60.0%"]
    assert lines[4][:6] == ["all", "4", "8", "5", "3", "37.5%"]
    assert "8 requests in 6 of 23 lines\nthe first line without a request: Dec 31 23:58:00 alpha sshd[100]" in output


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_replay_cleans_up(tmp_path, server, number, code):
    log = tmp_path / "access.log"
    start = datetime(2024, 1, 1, tzinfo=UTC)
    log.write_text("".join(
        f"192.0.2.{line % 250} - - [{start + timedelta(seconds=line):%d/%b/%Y:%H:%M:%S %z}] \"GET / HTTP/1.1\" 200 5\n"
        for line in range(60_000)))
    process = program(log, 5, "1m", "1s", "--server", f"127.0.0.1:{server.port}")
    deadline = time.monotonic() + 30
    with server.client() as client:
        while client.dbsize() == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert server.cli("DBSIZE") == "0"


LIMIT = "5", "1m", "1s"


@pytest.mark.parametrize("words, message", [
    (["access.log", "many", "1m", "1s"], "limit must be an integer between 0 and 9007199254740991"),
    (["access.log", "5", "1m", "7s"], "resolution must divide the window evenly"),
    (["access.log", *LIMIT, "--cost", "0"], "cost must be an integer between 1 and 9007199254740991"),
    (["access.log", *LIMIT, "--cost", "much"], "--cost takes a number of units or bytes"),
    (["access.log", *LIMIT, "--key", "colour"], "no key 'colour' in this log: it has address, "),
    (["auth.log", *LIMIT, "--cost", "bytes"], "no bytes in this log"),
    (["access.log", *LIMIT, "--pattern", "(?P<time>"], "--pattern is no regular expression: "),
    (["access.log", *LIMIT, "--pattern", r"(?P<time>\S+)"], "--pattern needs the group (?P<time>…) and"),
    (["missing.log", *LIMIT], "No such file or directory"),
    (["../data", *LIMIT], "Is a directory"),
    (["../test_replay.py", *LIMIT], "does not look like an access log or one of sshd"),
    (["access.log", "5"], "the following arguments are required: WINDOW, RESOLUTION"),
])
def test_mistakes_end_with_one_line(words, message, server, monkeypatch, capsys):
    monkeypatch.chdir(DATA)
    assert replay.main([*words, "--server", f"127.0.0.1:{server.port}"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("replay: ") and errors.count("\n") == 1
    assert message in errors


@pytest.mark.parametrize("address, message", [
    ("127.0.0.1:1", "cannot reach the server"), ("127.0.0.1:port", "--server takes HOST:PORT")])
def test_no_server(address, message, capsys):
    assert replay.main([str(DATA / "access.log"), *LIMIT, "--server", address]) == 2
    assert message in capsys.readouterr().err


def test_a_server_without_the_module(start, capsys):
    port = start(module=None).port
    assert replay.main([str(DATA / "access.log"), *LIMIT, "--server", f"127.0.0.1:{port}"]) == 2
    assert capsys.readouterr().err == "replay: this server has not loaded the module swlimit\n"


def test_a_damaged_gzip(tmp_path):
    packed = gzip.compress((DATA / "access.log").read_bytes())
    (tmp_path / "cut.gz").write_bytes(packed[:len(packed) // 2])
    with pytest.raises(replay.ReplayError, match="cannot read .*cut.gz"):
        replay.read(tmp_path / "cut.gz")
