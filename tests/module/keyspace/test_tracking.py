"""Client tracking: who keeps what PEEK and INFO answered gets a message when it is no longer true, and else none."""

import pytest

from support.bounds import T
from support.cli import ask, feed, stored
from support.replication import PROMPT, follow, in_step
from support.resp import Connection
from support.waiting import eventually

QUOTA = "k", 3, 60, 5
PEEK = "SWLIMIT.PEEK", *QUOTA, "AT", T
ALLOW = "SWLIMIT.ALLOW", *QUOTA, "AT", T


class Tracker(Connection):
    """A connection that keeps what it reads."""

    def __init__(self, server, *mode):
        super().__init__(server.port)
        self.call("HELLO", 3)
        assert self.call("CLIENT", "TRACKING", "ON", *mode) == b"OK"

    def told(self):
        """The keys that were named as invalid since the last time, in order."""
        self.call("PING")  # what was pushed before comes before its reply
        pushed, self.pushed[:] = list(self.pushed), []
        assert all(kind == b"invalidate" for kind, _ in pushed), pushed
        return sorted(key.decode() for _, keys in pushed for key in keys or [b"everything"])


@pytest.fixture
def track(server):
    """Open connections that track in some mode, while the key `k` holds 2 of 3 units."""
    ask(server, *ALLOW, "COST", 2)
    opened = []

    def track(*mode):
        opened.append(Tracker(server, *mode))
        return opened[-1]

    yield track
    for tracker in opened:
        tracker.close()


@pytest.fixture(params=[(), ("BCAST",), ("BCAST", "PREFIX", "k"), ("OPTOUT",)], ids=" ".join)
def tracker(track, request):
    """A connection that has read the key."""
    tracker = track(*request.param)
    assert tracker.call(*PEEK) == [1, 3, 1, 0, 65_000]
    return tracker


def several(name, *costs):
    return name, 2, "other", "k", 5, 60, 5, costs[0], *QUOTA[1:], costs[1], "AT", T


@pytest.mark.parametrize("command", [
    ("ALLOW", *QUOTA, "COST", 3, "AT", T), ("ALLOW", "k", 1, "1h", "1m", "AT", T), ("PEEK", *QUOTA, "AT", T),
    ("PEEK", *QUOTA, "COST", 3, "AT", T), ("PEEK", "k", 1, "1h", "1m"), ("INFO", "k"), ("RECORD", *QUOTA, "AT", 0),
    ("RECORD", *QUOTA, "BLOCK", "1m", "AT", 0), ("UNBLOCK", "k"), ("BLOCK", "missing", 0), ("ALLOW", "k", 3, 60, 7),
    ("REFUND", "missing", 1), ("REFUND", "k", 0), several("MALLOW", 1, 2),
    several("MALLOW", 6, 1),
], ids=lambda words: " ".join(map(str, words)))
def test_what_counts_nothing_invalidates_nothing(server, tracker, command):
    server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    assert tracker.told() == []
    ask(server, *ALLOW)
    assert tracker.told() == ["k"]


@pytest.mark.parametrize("command", [
    ("ALLOW", *QUOTA, "AT", T), ("ALLOW", *QUOTA, "COST", 9, "PARTIAL", "AT", T),
    ("ALLOW", "k", 9, "1h", "1m", "AT", T),
    ("RECORD", *QUOTA, "COST", 5, "AT", T), ("RECORD", *QUOTA, "AT", T - 60_000), ("REFUND", "k", 1, "AT", T),
    ("REFUND", "k", 9, "AT", T), several("MALLOW", 1, 1),
], ids=lambda words: " ".join(map(str, words)))
def test_what_counts_invalidates(server, tracker, command):
    before = stored(server, "k")
    server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    assert stored(server, "k") != before
    assert [key for key in tracker.told() if key != "other"] == ["k"]


@pytest.mark.parametrize("command", [
    ("ALLOW", *QUOTA, "COST", 2, "BLOCK", "1m", "AT", T), ("RECORD", *QUOTA, "COST", 2, "BLOCK", "1m", "AT", T),
    ("BLOCK", "k", "1m", "AT", T),
], ids=lambda words: " ".join(map(str, words)))
def test_a_block_that_begins_or_is_lifted_invalidates(server, tracker, command):
    """Requests that are denied meanwhile do not."""
    server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    assert tracker.told() == ["k"]
    assert tracker.call(*PEEK)[0] == 0
    ask(server, *ALLOW, "BLOCK", "1h")
    ask(server, "SWLIMIT.BLOCK", "k", "1h", "NX", "AT", T)
    assert tracker.told() == []
    assert ask(server, "SWLIMIT.UNBLOCK", "k", "AT", T) == [1]
    assert tracker.told() == ["k"]


@pytest.mark.parametrize("command", [("DEL", "k"), ("PEXPIRE", "k", 1), ("RENAME", "k", "other"), ("FLUSHALL",)],
                         ids=lambda words: words[0])
def test_the_server_s_own_changes_invalidate(server, tracker, command):
    server.cli(*command)
    eventually(lambda: set(tracker.told()) & {"k", "everything"})


def test_a_first_grant_invalidates_what_was_read_of_a_missing_key(server, track):
    tracker = track()
    assert tracker.call("SWLIMIT.PEEK", "new", 3, 60, 5)[2] == 3
    assert tracker.call("SWLIMIT.INFO", "newer") == "ERR no such key"
    for key in ("new", "newer", "newest"):
        ask(server, "SWLIMIT.ALLOW", key, 3, 60, 5)
    assert tracker.told() == ["new", "newer"]


def test_only_what_was_read_is_tracked_and_only_until_it_is_told(server, track):
    tracker = track()
    tracker.call("SWLIMIT.INFO", "k")
    tracker.call("SWLIMIT.ALLOW", "counted", 3, 60, 5)  # a write reads nothing that a client may keep
    for _ in range(2):
        ask(server, "SWLIMIT.RECORD", *QUOTA, "AT", T)
        ask(server, "SWLIMIT.ALLOW", "counted", 3, 60, 5)
    assert tracker.told() == ["k"]
    tracker.call(*PEEK)
    ask(server, "SWLIMIT.REFUND", "k", 1, "AT", T)
    assert tracker.told() == ["k"]


def test_opting_in_and_out_for_one_command(server, track):
    for mode, caching, told in [("OPTIN", "YES", ["k"]), ("OPTOUT", "NO", [])]:
        tracker = track(mode)
        tracker.call("CLIENT", "CACHING", caching)
        tracker.call(*PEEK)
        tracker.call("SWLIMIT.INFO", "other")  # as the mode has it
        for key in ("k", "other"):
            ask(server, "SWLIMIT.RECORD", key, 9, 60, 5, "AT", T)
        assert tracker.told() == (told or ["other"])


@pytest.mark.parametrize("mode", [(), ("BCAST",)], ids=" ".join)
def test_ones_own_changes(server, track, mode):
    """A client gets messages about its own grants unless it says NOLOOP; then, about those of others."""
    loop, noloop = track(*mode), track(*mode, "NOLOOP")
    for changer, told in [(loop, (["k"], ["k"])), (noloop, (["k"], []))]:
        for tracker in (loop, noloop):
            tracker.call(*PEEK)
        changer.call("SWLIMIT.RECORD", *QUOTA, "AT", T)
        assert (loop.told(), noloop.told()) == told


def test_several_keys_of_one_decision_are_named(server, track):
    tracker, broadcast = track(), track("BCAST", "PREFIX", "a", "PREFIX", "b")
    for key in "abc":
        tracker.call("SWLIMIT.PEEK", key, 5, 60, 5)
    ask(server, "SWLIMIT.MALLOW", 4, "a", "b", "c", "d", *[5, 60, 5, 1] * 4)
    assert tracker.told() == ["a", "b", "c"]
    assert broadcast.told() == ["a", "b"]


def test_transactions_and_scripts(server, track):
    tracker = track()
    assert tracker.call("EVAL", "return redis.call('SWLIMIT.PEEK', KEYS[1], 3, 60, 5)[1]", 1, "k") == 1
    feed(server, "MULTI", " ".join(map(str, ALLOW)), f"{' '.join(map(str, ALLOW))} COST 9", "EXEC")
    assert tracker.told() == ["k"]
    tracker.call(*PEEK)
    feed(server, "MULTI", f"{' '.join(map(str, ALLOW))} COST 9", "EXEC")
    assert tracker.told() == []


def test_resp2_clients_are_told_on_another_connection(server, track):
    ask(server, "SWLIMIT.ALLOW", "other", 3, 60, 5)
    with Connection(server.port) as listener, Connection(server.port) as reader:
        redirect = listener.call("CLIENT", "ID")
        assert listener.call("SUBSCRIBE", "__redis__:invalidate")[0] == b"subscribe"
        assert reader.call("CLIENT", "TRACKING", "ON", "REDIRECT", redirect) == b"OK"
        for words in (PEEK, ("SWLIMIT.INFO", "other")):
            reader.call(*words)
        ask(server, *ALLOW, "COST", 9)  # denied
        ask(server, *ALLOW)
        ask(server, "SWLIMIT.REFUND", "other", 1)
        assert listener.reply() == [b"message", b"__redis__:invalidate", [b"k"]]
        assert listener.reply() == [b"message", b"__redis__:invalidate", [b"other"]]


def test_what_was_read_of_a_replica(start):
    """Grants that come from the primary invalidate, and its denials do not."""
    primary, replica = start(options=PROMPT), start(options=PROMPT)
    follow(replica, primary)
    with Tracker(replica) as tracker:
        tracker.call(*PEEK)
        ask(primary, *ALLOW, "COST", 4)
        in_step(replica, primary)
        assert tracker.told() == []
        ask(primary, *ALLOW)
        in_step(replica, primary)
        assert tracker.told() == ["k"]
