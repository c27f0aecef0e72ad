"""Client tracking of the script's keys: what it reads is registered, and only what counts invalidates."""

import pytest

from support.bounds import T
from support.resp import Connection
from support.script import load, scripted, sha

QUOTA = "k", 3, 60, 5


class Tracker(Connection):
    """A connection that gets a message when what it has read has changed."""

    def __init__(self, server):
        super().__init__(server.port)
        self.call("HELLO", 3)
        assert self.call("CLIENT", "TRACKING", "ON") == b"OK"

    def run(self, name, *words, call="EVALSHA"):
        return self.call(*scripted([f"SWLIMIT.{name}", *words], sha(), call))

    def told(self):
        """The keys that were named as invalid since the last time."""
        self.call("PING")
        pushed, self.pushed[:] = list(self.pushed), []
        return sorted(key.decode() for _, keys in pushed for key in keys or [b"everything"])


@pytest.fixture
def tracker(plain_server, plain):
    with Tracker(plain_server) as tracker:
        load(tracker)
        yield tracker


READS = [("PEEK", "EVALSHA", []), ("PEEK", "EVALSHA_RO", []), ("ALLOW", "EVALSHA", ["COST", 9])]


@pytest.mark.parametrize("name, call, options", READS, ids=lambda value: str(value))
@pytest.mark.parametrize("missing", [False, True])
def test_what_is_read_is_told_once(plain, run, tracker, name, call, options, missing):
    """PEEK, and a denied ALLOW, register the key, also one that is missing; a grant sends a message, a denial none."""
    if not missing:
        run("SWLIMIT.ALLOW", *QUOTA, "AT", T)
    tracker.run(name, *QUOTA, *options, "AT", T, call=call)
    assert run("SWLIMIT.ALLOW", *QUOTA, "COST", 9, "AT", T)[0] == 0
    assert tracker.told() == []
    assert run("SWLIMIT.ALLOW", *QUOTA, "AT", T)[0] == 1
    assert run("SWLIMIT.RECORD", *QUOTA, "AT", T)[0] == 1
    assert tracker.told() == ["k"]


@pytest.mark.parametrize("change", [("SWLIMIT.REFUND", "k", 1, "AT", T), ("SWLIMIT.REFUND", "k", 9, "AT", T),
                                    ("SWLIMIT.RECORD", *QUOTA, "AT", T + 9000), ("SWLIMIT.BLOCK", "k", "1m"),
                                    ("SWLIMIT.ALLOW", "k", 9, "1h", "1m", "AT", T),
                                    ("SWLIMIT.MALLOW", 1, "k", 9, 60, 5, 1, "AT", T),
                                    ("DEL", "k"), ("PEXPIRE", "k", 9999),
                                    ("PERSIST", "k"), ("RENAME", "k", "l"), ("SET", "k", 1), ("FLUSHALL",)],
                         ids=lambda words: " ".join(map(str, words[:3])))
def test_what_changes_is_told(plain, run, tracker, change):
    run("SWLIMIT.ALLOW", *QUOTA, "AT", T)
    tracker.run("PEEK", *QUOTA, "AT", T)
    plain.call(*scripted(change, sha()))
    assert tracker.told() in (["k"], ["everything"])


def test_after_its_own_grant_a_connection_is_not_told(plain, run, tracker):
    """Its own grant sends one message, and a later change none until it reads again."""
    assert tracker.run("ALLOW", *QUOTA, "AT", T)[0] == 1
    tracker.told()
    run("SWLIMIT.ALLOW", *QUOTA, "AT", T)
    assert tracker.told() == []
    tracker.run("PEEK", *QUOTA, "AT", T)
    run("SWLIMIT.ALLOW", *QUOTA, "AT", T)
    assert tracker.told() == ["k"]
