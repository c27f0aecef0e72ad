"""What ALLOW and PEEK decide: the formulas of the window, worked out by hand."""

import itertools
import random
import time

import pytest

from support.bounds import MAX, T
from support.cli import ask, batch, numbers, stored


def test_the_first_request_is_granted(server):
    assert ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5, "AT", T) == [1, 10, 9, 0, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5, "AT", T + 1_234) == [1, 10, 8, 0, 65_000 - 1_234]
    assert stored(server, "k")["counts"] == {T: 2}


def test_without_at_the_server_clock_decides(server):
    before = time.time() * 1000
    assert ask(server, "SWLIMIT.ALLOW", "k", 3, 4, "1ms", "COST", 2)[:4] == [2, 3, 1, 0]
    after = time.time() * 1000
    assert before - 5 <= stored(server, "k")["newest"] <= after + 5


def test_a_denied_request_is_granted_when_the_reply_says_so_by_the_server_clock(server):
    assert ask(server, "SWLIMIT.ALLOW", "k", 1, "200ms", "10ms")[0] == 1
    granted, _, _, retry_after, reset_after = ask(server, "SWLIMIT.ALLOW", "k", 1, "200ms", "10ms")
    assert granted == 0 and 0 < retry_after <= reset_after <= 210
    time.sleep((retry_after + 1) / 1000)
    assert ask(server, "SWLIMIT.ALLOW", "k", 1, "200ms", "10ms")[0] == 1


@pytest.mark.parametrize("elapsed, remaining", [
    (0, 0), (1, 0), (5_999, 0), (6_000, 1), (6_001, 1), (11_999, 1), (12_000, 2), (30_000, 5), (53_999, 8), (54_000, 9),
    (59_999, 9), (60_000, 10),
])
def test_the_trailing_subinterval_weighs_less_from_ms_to_ms(server, elapsed, remaining):
    ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 60, "COST", 10, "AT", T + 59_999)
    at = T + 60_000 + elapsed
    peek = "SWLIMIT.PEEK", "k", 10, 60, 60, "AT", at
    assert ask(server, *peek)[2] == remaining
    assert ask(server, *peek, "STRICT")[2] == (10 if elapsed == 60_000 else 0)
    assert ask(server, *peek, "COST", remaining + 1)[0] == 0
    assert ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 60, "AT", at, "COST", remaining or 1)[0] == remaining


@pytest.mark.parametrize("after, estimate", [
    (0, 4), (4_999, 4), (5_000, 7), (10_000, 7), (10_001, 7), (11_249, 7), (11_250, 6), (12_500, 5), (12_501, 5),
    (13_750, 4), (14_999, 4), (15_000, 3), (16_666, 3), (16_667, 2), (19_999, 1), (20_000, 0),
])
def test_whole_and_trailing_subintervals_add_up(server, after, estimate):
    """4 units in the first of two subintervals, 3 in the second; the estimate rounded up to whole units."""
    ask(server, "SWLIMIT.ALLOW", "k", 100, 10, 5, "COST", 4, "AT", T)
    if after >= 5_000:
        ask(server, "SWLIMIT.ALLOW", "k", 100, 10, 5, "COST", 3, "AT", T + 5_000)
    assert ask(server, "SWLIMIT.PEEK", "k", 100, 10, 5, "AT", T + after)[2] == 100 - estimate


def test_weights_are_exact_for_the_largest_counts(server):
    """Neither floats nor 64 bits hold 2^53 · R."""
    units = MAX - 3 * 10**15
    week = 7 * 86_400_000
    at = T // week * week
    ask(server, "SWLIMIT.RECORD", "k", MAX, "7d", "7d", "COST", units, "AT", at)
    for elapsed in (1, 86_399_999, 123_456_789, week // 2, week - 1):
        weighted = -(-units * (week - elapsed) // week)
        quota = "k", MAX, "7d", "7d", "AT", at + week + elapsed
        assert ask(server, "SWLIMIT.PEEK", *quota, "COST", MAX - weighted + 1)[:3] == [0, MAX, MAX - weighted]
        assert ask(server, "SWLIMIT.PEEK", *quota, "COST", MAX // 10)[:1] == [MAX // 10]


RETRIES = [  # limit, options, retry_after at T + 1000 with 10 units counted in [T, T + 5000), W = 60 s, R = 5 s
    (10, (), 59_500),  # 10 · (R - e) / R ≤ 9 from e = 500 on, counted from T + 60 s
    (10, ("COST", 3), 60_500),
    (10, ("COST", 10), 64_000),
    (10, ("COST", 11), -1),
    (10, ("COST", 8, "PARTIAL"), 59_500),
    (10, ("COST", 11, "PARTIAL"), 59_500),
    (10, ("STRICT",), 64_000),
    (10, ("STRICT", "COST", 8, "PARTIAL"), 64_000),
    (5, (), 62_000),
    (3, ("COST", 3), 64_000),
    (3, ("COST", 4), -1),
    (1, ("PARTIAL",), 64_000),
    (0, (), -1),
    (0, ("PARTIAL",), -1),
]


@pytest.mark.parametrize("limit, options, retry_after", RETRIES)
@pytest.mark.parametrize("command", ["ALLOW", "PEEK"])
def test_retry_after_is_exact(server, command, limit, options, retry_after):
    def denied(at):
        reply = ask(server, f"SWLIMIT.{command}", "k", limit, 60, 5, *options, "AT", at)
        assert reply[1] == limit
        return not reply[0]

    ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 10, "AT", T)
    reply = ask(server, f"SWLIMIT.{command}", "k", limit, 60, 5, *options, "AT", T + 1_000)
    assert reply == [0, limit, 0, retry_after, 64_000]
    if retry_after == -1:
        assert denied(T + 1_000_000)
    else:
        assert denied(T + 1_000 + retry_after - 1)
        assert not denied(T + 1_000 + retry_after)


def test_retry_after_waits_for_as_many_subintervals_as_it_takes(server):
    """3 units each in 4 subintervals of 1 s; 10 of 12 need the first three gone and a third of the last."""
    for second in range(4):
        ask(server, "SWLIMIT.ALLOW", "k", 12, 4, 1, "COST", 3, "AT", T + second * 1_000)
    # 12 - 10 = 2 units may stay: the fourth's 3 weigh 2 when a third (334 ms) of the second after T + 7 s is over.
    assert ask(server, "SWLIMIT.ALLOW", "k", 12, 4, 1, "COST", 10, "AT", T + 3_500) == [0, 12, 0, 3_834, 4_500]
    assert ask(server, "SWLIMIT.PEEK", "k", 12, 4, 1, "COST", 10, "AT", T + 7_333)[0] == 0
    assert ask(server, "SWLIMIT.ALLOW", "k", 12, 4, 1, "COST", 10, "AT", T + 7_334)[:3] == [10, 12, 0]


def test_partial_grants_what_fits(server):
    quota = "k", 10, 60, 5
    assert ask(server, "SWLIMIT.ALLOW", *quota, "COST", 4, "PARTIAL", "AT", T) == [4, 10, 6, 0, 65_000]
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 20, "PARTIAL", "AT", T) == [6, 10, 6, 0, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", *quota, "COST", 7, "AT", T) == [0, 10, 6, 60_000 + 1_250, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", *quota, "COST", MAX, "PARTIAL", "AT", T) == [6, 10, 0, 0, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", *quota, "COST", 2, "PARTIAL", "AT", T) == [0, 10, 0, 60_500, 65_000]
    assert stored(server, "k")["counts"] == {T: 10}


def test_peek_answers_as_allow_and_counts_nothing(server):
    quota = "k", 10, 60, 5
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 3, "AT", T) == [3, 10, 10, 0, 0]
    assert server.cli("EXISTS", "k") == "0"
    ask(server, "SWLIMIT.ALLOW", *quota, "COST", 3, "AT", T)
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 7, "AT", T + 4_000) == [7, 10, 7, 0, 61_000]
    # 3 units weigh 2 when a third of T + 60 s … T + 65 s is over, rounded up to whole ms.
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 8, "AT", T + 4_000) == [0, 10, 7, 56_000 + 1_667, 61_000]
    assert stored(server, "k")["counts"] == {T: 3}


def test_options_in_any_order_and_letter_case(server):
    options = [("COST", 7), ("PARTIAL",), ("STRICT",), ("AT", T + 61_000)]
    spellings = [str.upper, str.lower, str.title]
    commands = []
    for number, order in enumerate(itertools.permutations(options)):
        words = [spellings[number % 3](str(word)) for option in order for word in option]
        commands += [["SWLIMIT.ALLOW", number, 10, 60, 5, "COST", 6, "AT", T],
                     ["swlimit.allow", number, 10, 60, 5, *words],
                     ["SWLIMIT.PEEK", number, 10, 60, 5, *words],
                     ["Swlimit.Record", number, 10, 60, 5, *(word for word in words if word.upper() != "PARTIAL")]]
    replies = [numbers(reply) for reply in batch(server, commands)]
    # STRICT holds the 6 units until T + 65 s: 4 fit; afterwards none do; 7 more are recorded.
    expected = [[6, 10, 4, 0, 65_000], [4, 10, 0, 0, 64_000], [0, 10, 0, 4_000, 64_000], [0, 10, 0, 64_000, 64_000]]
    assert replies == expected * 24


def test_a_clock_that_steps_back_counts_at_the_newest_instant(server):
    quota = "k", 10, 60, 5
    ask(server, "SWLIMIT.ALLOW", *quota, "COST", 4, "AT", T + 60_000)
    assert ask(server, "SWLIMIT.ALLOW", *quota, "COST", 3, "AT", T + 7_000) == [3, 10, 3, 0, 118_000]
    assert stored(server, "k")["counts"] == {T + 60_000: 7}
    # 7 units and a cost of 6: from 4 units on, 3/7 of R after T + 120 s.
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 6, "AT", 0) == [0, 10, 3, T + 120_000 + 2_143, T + 125_000]
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 6, "AT", T + 122_142)[0] == 0
    assert ask(server, "SWLIMIT.PEEK", *quota, "COST", 6, "AT", T + 122_143)[0] == 6


def test_the_limit_is_an_argument_and_not_state(server):
    ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 8, "AT", T)
    assert ask(server, "SWLIMIT.ALLOW", "k", 5, 60, 5, "AT", T) == [0, 5, 0, 62_500, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", "k", 0, 60, 5, "AT", T) == [0, 0, 0, -1, 65_000]
    assert ask(server, "SWLIMIT.ALLOW", "k", 20, 60, 5, "AT", T) == [1, 20, 11, 0, 65_000]
    assert ask(server, "SWLIMIT.PEEK", "k", MAX, 60, 5, "AT", T)[:3] == [1, MAX, MAX - 9]


def test_a_limit_of_zero_admits_nothing_and_makes_no_key(server):
    assert ask(server, "SWLIMIT.ALLOW", "k", 0, 60, 5, "AT", T) == [0, 0, 0, -1, 0]
    assert ask(server, "SWLIMIT.ALLOW", "k", 2, 60, 5, "COST", 3, "AT", T) == [0, 2, 2, -1, 0]
    assert server.cli("EXISTS", "k") == "0"


@pytest.mark.parametrize("window, resolution, milliseconds", [
    ("60", "5", (60_000, 5_000)), ("60s", "5S", (60_000, 5_000)), ("1m", "5000ms", (60_000, 5_000)),
    ("2M", "1M", (120_000, 60_000)), ("1h", "60m", (3_600_000, 3_600_000)), ("7D", "1H", (604_800_000, 3_600_000)),
    ("250MS", "50Ms", (250, 50)), ("1ms", "1ms", (1, 1)), ("3650d", "3650D", (315_360_000_000, 315_360_000_000)),
    ("315360000", "1d", (315_360_000_000, 86_400_000)), ("0060", "05", (60_000, 5_000)),
    ("4096ms", "1ms", (4_096, 1)),
])
def test_durations(server, window, resolution, milliseconds):
    length, part = milliseconds
    start = T // part * part
    assert ask(server, "SWLIMIT.ALLOW", "first ms", 5, window, resolution, "AT", start)[4] == length + part
    assert ask(server, "SWLIMIT.ALLOW", "last ms", 5, window, resolution, "AT", start + part - 1)[4] == length + 1


def test_any_bytes_make_a_key(server):
    keys = [b"\xff\xfe\x00\r\n", b"", b"\n", "\u2603".encode(), b"a b", b"x" * 10_000]
    replies = batch(server, [["SWLIMIT.ALLOW", key, 5, 60, 5, "COST", number + 1, "AT", T]
                             for number, key in enumerate(keys)]
                            + [["SWLIMIT.REFUND", key, 9, "AT", T] for key in keys])
    assert [numbers(reply)[0] for reply in replies] == [1, 2, 3, 4, 5, 0] + [1, 2, 3, 4, 5, 0]
    assert server.cli("DBSIZE") == "0"


def test_memory_grows_with_grants_and_not_with_subintervals_or_requests(server):
    def held():
        return len(stored(server, "k")["counts"]), stored(server, "k")["memory"]

    batch(server, [["SWLIMIT.ALLOW", "k", 5, "1h", 1, "AT", T + second * 1_000] for second in range(300)])
    subintervals, memory = held()
    assert subintervals == 5 and memory < 200
    batch(server, [["SWLIMIT.ALLOW", "k", MAX, 10, 1, "COST", 1_000, "AT", T + 10**6 + ms * 50] for ms in range(1_000)])
    subintervals, memory = held()
    assert subintervals == 11 and memory < 400


@pytest.mark.parametrize("options", [(), ("STRICT",), ("PARTIAL",), ("STRICT", "PARTIAL")], ids=" ".join)
def test_no_span_sees_more_than_is_promised(server, options):
    """Without STRICT, L in any span of W - R and 2 L in any of W; with STRICT, L in any of W."""
    draw = random.Random(7)
    limit, window, resolution = 20, 1_000, 100
    at, commands = T, []
    for _ in range(1_500):
        at += draw.choice([0, 1, 3, 20, draw.randint(0, 300)])
        commands.append(["SWLIMIT.ALLOW", "k", limit, "1s", "100ms", "COST", draw.randint(1, 6), "AT", at, *options])
    replies = batch(server, commands)
    granted = [(words[words.index("AT") + 1], numbers(reply)[0]) for words, reply in zip(commands, replies)]
    assert sum(units > 0 for _, units in granted) > 200 and any(units == 0 for _, units in granted)

    def most(span):
        return max(sum(units for later, units in granted if at <= later < at + span) for at, _ in granted)

    if "STRICT" in options:
        assert most(window) == limit
    else:
        assert most(window - resolution) <= limit < most(window + resolution) and most(window) <= 2 * limit
