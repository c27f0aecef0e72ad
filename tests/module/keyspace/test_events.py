"""Which changes have which key events."""

import pytest

from support.bounds import T
from support.cli import ask, batch
from support.events import events

QUOTA = "k", 3, 60, 5


@pytest.mark.parametrize("command, named", [
    (("ALLOW", *QUOTA, "AT", T), ["granted k"]),
    (("ALLOW", *QUOTA, "COST", 3, "PARTIAL", "AT", T), ["granted k"]),
    (("ALLOW", *QUOTA, "COST", 3, "AT", T), ["denied k"]),
    (("ALLOW", "other", 0, 60, 5), ["denied other"]),
    (("PEEK", *QUOTA, "AT", T), []),
    (("PEEK", *QUOTA, "COST", 3, "AT", T), []),
    (("RECORD", *QUOTA, "COST", 9, "AT", T), ["recorded k"]),
    (("RECORD", *QUOTA, "AT", 0), []),
    (("ALLOW", *QUOTA, "BLOCK", "1m", "AT", T), ["granted k"]),
    (("ALLOW", *QUOTA, "COST", 3, "BLOCK", "1m", "AT", T), ["denied k", "blocked k"]),
    (("RECORD", *QUOTA, "COST", 3, "BLOCK", "1m", "AT", T), ["recorded k", "blocked k"]),
    (("RECORD", *QUOTA, "BLOCK", "1m", "AT", 0), []),
    (("BLOCK", "k", "1m"), ["blocked k"]),
    (("UNBLOCK", "k"), []),
    (("UNBLOCK", "missing"), []),
    (("REFUND", "k", 1, "AT", T), ["refunded k"]),
    (("REFUND", "missing", 1), []),
    (("REFUND", "k", 1, "AT", T + 65_000), []),
    (("INFO", "k"), []),
    (("ALLOW", "k", 3, 60, 7), []),
    (("MALLOW", 2, "k", "other", *QUOTA[1:], 1, 5, 60, 5, 1, "AT", T), ["granted k", "granted other"]),
], ids=lambda words: " ".join(map(str, words)))
def test_each_command(server, command, named):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 2, "AT", T)
    with events(server) as heard:
        server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    expected = []
    for event in named:
        name, key = event.split()
        expected += [(f"keyspace:{key}", f"swlimit.{name}"), (f"keyevent:swlimit.{name}", key)]
    assert heard == expected


@pytest.mark.parametrize("command, named", [
    (("ALLOW", *QUOTA, "COST", 3, "BLOCK", "1h", "AT", T), "denied"),
    (("RECORD", *QUOTA, "COST", 3, "BLOCK", "1h", "AT", T), "recorded"),
    (("RECORD", *QUOTA, "BLOCK", "1h", "AT", 0), None),
    (("PEEK", *QUOTA, "AT", T), None),
    (("BLOCK", "k", "1h", "NX", "AT", T), None),
    (("BLOCK", "k", "1h", "AT", T), "blocked"),
    (("UNBLOCK", "k", "AT", T), "unblocked"),
    (("UNBLOCK", "k", "AT", T + 60_000), None),
], ids=lambda words: " ".join(map(str, words)) if isinstance(words, tuple) else "")
def test_on_a_blocked_key(server, command, named):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 2, "AT", T)
    ask(server, "SWLIMIT.BLOCK", "k", "1m", "AT", T)
    with events(server, "Ed") as heard:
        server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    assert heard == ([(f"keyevent:swlimit.{named}", "k")] if named else [])


def test_a_key_that_held_a_block_alone_is_said_to_be_deleted(server):
    ask(server, "SWLIMIT.BLOCK", "k", "1m")
    with events(server, "Egd") as heard:
        ask(server, "SWLIMIT.UNBLOCK", "k")
    assert sorted(heard) == [("keyevent:del", "k"), ("keyevent:swlimit.unblocked", "k")]


def test_a_denied_mallow_names_the_keys_that_denied(server):
    """The others would have been granted."""
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "COST", 3, "AT", T)
    with events(server, "Ed") as heard:
        ask(server, "SWLIMIT.MALLOW", 3, "a", "k", "b", 5, 60, 5, 1, *QUOTA[1:], 1, 5, 60, 5, 6, "AT", T)
    assert sorted(heard) == [("keyevent:swlimit.denied", "b"), ("keyevent:swlimit.denied", "k")]


def test_an_emptied_key_is_said_to_be_deleted(server):
    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T)
    with events(server, "KEgd") as heard:
        ask(server, "SWLIMIT.REFUND", "k", 5, "AT", T)
    assert sorted(heard) == sorted([("keyspace:k", "del"), ("keyevent:del", "k"), ("keyspace:k", "swlimit.refunded"),
                                    ("keyevent:swlimit.refunded", "k")])


def test_other_classes_do_not_hear_of_decisions(server):
    with events(server, "KE$lshz") as heard:
        batch(server, [["SWLIMIT.ALLOW", *QUOTA, "AT", T]] * 5)
    assert heard == []


def test_any_bytes_in_the_name_of_a_key(server):
    with events(server, "Ed") as heard:
        ask(server, "SWLIMIT.ALLOW", "a b\n\u2603", 5, 60, 5)
    assert heard == [("keyevent:swlimit.granted", "a b\n\u2603")]
