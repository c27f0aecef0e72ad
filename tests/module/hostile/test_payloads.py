"""What RESTORE refuses: a damaged or hostile payload gets an error, never a crash and never a broken key."""

import re

import pytest

from support.bounds import MAX, T
from support.cli import ask, batch, stored
from support.contents import statistics
from support.payloads import Frame, blocked, value_of

SECOND = T // 1_000  # the number of T's subinterval at a resolution of 1 s
YEARS = 3650 * 86_400_000


@pytest.fixture
def client(server):
    """A connection for payloads, which redis-cli cannot spell, to a server that leaves their checksums alone."""
    assert server.cli("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1) == "OK"
    yield server.client()
    server.cli("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 0)


def restored(client, payload, key="restored"):
    """Whether the server takes a payload; if it does not, there is no key, and nothing has been lost."""
    replies = client.pipeline(transaction=False).restore(key, 60_000, payload, replace=True).execute(False)
    assert replies == [b"OK"] or re.search("Bad data format|payload version or checksum", str(replies[0]))
    return replies == [b"OK"]


@pytest.fixture
def frame(server, client):
    """What the server puts around a window's bytes."""
    ask(server, "SWLIMIT.RECORD", "frame", 5, 60, 5, "AT", 5_000)
    frame = Frame(client.dump("frame"))
    server.cli("DEL", "frame")
    return frame


@pytest.mark.parametrize("resolution, subintervals, counts", [
    (1_000, 60, [(SECOND, 1)]),
    (1_000, 60, [(SECOND - 60, MAX - 1), (SECOND, 1)]),
    (1, 1_000_000, [(T - 1_000_000, 5), (T - 999_999, 6), (T, 7)]),
    (YEARS, 1, [(0, 1), (1, 2)]),
    (1, 1, [(MAX - 1, 1), (MAX, 2)]),
    (86_400_000, 3_650, [(0, 1)]),
])
def test_sound_values(server, client, frame, resolution, subintervals, counts):
    assert restored(client, frame.around(value_of(resolution, subintervals, counts)))
    found = stored(server, "restored")
    assert (found["resolution"], found["subintervals"]) == (resolution, subintervals)
    assert found["counts"] == {subinterval * resolution: units for subinterval, units in counts}
    assert ask(server, "SWLIMIT.REFUND", "restored", MAX, "AT", 0) == [sum(units for _, units in counts)]


@pytest.mark.parametrize("value", [
    value_of(0, 60, [(SECOND, 1)]), value_of(1_000, 0, [(SECOND, 1)]), value_of(0, 0, []),
    value_of(1, 1_000_001, [(T, 1)]), value_of(YEARS + 1, 1, [(0, 1)]), value_of(YEARS, 2, [(0, 1)]),
    value_of(2**63, 2, [(0, 1)]), value_of(2**32, 2**32, [(0, 1)]),
    value_of(1_000, 60, []),
    value_of(1_000, 60, [(SECOND, 0)]), value_of(1_000, 60, [(SECOND, 1), (SECOND + 1, 0)]),
    value_of(1_000, 60, [(SECOND, MAX + 1)]), value_of(1_000, 60, [(SECOND, MAX), (SECOND + 1, 1)]),
    value_of(1_000, 60, [(SECOND, 2**64 - 1), (SECOND + 1, 2)]),
    value_of(1_000, 60, [(SECOND, 1), (SECOND, 1)]), value_of(1_000, 60, [(SECOND, 1), (SECOND - 1, 1)]),
    value_of(1_000, 60, [(SECOND, 1), (SECOND + 61, 1)]),
    value_of(1, 60, [(MAX + 1, 1)]), value_of(1_000, 60, [(MAX // 1_000 + 1, 1)]), value_of(1, 60, [(2**64 - 1, 1)]),
    value_of(1_000, 60, [(SECOND, 1)], announced=0), value_of(1_000, 60, [(SECOND, 1)], announced=2),
    value_of(1_000, 60, [(SECOND, 1)], announced=2**62), value_of(1_000, 1, [(0, 1), (1, 1), (2, 1)]),
    value_of(1_000, 60, [(SECOND, 1)]) + b"\0", value_of(1_000, 60, [(SECOND, 1)])[:-1], b"", b"\x80", b"\xff" * 30,
], ids=lambda value: value.hex()[:30])
def test_hostile_values(server, client, frame, value):
    ask(server, "SWLIMIT.ALLOW", "k", 5, 60, 5, "AT", T)
    before = statistics(server)
    assert not restored(client, frame.around(value))
    assert statistics(server) == before
    assert server.cli("EXISTS", "restored") == "0"


WINDOW = value_of(1_000, 60, [(SECOND, 1)])


@pytest.mark.parametrize("until", [1, T, MAX, MAX + YEARS])
@pytest.mark.parametrize("value, counts", [(b"", {}), (WINDOW, {T: 1})], ids=["no counts", "counts"])
def test_sound_blocks(server, client, frame, until, value, counts):
    """Also one that has passed long ago: it is written as it was read."""
    payload = frame.around(blocked(until, value))
    assert restored(client, payload)
    found = stored(server, "restored")
    assert (found["blocked"], found["counts"]) == (until if until > T else 0, counts)
    assert client.dump("restored")[:-8] == payload[:-8]
    now = min(until - 1, MAX)
    assert ask(server, "SWLIMIT.PEEK", "restored", 9, 60, 1, "AT", now)[0] == 0
    assert ask(server, "SWLIMIT.UNBLOCK", "restored", "AT", now) == [1]
    assert server.cli("EXISTS", "restored") == ("1" if counts and now < T + 61_000 else "0")


@pytest.mark.parametrize("value", [
    blocked(0), blocked(0, WINDOW), blocked(MAX + YEARS + 1), blocked(MAX + YEARS + 1, WINDOW), blocked(2**64 - 1),
    blocked(2**63, WINDOW), blocked(T, b"\0"), blocked(T, blocked(T)), blocked(T, WINDOW + b"\0"),
    blocked(T, WINDOW[:-1]), blocked(T, value_of(1_000, 60, [])), blocked(T, value_of(0, 60, [(SECOND, 1)])),
    blocked(T, value_of(1_000, 60, [(SECOND, MAX), (SECOND + 1, 1)])), blocked(T)[:-1], blocked(T)[:2], b"\0",
    b"\0\1" + blocked(T)[2:], b"\0\3" + blocked(T)[2:], b"\0\0" + blocked(T)[2:], b"\0\2" + b"\xff" * 10,
], ids=lambda value: value.hex()[:30])
def test_hostile_blocks(server, client, frame, value):
    """An instant out of range, an unknown layout, a layout within another, and whatever is wrong with a window."""
    ask(server, "SWLIMIT.BLOCK", "k", "1h", "AT", T)
    before = statistics(server)
    assert not restored(client, frame.around(value))
    assert statistics(server) == before
    assert server.cli("EXISTS", "restored") == "0"


def test_another_encoding_version_is_refused(server, client, frame):
    value = value_of(1_000, 60, [(SECOND, 1)])
    payload = bytearray(frame.around(value))
    assert restored(client, bytes(payload))
    payload[9] += 1  # the low bits of the type's identifier are the version
    assert not restored(client, bytes(payload))


@pytest.mark.parametrize("block", [False, True], ids=["open", "blocked"])
def test_every_flipped_bit(server, client, block):
    """Refused, or a window like any other."""
    batch(server, [["SWLIMIT.RECORD", "k", 9, "1h", 1, "COST", second, "AT", T + second * 1_000]
                   for second in range(1, 20)])
    if block:
        ask(server, "SWLIMIT.BLOCK", "k", "1h", "AT", T)
    payload = client.dump("k")
    accepted = refused = 0
    for position in range(len(payload) - 10):
        for bit in range(8):
            damaged = bytearray(payload)
            damaged[position] ^= 1 << bit
            if not restored(client, bytes(damaged)):
                refused += 1
                continue
            accepted += 1
            if client.type("restored") != b"sw-window":  # the payload's first byte says which type it is
                continue
            said = client.execute_command("SWLIMIT.INFO", "restored")
            found = dict(zip(said[::2], said[1::2], strict=True))
            assert 0 < found[b"total"] == sum(units for _, units in found[b"counts"]) <= MAX
            assert found[b"blocked"] == 0 or block
            assert client.execute_command("SWLIMIT.REFUND", "restored", MAX, "AT", 0) == found[b"total"]
    assert accepted and refused
    assert stored(server, "k")["total"] == sum(range(1, 20))
