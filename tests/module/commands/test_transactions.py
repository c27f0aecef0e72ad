"""The commands inside of MULTI and scripts, and what they do to a WATCH."""

import pytest

from support.bounds import T
from support.cli import ask, feed, numbers, stored

QUOTA = "k 3 60 5"
ALLOW = f"SWLIMIT.ALLOW {QUOTA} AT {T}"


def test_in_a_transaction(server):
    lines = feed(server, "MULTI", f"{ALLOW} COST 2", f"{ALLOW} COST 2", f"SWLIMIT.RECORD {QUOTA} COST 5 AT {T}",
                 f"SWLIMIT.REFUND k 6 AT {T}", f"SWLIMIT.PEEK {QUOTA} AT {T}", "EXEC")
    # The denied ALLOW asks for 2: 1 may stay of 2, half. The record asks for 5, never possible with a limit of 3.
    assert lines[:6] == ["OK"] + ["QUEUED"] * 5
    assert numbers(" ".join(lines[6:])) == [2, 3, 1, 0, 65_000, 0, 3, 1, 62_500, 65_000, 0, 3, 0, -1, 65_000, 6,
                                            1, 3, 2, 0, 65_000]


def test_a_transaction_goes_on_after_an_error(server):
    lines = feed(server, "MULTI", "SET s 1", "SWLIMIT.ALLOW s 3 60 5", "SWLIMIT.ALLOW k 3 60 7", ALLOW, "EXEC")
    assert lines[5] == "OK" and lines[6].startswith("WRONGTYPE") and lines[7].startswith("ERR resolution")
    assert stored(server, "k")["total"] == 1


def test_a_wrong_number_of_arguments_aborts_a_transaction(server):
    assert feed(server, "MULTI", ALLOW, "SWLIMIT.ALLOW k 3", "EXEC")[-1].startswith("EXECABORT")
    assert server.cli("EXISTS", "k") == "0"


def test_in_a_script(server):
    script = """
        local allow = redis.call('SWLIMIT.ALLOW', KEYS[1], 3, 60, 5, 'COST', 2, 'AT', ARGV[1])
        local denied = redis.call('SWLIMIT.ALLOW', KEYS[1], 3, 60, 5, 'COST', 2, 'AT', ARGV[1])
        local refunded = redis.call('SWLIMIT.REFUND', KEYS[1], 1, 'AT', ARGV[1])
        return {allow, denied, refunded}
    """
    assert ask(server, "EVAL", script, 1, "k", T) == [2, 3, 1, 0, 65_000, 0, 3, 1, 62_500, 65_000, 1]
    assert stored(server, "k")["counts"] == {T: 1}


@pytest.fixture
def frozen_clock(release):
    if not release.at_least(redis=(7, 2)):
        pytest.skip("the server offers modules no clock that stands still before Redis 7.2")


@pytest.mark.usefixtures("frozen_clock")
def test_the_clock_stands_still_in_a_transaction(server):
    allow = "SWLIMIT.ALLOW k 10 1s 1ms"
    feed(server, "MULTI", allow, "DEBUG SLEEP 0.02", allow, "EXEC")
    assert list(stored(server, "k")["counts"].values()) == [2]
    feed(server, allow, "DEBUG SLEEP 0.02", allow)
    assert len(stored(server, "k")["counts"]) == 3


@pytest.mark.usefixtures("frozen_clock")
def test_the_clock_stands_still_in_a_script(server):
    script = """
        local function allow() redis.call('SWLIMIT.ALLOW', KEYS[1], 10, '1s', '1ms') end
        local start = os.clock()
        allow()
        repeat until os.clock() > start + 0.02
        allow()
    """
    server.cli("EVAL", script, 1, "k")
    assert list(stored(server, "k")["counts"].values()) == [2]


READ_ONLY = "return redis.call('SWLIMIT.{}', KEYS[1], 3, 60, 5, 'AT', ARGV[1])"


@pytest.mark.parametrize("start, header", [("EVAL_RO", ""), ("EVAL", "#!lua flags=no-writes\n")])
def test_in_read_only_scripts(server, start, header):
    feed(server, ALLOW)
    assert ask(server, start, header + READ_ONLY.format("PEEK"), 1, "k", T) == [1, 3, 2, 0, 65_000]
    for command in ("ALLOW", "RECORD"):
        assert "rite commands are not allowed from read-only scripts" in server.cli(
            start, header + READ_ONLY.format(command), 1, "k", T)
    assert ask(server, start, f"{header}return #redis.call('SWLIMIT.INFO', KEYS[1])", 1, "k") == [18]
    assert stored(server, "k")["total"] == 1


def watched(server, *lines):
    """Whether a transaction goes through although these commands came after its WATCH."""
    return feed(server, "WATCH k", *lines, "MULTI", "PING", "EXEC")[-1] == "PONG"


@pytest.mark.parametrize("harmless", [
    f"SWLIMIT.PEEK {QUOTA} AT {T}", f"{ALLOW} COST 3", f"{ALLOW} COST 4 STRICT", f"SWLIMIT.RECORD {QUOTA} AT 0",
    f"SWLIMIT.ALLOW k 2 1h 1m AT {T}", "SWLIMIT.ALLOW k 3 60 7", "SWLIMIT.REFUND missing 1",
    f"SWLIMIT.REFUND k 1 AT {T + 65_000}", "SWLIMIT.UNBLOCK k", "SWLIMIT.INFO k",
    f"SWLIMIT.MALLOW 2 other k 5 60 5 1 3 60 5 3 AT {T}",
])
def test_what_counts_nothing_leaves_a_watch_alone(server, harmless):
    feed(server, f"{ALLOW} COST 2")
    assert watched(server, harmless)
    assert stored(server, "k")["counts"] == {T: 2}


@pytest.mark.parametrize("change", [
    ALLOW, f"{ALLOW} COST 9 PARTIAL", f"SWLIMIT.RECORD {QUOTA} COST 9 AT {T}",
    f"SWLIMIT.RECORD {QUOTA} AT {T - 60_000}", f"SWLIMIT.REFUND k 1 AT {T}", "SWLIMIT.BLOCK k 60",
    f"SWLIMIT.MALLOW 2 other k 5 60 5 1 3 60 5 1 AT {T}",
])
def test_what_counts_is_noticed_by_a_watch(server, change):
    feed(server, f"{ALLOW} COST 2")
    assert not watched(server, change)


def test_the_first_grant_is_noticed_by_a_watch_of_the_missing_key(server):
    assert watched(server, f"{ALLOW} COST 4")
    assert not watched(server, ALLOW)
