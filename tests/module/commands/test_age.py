"""REFUND AGE gives back what was counted about then; RECORD AGE counts there."""

import time

import pytest

from support.bounds import MAX, T
from support.cli import ask, batch, feed, numbers, stored
from support.contents import unchanged
from support.resp import Connection
from support.seconds import QUOTA, counts, record_units


@pytest.mark.parametrize("age, units, given, left", [
    ("56s", 2, 2, {0: 3, 5: 2, 30: 2, 60: 5}),  # T + 5 s … T + 10 s
    ("51001ms", 4, 4, {0: 3, 30: 2, 60: 5}),
    ("51s", 4, 4, {0: 3, 5: 4, 60: 3}),  # T + 10 s: nothing is there, so younger ones
    ("56s", 5, 5, {0: 3, 30: 1, 60: 5}),
    ("56s", 99, 11, {0: 3}),  # never older ones
    ("1m", 1, 1, {0: 2, 5: 4, 30: 2, 60: 5}),
    ("61s", MAX, 14, None),
    ("61001ms", 5, 0, {0: 3, 5: 4, 30: 2, 60: 5}),  # no longer matters, if anything was counted there
    ("1d", 5, 0, {0: 3, 5: 4, 30: 2, 60: 5}),
    ("3650d", 5, 0, {0: 3, 5: 4, 30: 2, 60: 5}),
    (0, 3, 3, {0: 3, 5: 4, 30: 2, 60: 2}),
    ("1s", 6, 5, {0: 3, 5: 4, 30: 2}),
])
def test_refund_begins_with_the_subinterval_of_that_age(server, age, units, given, left):
    record_units(server, {0: 3, 5: 4, 30: 2, 60: 5})
    assert ask(server, "SWLIMIT.REFUND", "k", units, "AGE", age, "AT", T + 61_000) == [given]
    assert counts(server) == left


@pytest.mark.parametrize("since, units, given, left", [
    (T + 5_000, 2, 2, {0: 3, 5: 2, 30: 2, 60: 5}),
    (T + 9_999, 4, 4, {0: 3, 30: 2, 60: 5}),
    (T + 10_000, 4, 4, {0: 3, 5: 4, 60: 3}),
    (T, MAX, 14, None),
    (T - 1, 5, 0, {0: 3, 5: 4, 30: 2, 60: 5}),
    (0, 5, 0, {0: 3, 5: 4, 30: 2, 60: 5}),
    (T + 61_000, 3, 3, {0: 3, 5: 4, 30: 2, 60: 2}),
    (T + 61_001, 3, 3, {0: 3, 5: 4, 30: 2, 60: 2}),  # later than now is now
    (MAX, 6, 5, {0: 3, 5: 4, 30: 2}),
])
def test_refund_begins_with_the_subinterval_of_that_instant(server, since, units, given, left):
    record_units(server, {0: 3, 5: 4, 30: 2, 60: 5})
    assert ask(server, "SWLIMIT.REFUND", "k", units, "since", since, "AT", T + 61_000) == [given]
    assert counts(server) == left


def test_refund_since_by_the_clock(server):
    with Connection(server.port) as connection:
        quota = "k", 10, "1m", "100ms"
        seconds, microseconds = connection.call("TIME")
        connection.call("SWLIMIT.RECORD", *quota, "COST", 3, "AGE", "1s")
        connection.call("SWLIMIT.ALLOW", *quota, "COST", 2)
        since = int(seconds) * 1_000 + int(microseconds) // 1_000
        assert connection.call("SWLIMIT.REFUND", "k", 9, "SINCE", since) == 2
        assert connection.call("SWLIMIT.REFUND", "k", 9, "SINCE", since - 2_000) == 3


def test_refund_of_an_age_by_a_clock_that_stepped_back(server):
    record_units(server, {0: 3, 60: 5})
    with unchanged(server):  # T - 1 no longer matters beside what was counted at T + 60 s
        assert ask(server, "SWLIMIT.REFUND", "k", 9, "AGE", "1ms", "AT", T) == [0]
    assert ask(server, "SWLIMIT.REFUND", "k", 4, "AGE", 0, "AT", T + 5_000) == [4]
    assert counts(server) == {0: 3, 60: 1}


@pytest.mark.parametrize("age", [0, 7, 8, "1h"])
def test_ages_before_the_epoch_are_the_epoch(server, age):
    assert ask(server, "SWLIMIT.RECORD", "k", 10, "1h", "1m", "COST", 3, "AGE", age, "AT", 7_000)[:3] == [3, 10, 7]
    assert stored(server, "k")["counts"] == {0: 3}
    assert ask(server, "SWLIMIT.REFUND", "k", 2, "age", age, "AT", 7_000) == [2]
    assert stored(server, "k")["counts"] == {0: 1}


@pytest.mark.parametrize("age, held", [("300ms", 3), ("1000ms", 3), ("1001ms", None), ("0", 3)])
def test_a_window_that_has_ended_does_not_come_back(server, age, held):
    """Whatever instant is counted at: neither in what is stored nor in what is given back."""
    ask(server, "SWLIMIT.APPLY", "k", f"c100*10@{T}+11~0")
    before = stored(server, "k")
    keep = "local reply = redis.call(unpack(ARGV)); redis.call('PERSIST', 'k'); return reply"
    reply = ask(server, "EVAL", keep, 1, "k", "SWLIMIT.RECORD", "k", 100, "1s", "100ms", "COST", 3, "AGE", age, "AT",
                T + 1_100)
    if held is None:
        assert reply == [3, 100, 100, 0, 0]
        assert stored(server, "k") == before
    else:
        assert reply[:3] == [3, 100, 97]
        assert stored(server, "k")["total"] == held
        assert ask(server, "SWLIMIT.REFUND", "k", 100, "AT", T + 1_100) == [held]


def test_record_dates_the_units_and_replies_as_of_now(server):
    record_units(server, {60: 1})
    command = "SWLIMIT.RECORD", *QUOTA, "COST", 4
    assert ask(server, *command, "AGE", 30, "AT", T + 61_000) == [4, 10, 5, 0, 64_000]
    assert counts(server) == {30: 4, 60: 1}
    # 6 more fit when 4 of then 11 are left: all 6 of T + 20 s are gone, and 1 of the 4 of T + 30 s.
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 6, "AGE", 40, "AT", T + 61_000) == [0, 10, 0, 30_250, 64_000]
    assert counts(server) == {20: 6, 30: 4, 60: 1}
    assert ask(server, "SWLIMIT.PEEK", *QUOTA, "COST", 6, "AT", T + 61_000 + 30_249)[0] == 0
    assert ask(server, "SWLIMIT.PEEK", *QUOTA, "COST", 6, "AT", T + 61_000 + 30_250)[0] == 6


def test_record_of_the_trailing_subinterval_weighs_what_is_left_of_it(server):
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 10, "AGE", "1m", "AT", T + 62_500) == [10, 10, 5, 0, 2_500]
    assert counts(server) == {0: 10}


@pytest.mark.parametrize("before, age", [({}, "65s"), ({0: 1}, "65s"), ({60: 1}, "1m 6s"), ({120: 1}, "5001ms")])
def test_record_of_units_too_old_to_matter_is_dropped(server, before, age):
    record_units(server, before)
    age = age.replace("1m 6s", "66s")
    asked = *QUOTA, "COST", 11
    with unchanged(server):
        assert ask(server, "SWLIMIT.RECORD", *asked, "AGE", age, "AT", T + 65_000) == ask(
            server, "SWLIMIT.PEEK", *asked, "AT", T + 65_000)


def test_ages_in_transactions(server):
    lines = feed(server, "MULTI", f"SWLIMIT.RECORD k 10 60 5 COST 3 AGE 20 AT {T + 30_000}",
                 f"SWLIMIT.RECORD k 10 60 5 COST 2 AT {T + 30_000}", f"SWLIMIT.REFUND k 4 AGE 20 AT {T + 30_000}",
                 "EXEC")
    assert numbers(" ".join(lines[4:])) == [3, 10, 7, 0, 45_000, 2, 10, 5, 0, 65_000, 4]
    assert counts(server) == {30: 1}


# A job takes a lease of all units, holds it for a little longer than the window and gives it back; others take what
# they get, before and after. All times are those of a window of one second, times 3600: no key expires meanwhile.
SECOND = 3_600_000
HELD = 1_150 * 3_600
BRIEFLY = 100 * 3_600
LATE = 1_100 * 3_600


def lease(server, position, resolution, options, back, held=HELD, late=0):
    """When others were granted how many units, around a lease that begins at this position (in ms) of a second.

    Its refund, with the options `back`, is held up on its way for so many ms.
    """
    key, begin = f"lease:{position}", T + position * 3_600
    quota = key, 10, f"{SECOND}ms", f"{resolution}ms"
    back = [begin if word == "BEGIN" else word for word in back]
    ats = [begin + ms * 3_600 for ms in range(1_100, 1_250 + late // 3_600, 5)]
    greedy = [["SWLIMIT.ALLOW", *quota, "COST", 10, "PARTIAL", *options, "AT", at] for at in ats]
    returned = sum(at < begin + held + late for at in ats)
    greedy.insert(returned, ["SWLIMIT.REFUND", key, 10, *back, "AT", begin + held + late])
    first, *replies = batch(server, [["SWLIMIT.ALLOW", *quota, "COST", 10, *options, "AT", begin], *greedy])
    assert numbers(first)[0] == 10
    del replies[returned]
    return [(at, numbers(reply)[0]) for at, reply in zip(ats, replies)]


def most(grants, span):
    granted = [grant for grant in grants if grant[1]]
    return max((sum(units for at, units in granted if first <= at < first + span) for first, _ in granted), default=0)


POSITIONS = range(0, 1_000, 50)
AGES = [("AGE", f"{HELD}ms"), ("AGE", f"{HELD + 50 * 3_600}ms")]  # true, and overstated


def test_without_an_age_a_lease_takes_away_others_units(server):
    found = max(most(lease(server, position, SECOND, (), ()), 60 * 3_600) for position in POSITIONS)
    assert found == 20


@pytest.mark.parametrize("back", AGES, ids=["true", "overstated"])
@pytest.mark.parametrize("resolution", [SECOND, SECOND // 10])
def test_with_its_age_a_lease_never_lets_more_through_than_the_window_does(server, resolution, back):
    """With one subinterval, 60 ms of a second have room for 60/1000 more than the limit, which is less than a unit;
    with more of them, W - R has room for the limit. STRICT: so has W."""
    span = max(60 * 3_600, SECOND - resolution)
    assert max(most(lease(server, position, resolution, (), back), span) for position in POSITIONS) == 10
    server.cli("FLUSHALL")
    strictly = [most(lease(server, position, resolution, ("STRICT",), back), SECOND) for position in POSITIONS]
    assert max(strictly) <= 10


def test_an_age_that_was_true_when_it_was_sent_takes_away_others_units(server):
    back = "AGE", f"{BRIEFLY}ms"
    strictly = [most(lease(server, position, SECOND // 10, ("STRICT",), back, BRIEFLY, LATE), SECOND)
                for position in POSITIONS]
    assert max(strictly) == 20


@pytest.mark.parametrize("held", [BRIEFLY, HELD])
@pytest.mark.parametrize("late", [0, 1, SECOND // 2, LATE, 3 * SECOND])
@pytest.mark.parametrize("resolution", [SECOND, SECOND // 10])
def test_with_its_instant_a_lease_never_lets_more_through_however_late_it_comes(server, resolution, late, held):
    back = "SINCE", "BEGIN"
    positions = POSITIONS[::3]  # in the middle of a subinterval, too
    grants = [lease(server, position, resolution, ("STRICT",), back, held, late) for position in positions]
    assert max(most(each, SECOND) for each in grants) <= 10


def test_with_its_age_a_lease_never_lets_more_through_by_the_clock(server):
    """The same, once, in real time, begun late in a second. Grants are only as close together as they surely were."""
    def now():
        return time.time() * 1_000

    quota = "k", 10, "1s", "1s"
    grants = []
    with Connection(server.port) as connection:
        time.sleep((1_900 - now()) % 1_000 / 1_000)
        begin = now()
        assert connection.call("SWLIMIT.ALLOW", *quota, "COST", 10)[0] == 10
        time.sleep(1)
        back = False
        while (elapsed := now() - begin) < 1_250:
            if elapsed >= 1_150 and not back:
                back = connection.call("SWLIMIT.REFUND", "k", 10, "AGE", f"{int(elapsed) + 10}ms") is not None
            before = now()
            units = connection.call("SWLIMIT.ALLOW", *quota, "COST", 10, "PARTIAL")[0]
            grants.append((before, now(), units))
    assert sum(units for *_, units in grants) > 0
    for first, _, _ in grants:
        assert sum(units for before, after, units in grants if before >= first and after <= first + 60) <= 10
