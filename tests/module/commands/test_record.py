"""RECORD counts whatever the limit says; REFUND gives back; INFO shows what is held."""

import json
import re

import pytest

from support.bounds import MAX, T
from support.cli import ask
from support.contents import unchanged
from support.seconds import QUOTA, counts, record_units


def test_record_within_the_limit_replies_as_allow(server):
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "AT", T) == [1, 10, 9, 0, 65_000]
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 9, "AT", T + 1) == [9, 10, 0, 0, 64_999]


def test_record_above_the_limit_counts_and_says_denied(server):
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 8, "AT", T) == [8, 10, 2, 0, 65_000]
    # 11 units afterwards; 3 more fit when 7 are left: from 4/11 of the second R on.
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T) == [0, 10, 0, 60_000 + 1_819, 65_000]
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 20, "AT", T) == [0, 10, 0, -1, 65_000]
    assert ask(server, "SWLIMIT.RECORD", "k", 0, 60, 5, "AT", T) == [0, 0, 0, -1, 65_000]
    assert counts(server) == {0: 32}


def test_retry_after_of_a_record_is_exact(server):
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 9, "AT", T)
    retry_after = ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 4, "AT", T + 5_000)[3]
    # 9 and 4 units; 4 more fit when 6 are left, 2 of the 9: from 7/9 of the subinterval after T + 60 s on.
    assert retry_after == 55_000 + 3_889
    assert ask(server, "SWLIMIT.PEEK", *QUOTA, "COST", 4, "AT", T + 5_000 + retry_after - 1)[0] == 0
    assert ask(server, "SWLIMIT.PEEK", *QUOTA, "COST", 4, "AT", T + 5_000 + retry_after)[0] == 4


def test_record_strict_counts_the_trailing_subinterval_whole(server):
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 8, "AT", T)
    at = T + 62_500  # 4 of the 8 are estimated to be left
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "STRICT", "AT", at) == [0, 10, 0, 2_500, 62_500]
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", at) == [3, 10, 0, 0, 62_500]


def test_late_records_count_in_their_own_subinterval(server):
    record_units(server, {60: 1})
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 2, "AT", T + 30_000) == [2, 10, 7, 0, 95_000]
    # newest - N is the subinterval of T: trailing, and still whole at the decision instant T + 60 s.
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T) == [3, 10, 4, 0, 125_000]
    # 5 more fit when 5 are left: the youngest and 4 of 7, from 3/7 of the subinterval after T + 90 s on.
    assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 5, "AT", T + 34_999) == [0, 10, 0, 57_144, 90_001]
    assert counts(server) == {0: 3, 30: 7, 60: 1}


def test_records_too_late_to_matter_are_dropped(server):
    record_units(server, {60: 4})
    with unchanged(server):
        assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 2, "AT", T - 1) == [2, 10, 6, 0, 125_001]
        assert ask(server, "SWLIMIT.PEEK", *QUOTA, "COST", 2, "AT", T - 1) == [2, 10, 6, 0, 125_001]
        assert ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 9, "AT", 0) == ask(
            server, "SWLIMIT.PEEK", *QUOTA, "COST", 9, "AT", 0)


def test_counts_too_old_to_matter_are_forgotten(server):
    record_units(server, {0: 1, 5: 2, 60: 4})
    assert counts(server) == {0: 1, 5: 2, 60: 4}
    record_units(server, {65: 8})
    assert counts(server) == {5: 2, 60: 4, 65: 8}
    record_units(server, {1_000: 1})
    assert counts(server) == {1_000: 1}


def test_record_up_to_the_largest_count_and_no_further(server):
    quota = "k", MAX, 60, 60
    assert ask(server, "SWLIMIT.RECORD", *quota, "COST", MAX, "AT", T) == [MAX, MAX, 0, 0, 120_000]
    with unchanged(server):
        for at in (T, T + 59_999, T + 60_000, T + 119_999):  # counted whole, then trailing
            assert server.cli("SWLIMIT.RECORD", *quota, "AT", at) == "ERR count would overflow"
    assert ask(server, "SWLIMIT.RECORD", *quota, "AT", T + 120_000) == [1, MAX, MAX - 1, 0, 120_000]


# Who asks for a limit near 2^53 - 1 could be granted more than the trailing and the full subintervals may hold.
@pytest.mark.parametrize("command", [
    ("SWLIMIT.ALLOW", "k", MAX, 60, 60), ("SWLIMIT.PEEK", "k", MAX, 60, 60),
    ("SWLIMIT.ALLOW", "k", MAX, 60, 60, "COST", 5, "PARTIAL"),
    ("SWLIMIT.MALLOW", 2, "other", "k", 10, 60, 60, 1, MAX, 60, 60, 1),
], ids=lambda command: command[0])
def test_grants_that_would_pass_the_largest_count(server, command):
    ask(server, "SWLIMIT.RECORD", "k", MAX, 60, 60, "COST", MAX, "AT", T)
    with unchanged(server):
        assert server.cli(*command, "AT", T + 90_000) == "ERR count would overflow"
    assert ask(server, "SWLIMIT.PEEK", "k", MAX, 60, 60, "COST", MAX, "AT", T + 90_000)[:3] == [0, MAX, MAX // 2]


@pytest.mark.parametrize("units, given, left", [
    (1, 1, {0: 3, 5: 4, 60: 4}), (5, 5, {0: 3, 5: 4}), (6, 6, {0: 3, 5: 3}), (9, 9, {0: 3}), (11, 11, {0: 1}),
    (12, 12, None), (MAX, 12, None),
])
@pytest.mark.parametrize("at", [T + 61_000, T + 59_999, 0])
def test_refund_gives_back_the_newest_units_first(server, units, given, left, at):
    record_units(server, {0: 3, 5: 4, 60: 5})
    assert ask(server, "SWLIMIT.REFUND", "k", units, "at", at) == [given]
    assert counts(server) == left
    assert server.cli("EXISTS", "k") == ("1" if left else "0")


def test_refund_deletes_a_key_whose_counts_no_longer_matter(server):
    record_units(server, {0: 3, 60: 5})
    assert ask(server, "SWLIMIT.REFUND", "k", 4, "AT", T + 65_000) == [4]
    assert counts(server) == {0: 3, 60: 1}
    assert ask(server, "SWLIMIT.REFUND", "k", 1, "AT", T + 65_000) == [1]
    assert server.cli("EXISTS", "k") == "0"


def test_refunded_units_can_be_granted_again(server):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 10, "AT", T)
    assert ask(server, "SWLIMIT.REFUND", "k", 4, "AT", T) == [4]
    assert ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 5, "AT", T)[:3] == [0, 10, 4]
    assert ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 4, "AT", T) == [4, 10, 0, 0, 65_000]


def test_refund_of_what_is_not_there(server):
    with unchanged(server):
        assert ask(server, "SWLIMIT.REFUND", "missing", 5) == [0]
        assert ask(server, "SWLIMIT.REFUND", "missing", MAX, "AT", 0) == [0]
        assert server.cli("EXISTS", "missing") == "0"


def test_info(server):
    record_units(server, {7: 2, 60: 3})
    shown = server.cli("SWLIMIT.INFO", "k").split("\n")
    names = ["window", "resolution", "subintervals", "newest", "total", "memory", "blocked", "since", "counts"]
    assert shown[0:18:2] == names
    assert shown[1:10:2] == ["60000", "5000", "12", str(T + 60_000), "5"]
    assert int(shown[11]) > 0
    assert shown[13:16:2] == ["0", "0"]
    assert shown[17:] == [str(T + 5_000), "2", str(T + 60_000), "3"]


def test_info_is_a_map_in_resp3_and_flat_in_resp2(server):
    record_units(server, {5: 2, 60: 3})
    found = json.loads(server.cli("SWLIMIT.INFO", "k", flags=["-3", "--json"]))
    assert found == {"window": 60_000, "resolution": 5_000, "subintervals": 12, "newest": T + 60_000, "total": 5,
                     "memory": found["memory"], "blocked": 0, "since": 0, "counts": [[T + 5_000, 2], [T + 60_000, 3]]}
    as_map = server.cli("SWLIMIT.INFO", "k", flags=["-3", "--no-raw"])
    assert as_map.startswith('1# "window" => (integer) 60000\n')
    flat = server.cli("SWLIMIT.INFO", "k", flags=["--no-raw"])
    assert flat.startswith(' 1) "window"\n 2) (integer) 60000\n 3) "resolution"\n')


@pytest.mark.parametrize("command, reply", [
    (("SWLIMIT.ALLOW", *QUOTA, "AT", T), [1, 10, 6, 0, 65_000]),
    (("SWLIMIT.PEEK", *QUOTA, "COST", 11, "AT", T), [0, 10, 7, -1, 65_000]),
    (("SWLIMIT.RECORD", *QUOTA, "AT", T), [1, 10, 6, 0, 65_000]),
    (("SWLIMIT.REFUND", "k", 2, "AT", T), 2),
    (("SWLIMIT.MALLOW", 1, *QUOTA, 1, "AT", T), [1, [1, 10, 6, 0, 65_000]]),
], ids=lambda words: words[0] if isinstance(words, tuple) else "")
def test_replies_are_integers_in_resp2_and_resp3(server, command, reply):
    for protocol in ([], ["-3"]):
        server.cli("DEL", "k")
        ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T)
        lines = server.cli(*command, flags=["--no-raw", *protocol]).split("\n")
        assert all("(integer) " in line for line in lines)
        assert [line.split("(integer) ")[1] for line in lines] == re.findall(r"-?\d+", json.dumps(reply))
    server.cli("DEL", "k")
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T)
    assert json.loads(server.cli(*command, flags=["--json"])) == reply
