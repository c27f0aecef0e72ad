"""A key used with another window or resolution keeps its counts."""

import time

import pytest

from support.bounds import T
from support.cli import ask, batch, stored
from support.contents import digest, unchanged
from support.resp import Connection


def second_of(server, key="k"):
    found = stored(server, key)
    return (found["window"] // 1_000, found["resolution"] // 1_000,
            {(start - T) / 1_000: units for start, units in found["counts"].items()})


def fill(server):
    """3 units in the first minute, 4 in the second, 5 in the fourth, which begins at T + 180 s; W = 10 min."""
    batch(server, [["SWLIMIT.RECORD", "k", 100, "10m", "1m", "COST", units, "AT", T + second * 1_000]
                   for second, units in {0: 3, 119: 4, 200: 5}.items()])


@pytest.mark.parametrize("window, resolution, at, expected", [
    ("10m", "2m", 200, {0: 7, 120: 6}),  # coarser: minutes 0 and 1 end in the first two minutes
    ("10m", "10m", 239, {0: 13}),
    ("10m", "10s", 200, {50: 3, 110: 4, 200: 6}),  # finer: a minute's last second, the newest no later than now
    ("10m", "10s", 207, {50: 3, 110: 4, 200: 6}),
    ("10m", "10s", 239, {50: 3, 110: 4, 230: 6}),
    ("10m", "10s", 300, {50: 3, 110: 4, 230: 5, 300: 1}),
    ("10m", "10s", 150, {50: 3, 110: 4, 180: 6}),  # a clock behind the newest minute, whose first instant decides
    ("20m", "1m", 200, {0: 3, 60: 4, 180: 6}),  # longer
    ("2m", "1m", 200, {60: 4, 180: 6}),  # shorter: what is older than newest - N goes
    ("2m", "1m", 240, {180: 5, 240: 1}),  # … at the instant of the grant: N = 2, so minute 4 keeps 2 and 3
    ("1m", "1m", 200, {180: 6}),
    ("7m", "70s", 200, {10: 3, 80: 4, 150: 6}),  # subintervals of 70 s begin at T + 10 s
])
def test_counts_move_to_the_new_subinterval_of_their_latest_instant(server, window, resolution, at, expected):
    fill(server)
    reply = ask(server, "SWLIMIT.ALLOW", "k", 100, window, resolution, "AT", T + at * 1_000)
    granted, _, remaining, _, reset_after = reply
    length, part, counts = second_of(server)
    assert counts == expected
    assert granted == 1 and remaining >= 100 - sum(counts.values())
    assert reset_after == (max(counts) + length + part - at) * 1_000


@pytest.mark.parametrize("command, granted", [
    (("SWLIMIT.PEEK", "k", 100, "10m", "10s"), 1),
    (("SWLIMIT.ALLOW", "k", 12, "10m", "10s"), 0),
    (("SWLIMIT.ALLOW", "k", 12, "1h", "10s", "PARTIAL"), 0),
    (("SWLIMIT.PEEK", "k", 12, "2m", "1m"), 1),
])
def test_only_what_counts_stores_the_change(server, command, granted):
    fill(server)
    before = stored(server, "k"), digest(server)
    assert ask(server, *command, "AT", T + 200_000)[0] == granted
    assert (stored(server, "k"), digest(server)) == before


def test_record_stores_the_change_and_refund_knows_no_geometry(server):
    fill(server)
    assert ask(server, "SWLIMIT.RECORD", "k", 0, "10m", "10s", "COST", 2, "AT", T + 300_000)[:3] == [0, 0, 0]
    assert second_of(server) == (600, 10, {50: 3, 110: 4, 230: 5, 300: 2})
    assert ask(server, "SWLIMIT.REFUND", "k", 4, "AT", T + 300_000) == [4]
    assert second_of(server) == (600, 10, {50: 3, 110: 4, 230: 3})


@pytest.mark.parametrize("before", ["1h", "10m", "1m", "1s", "90s"])
@pytest.mark.parametrize("after", ["1h", "10m", "1m", "1s", "90s"])
def test_a_change_never_frees_quota_early(server, before, after):
    """Strictly, units stay whole for all of a window, whatever the resolution they are counted and looked at with."""
    counted = T + 599_999
    assert ask(server, "SWLIMIT.ALLOW", "k", 9, "1h", before, "COST", 9, "AT", counted)[0] == 9
    for later in (0, 1, 3_599_999):
        assert ask(server, "SWLIMIT.ALLOW", "k", 9, "1h", after, "STRICT", "AT", counted + later)[:3] == [0, 9, 0]


@pytest.mark.parametrize("options", [(), ("STRICT",), ("COST", 4), ("COST", 4, "PARTIAL")], ids=str)
@pytest.mark.parametrize("into", [0, 1, 1_000, 59_999, 60_000, 61_000])
def test_retry_after_is_exact_at_another_resolution(server, options, into):
    """While the newest subinterval at the old resolution lasts, who asks later sees its units placed later."""
    ask(server, "SWLIMIT.RECORD", "k", 10, "1m", "1m", "COST", 10, "AT", T)
    for window, resolution in [("1m", "1s"), ("1m", "30s"), ("2m", "2m"), ("30s", "1s")]:
        denied = "SWLIMIT.ALLOW", "k", 10, window, resolution, *options
        peek = "SWLIMIT.PEEK", *denied[1:]
        granted, _, _, retry_after, _ = ask(server, *denied, "AT", T + into)
        assert granted == 0
        assert ask(server, *peek, "AT", T + into + retry_after - 1)[0] == 0
        assert ask(server, *peek, "AT", T + into + retry_after)[0] > 0


@pytest.mark.parametrize("into", [0, 1, 59_999, 60_000, 100_000])
@pytest.mark.parametrize("quota", [("2s", "100ms"), ("1m", "1s"), ("10m", "10m"), ("2h", "1h"), ("1h", "7200ms"),
                                   ("1ms", "1ms")], ids=" ".join)
def test_reset_after_is_when_nothing_counts_any_more(server, quota, into):
    """Neither before nor after: also for those who ask while the newest subinterval still moves their units along."""
    ask(server, "SWLIMIT.RECORD", "k", 1, "1h", "1m", "AT", T - 1_000_000)
    ask(server, "SWLIMIT.ALLOW", "k", 9, "1h", "1m", "AT", T)
    peek = "SWLIMIT.PEEK", "k", 1, *quota, "AT"
    reset_after, retry_after = ask(server, *peek, T + into)[4], ask(server, *peek, T + into)[3]
    assert reset_after >= retry_after
    if reset_after:
        assert ask(server, *peek, T + into + reset_after - 1)[4] == 1
        assert ask(server, *peek, T + into + reset_after - 1)[2] == 0
    assert ask(server, *peek, T + into + reset_after) == [1, 1, 1, 0, 0]


def test_reset_after_is_not_before_retry_after(server):
    ask(server, "SWLIMIT.ALLOW", "k", 1, "1h", "1m", "AT", T)
    assert ask(server, "SWLIMIT.PEEK", "k", 1, "2s", "100ms", "AT", T) == [0, 1, 0, 62_000, 62_000]


MINUTE = "k", 5, "60s", "1s"


def test_what_is_stored_matters_until_its_own_end(server):
    """Whatever window is asked for meanwhile."""
    batch(server, [["SWLIMIT.ALLOW", "k", 5, "1s", "100ms", "AT", T]] * 5 + [["PERSIST", "k"]])
    before = digest(server)
    assert ask(server, "SWLIMIT.ALLOW", *MINUTE, "AT", T + 40) == [0, 5, 0, 1_060, 1_060]
    assert digest(server) == before
    with unchanged(server):
        assert ask(server, "SWLIMIT.PEEK", *MINUTE, "AT", T + 1_099) == [0, 5, 0, 1, 1]
        assert ask(server, "SWLIMIT.PEEK", *MINUTE, "AT", T + 1_100) == [1, 5, 5, 0, 0]
        assert ask(server, "SWLIMIT.PEEK", *MINUTE, "COST", 6, "AT", T + 40) == [0, 5, 0, -1, 1_060]
        for age in ((), ("AGE", "1100ms"), ("AGE", 0)):
            assert ask(server, "SWLIMIT.REFUND", "k", 5, *age, "AT", T + 1_100) == [0]
    assert ask(server, "SWLIMIT.ALLOW", *MINUTE, "AT", T + 1_100) == [1, 5, 4, 0, 60_900]
    assert second_of(server) == (60, 1, {1: 1})


def test_what_is_stored_matters_until_its_own_end_by_the_clock(server):
    """Asked again and again: denied until the instant that the denial told, and granted from then on."""
    def now():
        return time.time() * 1_000

    with Connection(server.port) as connection:
        assert [reply[0] for reply in connection.calls([("SWLIMIT.ALLOW", "k", 5, "1s", "100ms")] * 5)] == [1] * 5
        end, before = connection.call("PEXPIRETIME", "k"), now()
        granted, _, _, retry_after, reset_after = connection.call("SWLIMIT.ALLOW", *MINUTE)
        assert granted == 0 and retry_after == reset_after
        assert before - 1 <= end - retry_after <= now()
        while not granted:
            before = now()
            granted = connection.call("SWLIMIT.ALLOW", *MINUTE)[0]
            assert now() >= end if granted else before < end + 1
        assert connection.call("SWLIMIT.REFUND", "k", 5) == 1  # what ended is not given back


def test_what_a_shorter_window_has_forgotten_does_not_come_back(server):
    hour, minute = ("k", 100, "1h", "1m"), ("k", 100, "60s", "5s")
    ask(server, "SWLIMIT.ALLOW", *hour, "COST", 100, "AT", T)
    assert ask(server, "SWLIMIT.PEEK", *minute, "AT", T + 300_000)[:3] == [1, 100, 100]
    assert ask(server, "SWLIMIT.ALLOW", *hour, "AT", T + 300_000)[0] == 0  # PEEK has stored nothing
    assert ask(server, "SWLIMIT.ALLOW", *minute, "AT", T + 300_000) == [1, 100, 99, 0, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", *hour, "COST", 99, "AT", T + 300_000)[:3] == [99, 100, 0]


def test_one_key_used_with_two_windows_limits_neither_as_two_keys_would(server):
    """10 a second and 1000 an hour, one request of each a second: by the minute that the hour knows, all of a minute's
    units may have come just now."""
    second, hour = ("k", 10, "1s", "100ms"), ("k", 1_000, "1h", "1m")
    replies = batch(server, [["SWLIMIT.ALLOW", *quota, "AT", T + at * 1_000] for at in range(60)
                             for quota in (second, hour)])
    assert [int(reply.split()[0]) for reply in replies[::2]] == [1] * 5 + [0] * 55
    quotas = [second[1:], hour[1:]]
    replies = batch(server, [["SWLIMIT.MALLOW", 2, "second", "hour", *quotas[0], 1, *quotas[1], 1, "AT", T + at * 1_000]
                             for at in range(60)])
    assert [int(reply.split()[0]) for reply in replies] == [1] * 60
