"""Waiting while somebody sets the server's wall clock."""

import time

from support.clock import set_clock
from support.contents import idle
from support.waiters import PATIENT, waiters

DAY = ("1d", "1h")


def test_set_forward(start, skewed):
    """The turn comes when the clock says so, of a key that does not expire by that."""
    server = start(env=skewed(0))
    with waiters(server) as wait:
        server.cli("SWLIMIT.RECORD", "k", 2, *DAY)
        server.cli("SWLIMIT.BLOCK", "k", "1h")
        waiter = wait("k", 2, *DAY, PATIENT)
        started = time.monotonic()
        set_clock(server, time.time() + 3 * 3600)
        assert waiter.answer()[:3] == [1, 2, 0], "two hours have not passed for the client"
        assert time.monotonic() - started < 2


def test_set_back(start, skewed):
    """The turn is an hour away; the timeout is not."""
    server = start(env=skewed(0))
    with waiters(server) as wait:
        server.cli("SWLIMIT.BLOCK", "k", "300ms")
        waiter, next_one = wait("k", 2, *DAY, "500ms"), wait("k", 2, *DAY, "10s")
        started = time.monotonic()
        set_clock(server, time.time() - 3600)
        granted, limit, remaining, retry_after, _ = waiter.answer()
        assert [granted, limit, remaining] == [0, 2, 0] and 3_590_000 < retry_after <= 3_600_300
        assert 0.3 < time.monotonic() - started < 2
        server.cli("SWLIMIT.UNBLOCK", "k")
        assert next_one.answer()[:3] == [1, 2, 1]
        assert time.monotonic() - started < 3


def test_a_turn_that_is_an_hour_away_again_costs_nothing(start, skewed):
    server = start(env=skewed(0))
    with waiters(server) as wait:
        server.cli("SWLIMIT.BLOCK", "k", "500ms")
        wait("k", 2, *DAY, PATIENT)
        set_clock(server, time.time() - 3600)
        time.sleep(0.7)  # past the instant that the timer was set for
        assert idle(server, 1) < 0.1
