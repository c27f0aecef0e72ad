"""A key that the server's key finder misses is checked against no ACL pattern: it must find all keys."""

import pytest

from support.contents import digest
from support.resp import Connection, Failed

KEY, OTHER = b"victim", b"second"
NUMBERS = [
    "1", "2", "01", "001", "0000000001", "+1", "-1", "-0", "0", "00", "", " ", " 1", "1 ", "1\t", "\n1", "1\0", "\0001",
    "1.", "1.0", "1e0", "0x1", "0b1", "1_0", "1,0", "١", "one", "nan", "inf", "02", "+2", " 2", "2\0", 2**31, 2**32 + 1,
    2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 + 1, 2**64 + 2, 10**40, "0" * 40 + "1", b"\xff", b"1\xff",
]
QUOTA = [10, "1h", "1m"]
# Each command that has keys: its keys, and its words.
COMMANDS = {
    "swlimit.allow": ([KEY], [KEY, *QUOTA, "COST", 1, "BLOCK", 1, "AT", 1]),
    "swlimit.acquire": ([KEY], [KEY, *QUOTA, 0, "COST", 1]),
    "swlimit.peek": ([KEY], [KEY, *QUOTA, "COST", 1, "AT", 1]),
    "swlimit.record": ([KEY], [KEY, *QUOTA, "COST", 1, "AGE", 1, "AT", 1]),
    "swlimit.refund": ([KEY], [KEY, 1, "SINCE", 1, "AT", 1]),
    "swlimit.block": ([KEY], [KEY, 1]),
    "swlimit.unblock": ([KEY], [KEY]),
    "swlimit.info": ([KEY], [KEY]),
    "swlimit.hold": ([KEY], [KEY, 10, "1h", "id", "COST", 1, "AT", 1]),
    "swlimit.release": ([KEY], [KEY, "id", "AT", 1]),
    "swlimit.renew": ([KEY], [KEY, "1h", "id", "AT", 1]),
    "swlimit.holders": ([KEY], [KEY, 10, "AT", 1]),
    "swlimit.budget": ([KEY], [KEY, 10, 2, "COST", 1, "AT", 1]),
    "swlimit.admit": ([KEY, OTHER], [2, KEY, OTHER, "RATE", *QUOTA, 1, "BUDGET", 10, 2, 1, "AT", 1]),
    "swlimit.settle": ([KEY, OTHER], [2, KEY, OTHER, "id", 1, "AT", 1]),
    "swlimit.apply": ([KEY, OTHER], [KEY, "c1*1@1", OTHER, "b1"]),
    "swlimit.mallow": ([KEY, OTHER], [2, KEY, OTHER, *QUOTA, 1, *QUOTA, 1, "AT", 1]),
}


def spellings(name):
    """The command, then with every one of its words but its keys spelled in every way; also MALLOW with one key."""
    words = COMMANDS[name][1]
    for each in [words, [1, KEY, *QUOTA, 9]] if name == "swlimit.mallow" else [words]:
        yield [name, *each]
        for place, word in enumerate(each):
            if word not in (KEY, OTHER):
                for spelling in NUMBERS:
                    yield [name, *each[:place], spelling, *each[place + 1:]]


def test_every_command_with_keys_is_here(server):
    with Connection(server.port) as connection:
        names = connection.call("COMMAND", "LIST", "FILTERBY", "MODULE", "swlimit")
        commands = connection.call("COMMAND", "INFO", *names)
    has_keys = {command[0].decode() for command in commands if command[8]}
    assert has_keys == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_spelling_passes_a_pattern(server, name):
    """Neither by itself nor in a script."""
    with Connection(server.port) as admin, Connection(server.port) as ann:
        admin.call("SWLIMIT.RECORD", KEY, *QUOTA)
        admin.call("ACL", "SETUSER", "ann", "reset", "on", "nopass", "~mine:*", "+@all")
        assert ann.call("AUTH", "ann", "x") == b"OK"
        before = digest(server)
        for words in spellings(name):
            for reply in ann.calls([words, ["EVAL", "return redis.pcall(unpack(ARGV))", 0, *words]]):
                assert isinstance(reply, Failed), words
        assert digest(server) == before
        admin.call("ACL", "DELUSER", "ann")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_server_finds_the_keys_of_whatever_is_taken(server, name):
    with Connection(server.port) as connection:
        taken = 0
        for words in spellings(name):
            connection.call("FLUSHALL")
            if name.removeprefix("swlimit.") not in ("hold", "release", "renew", "holders", "budget", "settle"):
                connection.call("SWLIMIT.RECORD", KEY, *QUOTA)
            if not isinstance(connection.call(*words), Failed):
                taken += 1
                found = connection.call("COMMAND", "GETKEYS", *words)
                assert found == [word for word in words if word in (KEY, OTHER)], words
        assert taken > 0
