"""Limits that rise after idleness, as many callers meet them. What single commands answer is in the vectors."""

import random

from support.bounds import T
from support.cli import ask, stored
from support.resp import Connection

QUOTA = (100, "1s", "50ms")
RISES = ("WARMUP", "10s")


def test_who_joins_late_has_what_the_others_have(server):
    """Four callers want more than there is, and begin three seconds after one another."""
    draw, granted = random.Random(17), [0] * 4
    with Connection(server.port) as pipe:
        for passed in range(0, 22_000, 10):
            callers = [caller for caller in range(4) if passed >= 3_000 * caller]
            draw.shuffle(callers)
            replies = pipe.calls([("SWLIMIT.ALLOW", "k", *QUOTA, *RISES, "AT", T + passed) for _ in callers])
            for caller, (units, *_) in zip(callers, replies, strict=True):
                granted[caller] += units * (passed >= 9_000)
    assert min(granted) > 200 and max(granted) <= 1.1 * min(granted), granted


def test_a_line_whose_first_waiter_is_dear_does_not_stay_cold(server):
    """Where nothing counts the dear one is let through, and the key goes on rising."""
    limits = []
    with Connection(server.port) as pipe:
        for passed in range(0, 30_000, 50):
            units, limit, *_ = pipe.call("SWLIMIT.ALLOW", "k", *QUOTA, "COST", 90, *RISES, "AT", T + passed)
            if units:
                limits.append(limit)
    assert len(limits) > 20 and limits == sorted(limits) and (limits[0], limits[-1]) == (90, 100)


def test_waiting_while_the_limit_rises(server):
    """By the server's clock: ACQUIRE is granted when PEEK has said so, by what is in force then."""
    quota, rises = (90, "30s", "1s"), ("WARMUP", "6s", "COLD", 30)
    assert ask(server, "SWLIMIT.ALLOW", "k", *quota, "COST", 3, *rises)[:3] == [3, 3, 0]
    with Connection(server.port) as waiting:
        peek = ask(server, "SWLIMIT.PEEK", "k", *quota, "COST", 20, *rises)
        began = int(server.cli("EVAL", "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", 0))
        units, limit, remaining, *_ = waiting.call("SWLIMIT.ACQUIRE", "k", *quota, "10s", "COST", 20, *rises)
        took = int(server.cli("EVAL", "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", 0))
    assert (units, limit, remaining) == (20, 23, 0)
    assert peek[3] - 100 <= took - began <= peek[3] + 1_000
    assert stored(server, "k")["total"] == 23


def test_a_clock_for_each_key_of_one_decision(server):
    """MALLOW decides each key by its own: one is in use for five seconds, the other is cold."""
    ask(server, "SWLIMIT.ALLOW", "{t}:a", *QUOTA, *RISES, "AT", T)
    for passed in range(500, 5_000, 500):
        ask(server, "SWLIMIT.ALLOW", "{t}:a", *QUOTA, *RISES, "AT", T + passed)
    each = ("{t}:a", "{t}:b")
    reply = ask(server, "SWLIMIT.MALLOW", 2, *each, *QUOTA, 1, *RISES, *QUOTA, 1, *RISES, "AT", T + 5_000)
    assert (reply[0], reply[2], reply[7]) == (1, 66, 33)
    assert [stored(server, key)["since"] for key in each] == [T, T + 5_000]
