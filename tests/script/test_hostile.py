"""What operators, other commands and strangers can do to the script."""

import random
import struct
from zlib import crc32

import pytest

from support.bounds import T
from support.resp import Connection, Failed
from support.script import COUNT, load, packed, scripted, sha, unpacked

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
END = T + 3_600_000
COMMANDS = [("ALLOW", "k", 5, 60, 5), ("ALLOW", "k", 5, 60, 5, "AT", T), ("PEEK", "k", 5, 60, 5),
            ("RECORD", "k", 5, 60, 5), ("ALLOW", "k", 5, 3600, 60), ("REFUND", "k", 1),
            ("ALLOW", "k", 5, 60, 5, "COST", 9, "BLOCK", "1m"),
            ("BLOCK", "k", "1m"), ("UNBLOCK", "k"), ("INFO", "k"), ("MALLOW", 1, "k", 5, 60, 5, 1),
            ("ADMIT", 1, "k", "RATE", 5, 60, 5, 1)]
OF_BUDGETS = [("BUDGET", "k", 5, END, "AT", T), ("BUDGET", "k", 5, END, "FORCE", "COST", 9, "AT", T),
              ("ADMIT", 1, "k", "BUDGET", 5, END, 1, "AT", T)]


@pytest.mark.parametrize("words", COMMANDS + OF_BUDGETS, ids=lambda words: " ".join(map(str, words)))
@pytest.mark.parametrize("other", [("SET", "k", "a string"), ("SET", "k", "x" * 400), ("SET", "k", "swl1" + "x" * 64),
                                   ("SET", "k", "swb1" + "x" * 24),
                                   ("SET", "k", 7), ("HSET", "k", "f", "v"), ("RPUSH", "k", "v"), ("SADD", "k", "v"),
                                   ("XADD", "k", "*", "f", "v"), ("SETBIT", "k", 100_000, 1)],
                         ids=lambda words: f"{words[0]} {str(words[2])[:8]}")
def test_foreign_values_are_refused_and_kept(plain, run, words, other):
    plain.call(*other)
    before = plain.call("DUMP", "k")
    assert run(f"SWLIMIT.{words[0]}", *words[1:]) == WRONGTYPE
    assert plain.call("DUMP", "k") == before


def header(resolution=5000, subintervals=12, newest=T // 5000, through=3.0, slid=0.0, blocked=0.0, slots=0.0,
           previous=0.0, before=0.0, magic=b"swl1", since=None):
    numbers = resolution, subintervals, newest, through, slid, blocked, slots, previous, before
    if since is not None:
        return struct.pack("<4s10d", b"swl2", -since, *numbers)
    return struct.pack("<4s9d", magic, *numbers)


@pytest.mark.parametrize("value", [
    header()[:-1], header() + b"x", header(slots=1), header(slots=99), header(magic=b"swl3"), header(through=0),
    header(through=float("nan")), header(newest=float("inf")), header(newest=-1), header(slots=float("nan")),
    header(before=5), header(slid=4), header(previous=3), header(slid=2, previous=1),
    header(blocked=-1), header(through=2.0**60), header(resolution=0, subintervals=0),
    header(resolution=0, subintervals=0, newest=0, through=0), header(slots=20) + bytes(16 * 16),
    header(slots=-1), header(magic=b"swl2"), header(since=T)[:-1], header(since=T) + b"x", header(since=T, slots=1),
    header(since=0), header(since=-T), header(since=0.5), header(since=2.0**53), header(since=float("nan")),
    header(since=T, resolution=0, subintervals=0, newest=0, through=0, blocked=1),
    header(since=T, slots=20) + bytes(15 * 16),
], ids=lambda value: f"{len(value)}:{crc32(value):08x}")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(map(str, words)))
def test_damaged_values_are_refused(plain, run, words, value):
    plain.call("SET", "k", value)
    reply = run(f"SWLIMIT.{words[0]}", *words[1:])
    if len(value) < 300:
        assert reply == WRONGTYPE
    else:  # the header stands for what it is until more of it is read
        assert not isinstance(reply, Failed) or reply == WRONGTYPE


def budget(used=3.0, since=T - 5.0, until=END + 0.0, magic=b"swb1"):
    return struct.pack("<4s3d", magic, used, since, until)


@pytest.mark.parametrize("value", [
    budget()[:-1], budget() + b"x", budget(magic=b"swb2"), budget(used=0.0), budget(used=1.5), budget(used=2.0**53),
    budget(used=float("nan")), budget(since=-1.0), budget(since=0.5), budget(since=float("nan")), budget(until=T - 5.0),
    budget(until=END + 0.5), budget(until=float("inf")), budget(until=float("nan")), budget(since=0.0),
], ids=lambda value: f"{len(value)}:{crc32(value):08x}")
def test_damaged_budgets_are_refused(plain, run, value):
    """And kept; a sound one, and one kind of key, is not the other."""
    for words in OF_BUDGETS + [("REFUND", "k", 1, "AT", T), ("INFO", "k")]:
        plain.call("SET", "k", value)
        assert run(f"SWLIMIT.{words[0]}", *words[1:]) == WRONGTYPE, words
        assert plain.call("GET", "k") == value
        plain.call("SET", "k", budget())
        assert not isinstance(run(f"SWLIMIT.{words[0]}", *words[1:]), Failed)
    for sound, others in [(budget(), [words for words in COMMANDS if words[0] not in ("REFUND", "INFO")]),
                          (header(), OF_BUDGETS)]:
        for words in others:
            plain.call("SET", "k", sound)
            assert run(f"SWLIMIT.{words[0]}", *words[1:]) == WRONGTYPE, words
            assert plain.call("GET", "k") == sound



@pytest.mark.parametrize("slots", [16.01, 20.3, 39.7, 21.0])
@pytest.mark.parametrize("later", [0, 5, 20.5, 39, 45])
def test_slots_that_are_not_there_are_no_error_of_lua_s(plain, run, slots, later):
    """A long value whose slots lie: found when they are read, at the latest."""
    newest = T // 1000
    first = b"".join(struct.pack("<2d", newest - 39 + number, 1 + number) for number in range(16))
    for words in [("ALLOW", "k", 30), ("ALLOW", "k", 3), ("ALLOW", "k", 300), ("PEEK", "k", 30), ("RECORD", "k", 30)]:
        plain.call("SET", "k", header(1000, 40, newest, 100.0, 1.0, 0.0, slots, 16.0) + first)
        reply = run(f"SWLIMIT.{words[0]}", *words[1:], "40s", "1s", "AT", int(T + 1000 * later))
        assert reply == WRONGTYPE or not isinstance(reply, Failed), reply


ODD = [float("nan"), float("inf"), -1.0, 0.5, 2.3, 20.3, 39.7, 1e300, 5e-324, T / 1000 + 3.5, T / 1000 + 30, 2.0**53]


def test_any_bytes_get_a_reply_or_wrongtype(plain):
    """Valid values with some bytes changed, and noise behind the magic: never an error of Lua's."""
    draw, odd = random.Random(3), 0
    calls = [scripted([f"SWLIMIT.{words[0]}", *words[1:]], sha()) for words in COMMANDS]
    for words in [(20, "20s", "1s"), (40, "40s", "1s"), (40, "40s", "1s")]:
        plain.call("DEL", "v")
        for second in range(words[0] + 3):
            plain.call(*scripted(["SWLIMIT.RECORD", "v", *words, "AT", T + 1000 * second], sha()))
        asked = [scripted([f"SWLIMIT.{name}", "k", *words, *options], sha()) for name, *options in
                 [("ALLOW",), ("PEEK", "AT", T), ("ALLOW", "COST", 20, "AT", T + 43_500), ("RECORD", "AT", T + 9000),
                  ("ALLOW", "COST", 2, "AT", T + 30_500), ("ALLOW", "COST", 2, "AT", T + 45_500)]]
        value = plain.call("GET", "v")
        for _ in range(1000):
            broken = bytearray(value)
            for _ in range(draw.choice([1, 1, 2, 8])):
                broken[draw.randrange(4, len(broken))] = draw.randrange(256)
            if draw.random() < 0.5:
                place = 4 + 8 * draw.randrange((len(broken) - 4) // 8)
                broken[place:place + 8] = struct.pack("<d", draw.choice(ODD))
            if draw.random() < 0.2:
                broken = broken[:draw.randrange(len(broken))] + draw.randbytes(draw.randrange(40))
            call = draw.choice(calls + asked * 3)
            reply = plain.calls([("SET", "k", bytes(broken)), call])[1]
            assert not isinstance(reply, Failed) or "script" not in reply, (reply, call, bytes(broken))
            odd += reply == WRONGTYPE
    assert odd > 100


@pytest.mark.parametrize("argument", [b"", b"\x01", b"\x03" + bytes(31), b"\x01" + bytes(32), b"\x07" + b"\xff" * 32,
                                      b"\x01" + struct.pack("<4Q", 5, 1000, 4097, 1),
                                      b"\x01" + struct.pack("<4Q", 2**53, 1000, 12, 1),
                                      b"\x01" + struct.pack("<4Q", 5, 0, 12, 1),
                                      b"\x01" + struct.pack("<4Q", 5, 1000, 12, 0),
                                      b"\x01" + struct.pack("<5Q", 5, 1000, 12, 1, 2**53)])
def test_packed_calls_are_checked(plain, argument):
    reply = plain.call("EVALSHA", sha(), 1, "k", argument)
    assert isinstance(reply, Failed) and reply.startswith("ERR ") and "script" not in reply
    assert plain.call("EXISTS", "k") == 0


def test_packed_calls_take_exactly_one_key(plain):
    call = packed("k", 5, 1000, 12, 1, sha())
    assert unpacked(plain.call(*call), 5)[:4] == [1, 5, 4, 0]
    for keys in ([], ["k", "l"]):
        reply = plain.call("EVALSHA", sha(), len(keys), *keys, call[-1])
        assert reply.startswith("ERR packed call")


def test_names_and_words_of_any_bytes(plain, run):
    for key in (b"", b"\0", b"\xff\xfe", b"a\r\nb", b"x" * 70_000):
        assert run("SWLIMIT.ALLOW", key, 5, 60, 5)[0] == 1
    assert run("SWLIMIT.ALLOW", "k", b"5\0", 60, 5).startswith("ERR limit must be")
    assert run("SWLIMIT.ALLOW", "k", 5, 60, 5, b"\r\n\xff") == r"ERR syntax error near '\r\n\xff'"
    for name in (b"", b"x", b"\xff\r\n", b"%d", b"x" * 100_000):
        reply = plain.call("EVALSHA", sha(), 1, "k", name, 5)
        assert reply.startswith("ERR syntax error near '") and len(reply) < 300
    assert plain.call("EVALSHA", sha(), 1, "k").startswith("ERR syntax error")


def test_a_flushed_script_cache_is_refilled(plain, run):
    """NOSCRIPT changes nothing; who gets it loads the script and asks again."""
    assert run("SWLIMIT.ALLOW", "k", 5, 60, 5)[2] == 4
    plain.call("SCRIPT", "FLUSH")
    assert run("SWLIMIT.ALLOW", "k", 5, 60, 5).startswith("NOSCRIPT")
    assert plain.calls([scripted(["SWLIMIT.ALLOW", "k", 5, 60, 5], sha())] * 3)[2].startswith("NOSCRIPT")
    load(plain)
    assert run("SWLIMIT.ALLOW", "k", 5, 60, 5)[2] == 3


def test_the_largest_windows_stay_far_below_the_time_limit(plain, run):
    """Everything that reads all of 4096 slots, with a limit of 1 s after which the server would answer BUSY."""
    plain.call("CONFIG", "SET", "lua-time-limit", 1000)
    for i in range(4097):
        plain.call(*packed("k", 2**50, 1000, 4096, 1, sha(), COUNT, T + 1000 * i))
    end = T + 4096 * 1000
    with Connection(plain.port) as other:
        for words in [("ALLOW", "k", 5000, "4096s", "1s", "AT", end + 1000),
                      ("ALLOW", "k", 5, "4096s", "1s", "AT", end), ("RECORD", "k", 5, "4096s", "1s", "AT", T + 2000),
                      ("PEEK", "k", 5, "1h", "1m", "AT", end), ("REFUND", "k", 2000, "AT", end),
                      ("ALLOW", "k", 9000, "4096m", "1m", "AT", end)]:
            assert not isinstance(run(f"SWLIMIT.{words[0]}", *words[1:]), Failed)
            assert other.call("PING") == b"PONG"
    slow = plain.call("SLOWLOG", "GET", 10)
    plain.call("CONFIG", "SET", "lua-time-limit", 5000)
    assert all(entry[2] < 1_000_000 for entry in slow if entry[3][:1] == [b"EVALSHA"]), slow
    assert run("SWLIMIT.ALLOW", "k", 5, "4097s", "1s") == (
        "ERR window / resolution is 4097 subintervals, above swlimit.max-subintervals (4096)")


def test_out_of_memory(plain, run):
    """Denials and looks are answered, what would count is refused, and what gives back works."""
    run("SWLIMIT.ALLOW", "k", 5, 60, 5, "COST", 5, "AT", T)
    plain.call("CONFIG", "SET", "maxmemory", 1)
    try:
        assert run("SWLIMIT.ALLOW", "k", 5, 60, 5, "AT", T)[0] == 0
        assert run("SWLIMIT.PEEK", "k", 9, 60, 5, "AT", T)[0] == 1
        for words in [("ALLOW", "k", 9, 60, 5, "AT", T), ("ALLOW", "new", 9, 60, 5), ("RECORD", "k", 9, 60, 5, "AT", T),
                      ("BLOCK", "k", "1m"), ("MALLOW", 1, "k", 9, 60, 5, 1, "AT", T),
                      ("BUDGET", "new", 9, END, "AT", T), ("ADMIT", 1, "new", "BUDGET", 9, END, 1, "AT", T)]:
            reply = run(f"SWLIMIT.{words[0]}", *words[1:])
            assert reply.startswith("OOM command not allowed when used memory > 'maxmemory'"), reply
        assert run("SWLIMIT.REFUND", "k", 5, "AT", T) == 5
    finally:
        plain.call("CONFIG", "SET", "maxmemory", 0)


@pytest.fixture
def user(plain):
    """Log in with these rights, on a connection of one's own."""
    opened = []

    def user(*rules):
        assert plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", *rules) == b"OK"
        opened.append(Connection(plain.port))
        assert opened[-1].call("AUTH", "u", "x") == b"OK"
        return opened[-1]

    yield user
    for connection in opened:
        connection.close()
    plain.call("ACL", "DELUSER", "u")


def test_rights(plain, user):
    """A key that is not one's own is refused, also as one of several; so is the script without the right to run any."""
    able = user("~limit:*", "+@all")
    assert able.call("EVALSHA", sha(), 1, "other:1", "ALLOW", 5, 60, 5).startswith("NOPERM")
    assert able.call("EVALSHA", sha(), 2, "limit:1", "other:1", "MALLOW", *[5, 60, 5, 1] * 2).startswith("NOPERM")
    assert user("~*", "+@all", "-@scripting").call("EVALSHA", sha(), 1, "k", "ALLOW", 5, 60, 5).startswith("NOPERM")
    assert plain.call("KEYS", "*") == []


@pytest.mark.parametrize("missing", ["-set", "-setrange", "-getrange", "-time"])
def test_missing_rights_count_nothing(plain, run, user, missing):
    """Not half of a MALLOW either."""
    run("SWLIMIT.ALLOW", "a", 5, 60, 5, "AT", T)
    unable = user("~*", "+@all", missing)
    for words in [["MALLOW", *[5, 60, 5, 1] * 2], ["MALLOW", *[5, 60, 5, 1] * 2, "AT", T],
                  ["ADMIT", "RATE", 5, 60, 5, 1, "BUDGET", 5, END, 1, "AT", T]]:
        reply = unable.call("EVALSHA", sha(), 2, "a", "b", *words)
        if isinstance(reply, Failed):
            assert "user_script" not in reply and ("can't run this command" in reply or "permission" in reply), reply
            assert plain.call("EXISTS", "b") == 0
            assert run("SWLIMIT.PEEK", "a", 5, 60, 5, "AT", T)[2] == 4
        else:
            assert missing in ("-setrange", "-time")
            plain.call("DEL", "a", "b")
            run("SWLIMIT.ALLOW", "a", 5, 60, 5, "AT", T)
