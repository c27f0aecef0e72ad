"""One decision of everything: words, errors, effects, and that a settlement happens once."""

import pytest

from support import aof
from support.bounds import MAX, T
from support.cli import WRONGTYPE
from support.contents import digest, statistics, unchanged
from support.holding_workload import answers

pytestmark = pytest.mark.as_run
HOUR = 3_600_000
ALL = ["SWLIMIT.ADMIT", 3, "h", "r", "b", "HOLD", 5, "1h", "id", 1, "RATE", 10, "1h", "1h", 4, "BUDGET", 9, T + HOUR, 3]


def ask(server, *words):
    reply, = answers(server, [words])
    return reply


@pytest.mark.parametrize("words, error", [
    ("ADMIT 0 k RATE 1 60 5 1", "ERR numkeys must be a positive integer that matches the keys given"),
    ("ADMIT 01 k RATE 1 60 5 1", "ERR numkeys must be a positive integer that matches the keys given"),
    ("ADMIT 65 k RATE 1 60 5 1", "ERR numkeys must be a positive integer that matches the keys given"),
    ("ADMIT 2 k l RATE 1 60 5 1", "ERR numkeys must be a positive integer that matches the keys given"),
    ("ADMIT 1 k RATE 1 60", "ERR wrong number of arguments for 'swlimit.admit' command"),
    ("ADMIT 1 k RATE 1 60 5", "ERR syntax error near 'RATE'"),
    ("ADMIT 2 k l RATE 1 60 5 1 HOLD 5 60", "ERR syntax error near 'HOLD'"),
    ("ADMIT 1 k PACE 1 60 5 1", "ERR syntax error near 'PACE'"),
    ("ADMIT 1 k RATE 1 60 5 1 RATE 1 60 5 1", "ERR syntax error near 'RATE'"),
    ("ADMIT 1 k RATE 1 60 7 1", "ERR resolution must divide the window evenly"),
    ("ADMIT 1 k RATE 1 60 5 0", f"ERR cost must be an integer between 1 and {MAX}"),
    ("ADMIT 1 k HOLD 1 0 a 1", "ERR ttl must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (f"ADMIT 1 k HOLD 1 60 {'x' * 129} 1", "ERR id must be 1 to 128 bytes"),
    (f"ADMIT 1 k HOLD 1 60 a 1 AT {2**53 - 1}", "ERR AT must be a Unix time in milliseconds"),
    (f"ADMIT 1 k BUDGET 1 {T} 1 AT {T}",
     "ERR until must be a Unix time in milliseconds after now, at most 3650 days"),
    ("ADMIT 2 k k RATE 1 60 5 1 RATE 1 60 5 1", "ERR key named twice"),
    ("SETTLE 2 k k id 5", "ERR key named twice"),
    ("SETTLE 2 k l id", "ERR numkeys must be a positive integer that matches the keys given"),
    ("SETTLE 2 k l id x", f"ERR used must be an integer between 0 and {MAX}"),
    ("SETTLE 1 k id 5", "ERR syntax error near '5'"),
])
def test_errors_change_nothing(server, words, error):
    name, *rest = words.split()
    with unchanged(server):
        assert server.cli(f"SWLIMIT.{name}", *rest) == error


def test_all_or_nothing(server):
    answers(server, [["SWLIMIT.BUDGET", "b", 9, T + HOUR, "COST", 7, "AT", T]])
    before = digest(server)
    assert ask(server, *ALL, "AT", T) == [
        0, [1, 5, 5, 0, 0, 0], [4, 10, 10, 0, 0], [0, 9, 2, HOUR, HOUR]]
    assert digest(server) == before
    assert ask(server, *ALL, "AT", T + HOUR) != before  # the end has passed: an error
    assert server.cli("EXISTS", "h", "r") == "0"


def test_once_more_with_the_same_id(server):
    granted = [1, [1, 5, 4, 0, HOUR, T * 1_000], [4, 10, 6, 0, 2 * HOUR], [3, 9, 6, 0, HOUR]]
    assert ask(server, *ALL, "AT", T) == granted
    assert ask(server, *ALL, "AT", T) == granted
    answers(server, [["SWLIMIT.RECORD", "r", 9, "1h", "1h", "COST", 20, "AT", T], ["SWLIMIT.BLOCK", "r", "1h", "AT", T],
                     ["SWLIMIT.BUDGET", "b", 9, T + HOUR, "COST", 20, "FORCE", "AT", T]])
    assert ask(server, *ALL, "AT", T) == [1, granted[1], [4, 10, 0, 0, 2 * HOUR], [3, 9, 0, 0, HOUR]]
    others = [*ALL]
    others[14] = 5
    with unchanged(server):
        assert str(ask(server, *others, "AT", T)) == "id holds other reservations"
        alone = ask(server, "SWLIMIT.ADMIT", 1, "h", "HOLD", 5, "1h", "id", 1, "AT", T)
        assert str(alone) == "id holds other reservations"


def test_a_settlement_happens_once(server):
    assert ask(server, *ALL, "AT", T)[0] == 1
    assert ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 1, 5, "AT", T + 5) == [1, -3, 2]
    with unchanged(server):
        assert ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 1, 5, "AT", T + 5) == [0]
    assert ask(server, "SWLIMIT.PEEK", "r", 10, "1h", "1h", "AT", T + 5)[2] == 9
    assert ask(server, "SWLIMIT.BUDGET", "b", 9, T + HOUR, "COST", 9, "AT", T + 5)[2] == 4
    assert ask(server, *ALL, "AT", T + 6)[0] == 1  # settled: the id is new
    with unchanged(server):
        assert str(ask(server, "SWLIMIT.SETTLE", 2, "h", "r", "id", 1, "AT", T + 7)) == (
            "keys are not those of the reservation")
        too_much = ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", MAX, MAX, "AT", T + 7)
        assert str(too_much) == "count would overflow"
    server.cli("SET", "b", "x")
    with unchanged(server):
        assert server.cli("SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 1, 5, "AT", T + 7) == WRONGTYPE


def test_effects_are_one_transaction(start):
    server = start(options={"appendonly": "yes", "appendfsync": "always"})
    ask(server, *ALL, "AT", T)
    ask(server, *ALL, "AT", T + 5)
    ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 1, 5, "AT", T + 9)
    kinds = [[word[0] for word in words[2::2]] or words for words in aof.commands(server)]
    assert kinds == [["MULTI"], ["c"], ["p"], ["h"], ["EXEC"], ["n"], ["MULTI"], ["e"], ["r"], ["p"], ["EXEC"]]
    before = digest(server)
    server.restart()
    assert digest(server) == before
    ask(server, *ALL, "AT", T + 10)
    aof.rewrite(server)
    before = digest(server)
    server.restart()
    assert digest(server) == before
    assert ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 1, 5, "AT", T + 11) == [1, -3, 2]


def test_released_or_ended_reservations_stay_counted(server):
    assert ask(server, *ALL, "AT", T)[0] == 1
    assert ask(server, "SWLIMIT.RELEASE", "h", "id", "AT", T + 1) == 1
    assert ask(server, "SWLIMIT.PEEK", "r", 10, "1h", "1h", "AT", T + 1)[2] == 6


def test_a_hold_that_was_there_before(server):
    token = ask(server, "SWLIMIT.HOLD", "h", 5, "1h", "id", "AT", T)[5]
    assert ask(server, *ALL, "AT", T + 1)[:2] == [1, [1, 5, 4, 0, HOUR, token]]
    assert ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 0, 0, "AT", T + 2) == [1, -4, -3]
    assert server.cli("EXISTS", "h", "r", "b") == "0"


def test_statistics(server):
    before = statistics(server)
    ask(server, *ALL, "AT", T)
    ask(server, *ALL, "AT", T)
    ask(server, "SWLIMIT.SETTLE", 3, "h", "r", "b", "id", 4, 3, "AT", T + 5)
    after = statistics(server)
    assert {name: after[name] - before[name] for name in ("granted", "granted_units", "held", "settled", "denied")} == {
        "granted": 1, "granted_units": 8, "held": 1, "settled": 1, "denied": 0}
