"""A key expires when its last count can no longer matter, relative to the instant of the command."""

import pytest

from support.bounds import T
from support.cli import ask, batch, stored
from support.contents import unchanged
from support.waiting import eventually

QUOTA = "k", 10, 60, 5


def expires_in(server, milliseconds, key="k"):
    """Whether the key has that long to live; a busy machine gets a second."""
    return milliseconds - 1_000 < ask(server, "PTTL", key)[0] <= milliseconds


def expires_at(server, key="k"):
    return ask(server, "PEXPIRETIME", key)[0]


@pytest.mark.parametrize("command", [("SWLIMIT.ALLOW", *QUOTA), ("SWLIMIT.RECORD", *QUOTA),
                                     ("SWLIMIT.MALLOW", 1, *QUOTA, 1)], ids=lambda command: command[0])
@pytest.mark.parametrize("into", [0, 1, 4_999])
def test_a_new_key_lives_until_its_count_no_longer_matters(server, command, into):
    ask(server, *command, "AT", T + into)
    assert expires_in(server, 65_000 - into)


def test_by_the_server_clock(server):
    ask(server, "SWLIMIT.ALLOW", *QUOTA)
    assert abs(expires_at(server) - (stored(server, "k")["newest"] + 65_000)) < 1_000


@pytest.mark.parametrize("at", [0, T, 4_000_000_000_000, 2**53 - 1])
def test_any_instant_makes_a_key_that_lives_as_long(server, at):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", at)
    assert expires_in(server, 65_000 - at % 5_000)


def test_only_a_new_subinterval_sets_it_again(server):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T)
    first = expires_at(server)
    for command in ("ALLOW", "RECORD"):
        ask(server, f"SWLIMIT.{command}", *QUOTA, "AT", T + 4_000)
    assert expires_at(server) == first
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T + 33_000)
    assert expires_in(server, 62_000)
    second = expires_at(server)
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T + 1_000)  # a clock that stepped back
    ask(server, "SWLIMIT.RECORD", *QUOTA, "AT", T + 1_000)  # a late record
    assert expires_at(server) == second


@pytest.mark.parametrize("window, resolution, at, milliseconds", [
    ("2m", "5s", 7_000, 123_000), ("60s", "20s", 7_000, 73_000), ("10s", "5s", 7_000, 13_000),
    ("2m", "60s", 0, 180_000),
])
def test_another_geometry_sets_it_again(server, window, resolution, at, milliseconds):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T + 6_000)
    before = expires_at(server)
    assert ask(server, "SWLIMIT.PEEK", "k", 10, window, resolution, "AT", T + at)[0] == 1
    assert ask(server, "SWLIMIT.ALLOW", "k", 1, window, resolution, "AT", T + at)[0] == 0
    assert expires_at(server) == before
    ask(server, "SWLIMIT.ALLOW", "k", 10, window, resolution, "AT", T + at)
    assert expires_in(server, milliseconds)


def test_denials_and_peeks_leave_it(server):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 10, "AT", T)
    before = expires_at(server)
    for command in ("ALLOW", "PEEK"):
        assert ask(server, f"SWLIMIT.{command}", *QUOTA, "COST", 9, "AT", T + 20_000)[0] == 0
    assert expires_at(server) == before


def test_refunds_of_the_newest_subinterval_shorten_it(server):
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T + 22_000)
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 2, "AT", T + 60_000)
    before = expires_at(server)
    ask(server, "SWLIMIT.REFUND", "k", 1, "AT", T + 61_000)
    assert expires_at(server) == before
    ask(server, "SWLIMIT.REFUND", "k", 1, "AT", T + 61_000)
    assert expires_in(server, 24_000)  # newest is T + 20 s


def test_keys_go_by_themselves(server):
    server.cli("SET", "other", "x")
    ask(server, "SWLIMIT.ALLOW", "k", 1, "100ms", "50ms")
    assert server.cli("EXISTS", "k") == "1"
    eventually(lambda: server.cli("DBSIZE"), "1")
    assert ask(server, "SWLIMIT.ALLOW", "k", 1, "100ms", "50ms")[0] == 1


LATER = 4_000_000_000_123
EFFECTS = [("k", f"c5000*12@{T}"), ("new", f"c5000*12@{T}"), ("k", f"r1@{T}"), ("k", f"b{T + 60_000}"),
           ("new", f"b{T + 60_000}"), ("k", f"u@{T}")]


@pytest.fixture
def blocked_key(server):
    """3 units and a block."""
    batch(server, [["SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T], ["SWLIMIT.BLOCK", "k", "1h", "AT", T]])


@pytest.mark.usefixtures("blocked_key")
@pytest.mark.parametrize("key, effect", EFFECTS)
def test_an_effect_says_when_a_key_expires(server, key, effect):
    assert ask(server, "SWLIMIT.APPLY", key, f"{effect}~{LATER}") == [1]
    assert expires_at(server, key) == LATER
    batch(server, [["DEL", "new", "k"], ["SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T],
                   ["SWLIMIT.BLOCK", "k", "1h", "AT", T]])
    ask(server, "SWLIMIT.APPLY", key, f"{effect}~0")
    assert expires_at(server, key) == -1
    assert ask(server, "EXISTS", key) == [1]


@pytest.mark.parametrize("effect, end", [
    (f"c5000*12@{LATER}", LATER - LATER % 5_000 + 65_000), (f"b{LATER}", LATER),
    (f"p{LATER}@{LATER - 5}", LATER), (f"hid>{LATER}#7@{T}", LATER)])
def test_the_own_end_of_a_value(server, effect, end):
    """Said, and of a new key; the expiry of another stays."""
    batch(server, [["SWLIMIT.APPLY", "k", effect], ["SWLIMIT.APPLY", "said", f"{effect}~0"]])
    assert (expires_at(server, "k"), expires_at(server, "said")) == (end, -1)
    batch(server, [["SWLIMIT.APPLY", "said", effect]])
    assert expires_at(server, "said") == -1
    batch(server, [["SWLIMIT.APPLY", "said", f"{effect}!"]])
    assert expires_at(server, "said") == end


@pytest.mark.usefixtures("blocked_key")
@pytest.mark.parametrize("key, effect", EFFECTS)
def test_an_expiry_that_has_passed_expires_the_key(server, key, effect):
    assert ask(server, "SWLIMIT.APPLY", key, f"{effect}~1") == [1]
    assert stored(server, key) is None
    eventually(lambda: server.cli("KEYS", "*").split(), sorted({"k"} - {key}))


@pytest.mark.usefixtures("blocked_key")
@pytest.mark.parametrize("key, effect", [
    ("k", f"c5000*12@{T - 100_000}"), ("k", f"r1@{T + 65_000}"), ("k", f"r1@{T}:{T - 3_600_000}"),
    ("missing", f"r1@{T}"), ("missing", f"u@{T}"), ("missing", f"na>{LATER}@{T}"), ("missing", f"ea@{T}")])
def test_an_effect_that_changes_nothing_leaves_the_expiry(server, key, effect):
    before = expires_at(server)
    with unchanged(server):
        assert ask(server, "SWLIMIT.APPLY", key, f"{effect}~{LATER}") == [0]
    assert expires_at(server) == before
