"""What is refused, word for word, with nothing changed; and who may block."""


import pytest

from support.cli import WRONGTYPE, ask, batch, feed, numbers
from support.contents import unchanged

NOW = 1_111_112 * 3_600_000
QUOTA = "k", 2, 10, 1
DURATION = "ERR BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d"
AT = "ERR AT must be a Unix time in milliseconds"
NO_DURATION = ["", "x", "0", "0ms", "-5", "+5", "1.5s", " 5", "5 ", "5w", "s", "5\n", b"\xff", b"5\xff", "3651d",
               "315360000001ms", "99999999999999999999d", str(2**64 + 60)]
NO_INSTANT = ["", "x", "-1", "1.0", " 1", b"\xff", str(2**53), "9" * 400]


def near(word):
    return f"ERR syntax error near '{word}'"


def arity(name):
    return f"ERR wrong number of arguments for 'swlimit.{name}' command"


REFUSED = [
    (["BLOCK"], arity("block")), (["BLOCK", "k"], arity("block")), (["UNBLOCK"], arity("unblock")),
    *((["BLOCK", "k", word], DURATION) for word in NO_DURATION),
    *(([command, *QUOTA, "BLOCK", word], DURATION) for command in ("ALLOW", "RECORD") for word in NO_DURATION),
    *((["BLOCK", "k", 5, "AT", word], AT) for word in NO_INSTANT),
    *((["UNBLOCK", "k", "AT", word], AT) for word in NO_INSTANT),
    (["BLOCK", "k", 5, "UNTIL", 0], near("UNTIL")), (["UNBLOCK", "k", "UNTIL", 0], near("UNTIL")),
    *((["BLOCK", "k", 5, *options], near(options[-1])) for options in (
        ["XX"], [""], ["NX", "nx"], ["GT", "gt"], ["NX", "GT"], ["GT", "nx"],
        ["AT"], ["NX", "UNTIL"], ["COST"], ["BLOCK"], ["STRICT"], ["AGE"], ["5"])),
    (["BLOCK", "k", 5, "COST", 1], near("COST")), (["BLOCK", "k", 5, "BLOCK", 5], near("BLOCK")),
    (["BLOCK", "k", 5, "AT", 1, "at", 1], near("at")),
    (["UNBLOCK", "k", "NX"], near("NX")), (["UNBLOCK", "k", "GT"], near("GT")),
    (["UNBLOCK", "k", 5], near("5")), (["UNBLOCK", "k", "AT"], near("AT")),
    (["UNBLOCK", "k", "AT", 1, "at", 1], near("at")),
    *(([command, *QUOTA, *options], near(options[-1])) for command in ("ALLOW", "RECORD") for options in (
        ["BLOCK"], ["STRICT", "block"], ["NX"], ["GT"])),
    *(([command, *QUOTA, "BLOCK", 5, "block", 5], near("block")) for command in ("ALLOW", "RECORD")),
    (["PEEK", *QUOTA, "BLOCK", 5], near("BLOCK")), (["REFUND", "k", 1, "BLOCK", 5], near("BLOCK")),
    (["MALLOW", 1, *QUOTA, 1, "BLOCK", 5], near("BLOCK")),
    (["BLOCK", "text", 5], WRONGTYPE), (["BLOCK", "text", 5, "NX"], WRONGTYPE), (["UNBLOCK", "text"], WRONGTYPE),
    (["ALLOW", "text", 0, 10, 1, "BLOCK", 5], WRONGTYPE), (["RECORD", "text", 0, 10, 1, "BLOCK", 5], WRONGTYPE),
    (["BLOCK", "text", "x"], DURATION),  # words before keys
    (["RECORD", "full", 0, 10, 1, "BLOCK", 5, "AT", NOW], "ERR count would overflow"),
]


def test_refused_words(server):
    """A key with neither, with counts, with a block: each is as it was."""
    server.cli("SET", "text", 1)
    ask(server, "SWLIMIT.RECORD", "full", 0, 10, 1, "COST", 2**53 - 1, "AT", NOW)
    for state in ([], ["SWLIMIT.RECORD", *QUOTA, "AT", NOW], ["SWLIMIT.BLOCK", "k", "1h", "AT", NOW]):
        if state:
            ask(server, *state)
        with unchanged(server):
            replies = batch(server, [[f"SWLIMIT.{name}", *words] for (name, *words), _ in REFUSED])
        for (words, error), reply in zip(REFUSED, replies, strict=True):
            assert reply == error, words


def test_commands_of_the_server_do_not_know_a_block(server):
    """A key that holds nothing else is of the same type as any."""
    ask(server, "SWLIMIT.BLOCK", "k", "1h")
    assert server.cli("TYPE", "k") == "sw-window"
    with unchanged(server):
        assert batch(server, [["GET", "k"], ["INCR", "k"], ["LPUSH", "k", 1]]) == [WRONGTYPE] * 3


@pytest.mark.parametrize("words", ["", "AT 4000003200000 NX", "nx at 4000003200000"])
def test_options_in_any_order_and_case(server, words):
    assert len(ask(server, "SWLIMIT.BLOCK", b"any\r\n\xff", "5M", *words.split())) == 1
    assert ask(server, "SWLIMIT.UNBLOCK", b"any\r\n\xff", *words.replace("NX", "").replace("nx", "").split()) == [1]


@pytest.fixture
def full(server):
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 2, "AT", NOW)
    ask(server, "SWLIMIT.BLOCK", "blocked", "1h", "AT", NOW)
    server.cli("CONFIG", "SET", "maxmemory", 1)
    return server


def test_full_memory(full):
    """BLOCK is refused, also as an option; a block is lifted as ever, and its key deleted."""
    with unchanged(full):
        for words in (["BLOCK", "k", 5], ["BLOCK", "k", 5, "NX"], ["ALLOW", *QUOTA, "BLOCK", 5]):
            assert full.cli(f"SWLIMIT.{words[0]}", *words[1:], "AT", NOW).startswith("OOM ")
    assert ask(full, "SWLIMIT.PEEK", "blocked", *QUOTA[1:], "AT", NOW)[0] == 0
    assert ask(full, "SWLIMIT.UNBLOCK", "blocked", "AT", NOW) == [1]
    assert full.cli("DBSIZE") == "1"


BLOCK, UNBLOCK = ("SWLIMIT.BLOCK", "k", "1h"), ("SWLIMIT.UNBLOCK", "k")


@pytest.mark.parametrize("rules, words, allowed", [
    ("+swlimit.block ~*", BLOCK, True), ("+swlimit.block ~*", UNBLOCK, False),
    ("+@all -swlimit.unblock ~*", UNBLOCK, False), ("+@all ~other", BLOCK, False),
    ("+@all %R~k", BLOCK, False), ("+@all %W~k", BLOCK, False), ("+@all %RW~k", BLOCK, True),
    ("+@all %R~k", UNBLOCK, False), ("+@all %RW~k", UNBLOCK, True),
], ids=lambda part: part if isinstance(part, str) else "")
def test_who_may(server, rules, words, allowed):
    assert server.cli("ACL", "SETUSER", "ann", "reset", "on", "nopass", *rules.split()) == "OK"
    try:
        reply = server.cli(*words, flags=["--user", "ann", "--pass", "x", "--no-auth-warning"])
    finally:
        server.cli("ACL", "DELUSER", "ann")
    assert len(numbers(reply)) == 1 if allowed else reply.startswith("NOPERM")


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_the_same_in_both_protocols(server, protocol):
    """Integers, and five of them; `blocked` among the numbers of INFO."""
    with server.client(protocol=protocol) as client:
        until = client.execute_command("SWLIMIT.BLOCK", "k", "1h", "AT", NOW)
        assert until == NOW + 3_600_000
        assert client.execute_command("SWLIMIT.ALLOW", *QUOTA, "AT", NOW) == [0, 2, 0, 3_600_000, 3_600_000]
        found = client.execute_command("SWLIMIT.INFO", "k")
        found = found if protocol == 3 else dict(zip(found[::2], found[1::2]))
        names = ["window", "resolution", "subintervals", "newest", "total", "memory", "blocked", "since", "counts"]
        assert [name.decode() for name in found] == names
        assert (found[b"blocked"], found[b"counts"]) == (until, [])
        assert client.execute_command("SWLIMIT.UNBLOCK", "k", "AT", NOW) == 1


@pytest.mark.parametrize("words", ["SWLIMIT.BLOCK k 60", "SWLIMIT.ALLOW k 2 10 1 COST 9 BLOCK 5"])
@pytest.mark.parametrize("change, kept", [
    ("SWLIMIT.BLOCK k 1h", False), ("SWLIMIT.UNBLOCK k", False), ("SWLIMIT.BLOCK k 1h NX", True),
    ("SWLIMIT.ALLOW k 2 10 1 BLOCK 1h", True), ("SWLIMIT.ALLOW k 2 10 1 COST 9 BLOCK 1h", True),
])
def test_watch(server, words, change, kept):
    """What changes the block, and nothing else, undoes a transaction that watches its key."""
    server.cli(*words.split())
    printed = feed(server, "WATCH k", change, "MULTI", "SET s 1", "EXEC")
    assert (printed[-1] == "OK", server.cli("EXISTS", "s") == "1") == (kept, kept)


@pytest.mark.parametrize("change", ["SWLIMIT.BLOCK k 1h", "SWLIMIT.ALLOW k 0 10 1 BLOCK 1h"])
def test_a_watch_sees_a_block_begin(server, change):
    feed(server, "WATCH k", change, "MULTI", "SET s 1", "EXEC")
    assert server.cli("EXISTS", "s") == "0"
