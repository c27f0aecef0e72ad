"""Keys of the script are the module's, once it is loaded: by takeover.lua, with their counts, holds and expiry."""

import random

import pytest

from script.test_convert import convert, without_memory
from support.bounds import MAX, T
from support.comparing import Commands, stands
from support.resp import Connection, Failed
from support.script import SEVERAL, TAKEOVER, load, scripted, sha
from support.waiting import eventually

END = T + 3_600_000
ROUNDS = [(60, 200), pytest.param(700, 2000, marks=pytest.mark.long)]  # and the keys there have to be, at least
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Caller:
    """Asks as a client does: of a key that is another's, the other one, once."""

    def __init__(self, connection):
        self.connection = connection
        load(connection)
        self.digest = connection.call("SCRIPT", "LOAD", TAKEOVER.read_bytes())
        self.taken = 0

    def take_over(self, key):
        return self.connection.call("EVALSHA", self.digest, 1, key)

    def by_script(self, words):
        reply = self.connection.call(*scripted(words, sha()))
        return self.by_module(words) if reply == WRONGTYPE else reply

    def by_module(self, words):
        reply = self.connection.call(*words)
        if reply != WRONGTYPE:
            return reply
        is_of_several = words[0].removeprefix("SWLIMIT.") in SEVERAL
        for key in words[2:2 + words[1]] if is_of_several else words[1:2]:
            self.taken += self.take_over(key)
        return self.connection.call(*words)


@pytest.fixture
def histories(start, clock):
    """Random commands, for a server that has had the module from the start, and one that has both."""
    def play(seed, rounds, ask):
        ours, theirs = start(env=clock.environment), start(env=clock.environment)
        with Connection(ours.port) as module, Connection(theirs.port) as both:
            if not stands(module):
                pytest.skip("needs a server whose clock can be stopped")
            for connection in (module, both):
                connection.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
            caller, commands = Caller(both), Commands(seed)
            commands.sha, commands.read_only, commands.clock = sha(), "EVALSHA_RO", clock
            draw, keys = random.Random(seed), 0
            for _ in range(rounds):
                commands.begin()
                commands.now = clock.ms if commands.by_clock else commands.now
                for step in range(80):
                    words, _ = commands.next()
                    expected, reply = module.call(*words), ask(caller, words, step)
                    assert without_memory(reply) == without_memory(expected), (words, step)
                names = module.call("KEYS", f"{{{commands.number}}}*")
                keys += len(names)
                assert sorted(names) == sorted(both.call("KEYS", f"{{{commands.number}}}*"))
                for name in names:
                    assert caller.take_over(name) in (0, 1)
                    assert both.call("PTTL", name) == module.call("PTTL", name), name
                    assert digest(both, name) == digest(module, name), name
                clock.set(clock.ms + draw.choice([0, 1, 1000, 60_000]))
            return keys, caller.taken
    return play


def digest(connection, key):
    return connection.call("DEBUG", "DIGEST-VALUE", key)


@pytest.mark.parametrize("rounds, least", ROUNDS)
def test_half_of_the_commands_by_the_script_and_then_the_module(histories, report, rounds, least):
    """Replies, expiries and digests are those of a server that had the module from the start."""
    def ask(caller, words, step):
        if not words[0].startswith("SWLIMIT."):
            return caller.connection.call(*words)
        return caller.connection.call(*scripted(words, sha())) if step < 40 else caller.by_module(words)

    keys, taken = histories(1, rounds, ask)
    report(f"{80 * rounds} commands, {keys} keys, {taken} taken over: 0 differ")
    assert keys >= least and taken > 50


@pytest.mark.parametrize("rounds, least", ROUNDS)
def test_a_fleet_that_changes_over_in_any_order(histories, report, rounds, least):
    """Each command goes to the script or to the module first, at random."""
    draw = random.Random(7)

    def ask(caller, words, _step):
        if not words[0].startswith("SWLIMIT."):
            return caller.connection.call(*words)
        return caller.by_script(words) if draw.random() < 0.5 else caller.by_module(words)

    keys, taken = histories(2, rounds, ask)
    report(f"{80 * rounds} commands, {keys} keys, {taken} taken over: 0 differ")
    assert keys >= least and taken > 50


@pytest.fixture
def both(server):
    with Connection(server.port) as connection:
        connection.call("FLUSHALL")
        yield Caller(connection)


def fill(caller, name, subintervals=3):
    """A window with a block, a budget, or holds that reserve both; by the script."""
    ask = caller.connection.call

    def by_script(*words):
        return ask(*scripted([f"SWLIMIT.{words[0]}", *words[1:]], sha()))

    if name == "window":
        for number in range(subintervals):
            by_script("RECORD", name, 5, f"{subintervals}s", "1s", "COST", 2, "AT", T + 1000 * number)
        by_script("BLOCK", name, "1h")
    elif name == "budget":
        by_script("BUDGET", name, 5, END, "FORCE", "COST", 9, "AT", T)
    else:
        by_script("HOLD", name, MAX, 60, b"\xff\0", "COST", 2**52)
        assert by_script("ADMIT", 3, name, "r", "b", "HOLD", MAX, 60, "id", 1, "RATE", 5, 60, 5, 2, "BUDGET", 5,
                         T + 3650 * 86_400_000, 1)[0] == 1


@pytest.mark.parametrize("name", ["window", "budget", "holds"])
def test_what_is_refused_leaves_the_key_as_it_is(both, server, name):
    """Out of memory, and without a right."""
    fill(both, name)
    before = both.connection.call("DUMP", name)
    both.connection.call("CONFIG", "SET", "maxmemory", 1)
    try:
        assert both.take_over(name).startswith("OOM")
        assert both.connection.call("DUMP", name) == before
    finally:
        both.connection.call("CONFIG", "SET", "maxmemory", 0)
    refused = set()
    for right in ("del", "type", "pexpiretime", "get", "zrange", "swlimit.apply"):
        both.connection.call("FLUSHALL")
        fill(both, name)
        before = both.connection.call("DUMP", name)
        both.connection.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "+@all", f"-{right}")
        with Connection(server.port) as unable:
            unable.call("AUTH", "u", "x")
            reply = unable.call("EVALSHA", both.digest, 1, name)
        if reply != 1:
            assert "can't run this command" in reply or "permission" in reply, reply
            assert both.connection.call("DUMP", name) == before, right
            refused.add(right)
    both.connection.call("ACL", "DELUSER", "u")
    assert refused == {"del", "type", "pexpiretime", "zrange" if name == "holds" else "get", "swlimit.apply"}
    both.connection.call("FLUSHALL")
    fill(both, name)
    assert both.take_over(name) == 1
    assert both.connection.call("TYPE", name).startswith(b"sw-")
    assert name.encode() not in [row[1] for row in both.connection.call("SWLIMIT.TOP", 100)]


def test_too_many_subintervals_for_the_module(both):
    fill(both, "window", 20)
    both.connection.call("CONFIG", "SET", "swlimit.max-subintervals", 10)
    before = both.connection.call("DUMP", "window")
    assert both.take_over("window") == (
        "ERR window / resolution is 20 subintervals, above swlimit.max-subintervals (10)")
    assert both.connection.call("DUMP", "window") == before


@pytest.mark.parametrize("other", [("SET", "k", "a string"), ("SET", "k", "swl1"), ("SET", "k", "swb1" + "x" * 25),
                                   ("HSET", "k", "f", "v"), ("ZADD", "k", 1, "e"), ("ZADD", "k", 5, "l"),
                                   ("SWLIMIT.ALLOW", "k", 5, 60, 5), ("PING",)],
                         ids=lambda words: " ".join(map(str, words)))
def test_other_keys_stay(both, other):
    both.connection.call(*other)
    before = both.connection.call("DUMP", "k")
    assert both.take_over("k") == 0
    assert both.connection.call("DUMP", "k") == before


def test_damaged_values_stay(both):
    """Whatever their bytes are: an error, or what the module takes, and never half of it."""
    draw = random.Random(3)
    for _ in range(300):
        both.connection.call("FLUSHALL")
        name = draw.choice(["window", "budget", "holds"])
        fill(both, name)
        if name == "holds":
            member = draw.choice(both.connection.call("ZRANGE", name, 0, -1))
            both.connection.call("ZADD", name, draw.choice([-1, 0, 1.5, 2.0**60, -2.0**60, "inf"]), member)
            if draw.random() < 0.3:
                both.connection.call("ZREM", name, member)
        else:
            value = bytearray(both.connection.call("GET", name))
            value[draw.randrange(4, len(value))] = draw.randrange(256)
            both.connection.call("SET", name, bytes(value))
        before = both.connection.call("DUMP", name)
        reply = both.take_over(name)
        assert reply in (0, 1) or isinstance(reply, Failed) and "script" not in reply, reply
        assert reply == 1 or both.connection.call("DUMP", name) == before


def test_a_hold_without_its_token_is_named(both):
    fill(both, "holds")
    member = next(one for one in both.connection.call("ZRANGE", "holds", 0, -1) if one.startswith(b"t"))
    both.connection.call("ZREM", "holds", member)
    before = both.connection.call("DUMP", "holds")
    assert both.take_over("holds") == "ERR the key is damaged: a hold has no token"
    assert both.connection.call("DUMP", "holds") == before


def test_replicas_get_the_module_s_effects(start):
    primary = start()
    replica = start(options={"replicaof": f"127.0.0.1 {primary.port}"})
    with Connection(primary.port) as connection, Connection(replica.port) as second:
        eventually(lambda: b"master_link_status:up" in second.call("INFO", "replication"))
        caller = Caller(connection)
        for name in ("window", "budget", "holds"):
            fill(caller, name)
            assert caller.take_over(name) == 1
        connection.call("WAIT", 1, 10_000)
        for name in ("window", "budget", "holds", "r", "b"):
            assert digest(second, name) == digest(connection, name), name
            assert second.call("PEXPIRETIME", name) == connection.call("PEXPIRETIME", name)


def test_many_holds(both, report):
    """10,000, as they are and with two reservations each: the server does nothing else meanwhile."""
    for label, words in [("plain", ["HOLD", "h", MAX, "1h", None]),
                         ("two reservations", ["ADMIT", 3, "h", "r", "b", "HOLD", MAX, "1h", None, 1, "RATE", MAX, 60,
                                               5, 1, "BUDGET", MAX, T + 3650 * 86_400_000, 1])]:
        both.connection.call("FLUSHALL")
        place = words.index(None)
        both.connection.calls([scripted([f"SWLIMIT.{words[0]}", *words[1:place], number, *words[place + 1:]], sha())
                               for number in range(10_000)])
        before = both.connection.call(*scripted(["SWLIMIT.HOLDERS", "h", 10_000, "AT", T], sha()))
        both.connection.call("SLOWLOG", "RESET")
        both.connection.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
        assert both.take_over("h") == 1
        took = max(entry[2] for entry in both.connection.call("SLOWLOG", "GET", 100))
        both.connection.call("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
        report(f"10,000 holds, {label}: taken over in {took / 1000:.0f} ms")
        assert both.connection.call("SWLIMIT.HOLDERS", "h", 10_000, "AT", T) == before and len(before) == 10_000


def test_a_server_s_keys_are_handed_over_by_a_command(both, server):
    """scripts/convert takeover names what stays."""
    for name in ("window", "budget", "holds"):
        fill(both, name)
    both.connection.call("SET", "mine", "a string")
    both.connection.call("SET", "damaged", b"swb1" + bytes(24))
    done = convert("takeover", f"redis://127.0.0.1:{server.port}")
    assert done.stdout == "convert: 5 keys taken over, 1 not\n" and "damaged" in done.stderr, done
    assert {both.connection.call("TYPE", name) for name in ("window", "budget", "holds", "r", "b")} == {
        b"sw-window", b"sw-budget", b"sw-holder"}
    assert convert("takeover", "redis://a", "redis://b").returncode == 2
