"""SWLIMIT.APPLY: all of it or nothing from a user; from a primary or a file, all but what another type's key is in the
way of; and always the same on a replica."""

import pytest

from support import aof
from support.bounds import MAX
from support.cli import WRONGTYPE, ask, batch, stored
from support.contents import digest, expiries, statistics, unchanged
from support.replication import PROMPT, follow, in_step
from support.resp import encode

T = 4_000_003_200_000  # ahead of the clock: no key expires
COUNT, BLOCK = f"c5000*12@{T}+3", f"b{T + 60_000}"
PERIOD, HOLD = f"p{T + 9}@{T}", f"ha>{T + 60_000}#7@{T}"


def apply(server, *words):
    return server.cli("SWLIMIT.APPLY", *words)


def test_effects_of_every_kind(server):
    """In their order, also where keys are named more than once."""
    assert apply(server, "k", COUNT, "p", PERIOD, "k", f"c5000*12@{T + 5_000}!", "h", HOLD, "k", f"r2@{T + 5_000}", "k",
                 BLOCK, "k", f"u@{T}", "h", f"hb>{T + 9}#9@{T}+4", "h", f"na>{T + 5}@{T}", "h", f"eb@{T}") == "10"
    assert stored(server, "k")["counts"] == {T: 2} and stored(server, "k")["blocked"] == 0
    assert ask(server, "PEXPIRETIME", "k") == [T + 65_000]
    assert server.cli("SWLIMIT.INFO", "p").split()[:2] == ["used", "1"]
    assert server.cli("SWLIMIT.HOLDERS", "h", "AT", T).split() == ["a", "1", str(T), "5", "7"]


def test_a_reservation_may_name_its_key(server):
    """Who takes a key of the script over cannot hash."""
    assert apply(server, "h", f"hid>{T + 60_000}#7@0;c5000*12@{T}+3=a%20key;p{T + 9}=p", "a key", COUNT, "p",
                 f"{PERIOD}") == "3"
    assert ask(server, "SWLIMIT.SETTLE", 3, "h", "a key", "p", "id", 1, 4, "AT", T) == [1, -2, 3]


@pytest.mark.parametrize("word", ["", "x", COUNT + "?", "c5000*12", "b0", "ha>9@1", "h>9#7@1", "e" + "a" * 129 + "@1",
                                  f"hid>{T}#7@0" + ";p9=k" * 64, "ha>9#7@0;p9=" + "k" * 65_536])
def test_damage_refuses_all(server, word):
    batch(server, [["SWLIMIT.APPLY", "k", COUNT]])
    with unchanged(server):
        for words in (["k", word], ["k", COUNT, "new", word], ["new", word, "k", COUNT]):
            assert apply(server, *words).startswith("ERR not an effect: "), words
        assert apply(server, "k", COUNT, "k") == "ERR wrong number of arguments for 'swlimit.apply' command"


def test_from_a_user_nothing_is_changed_where_a_key_is_of_another_type(server):
    batch(server, [["SET", "s", "x"], ["SWLIMIT.APPLY", "k", COUNT], ["SWLIMIT.APPLY", "h", HOLD]])
    with unchanged(server):
        for words in (["s", COUNT], ["new", COUNT, "s", f"r1@{T}"], ["k", PERIOD], ["h", f"r1@{T}"],
                      ["k", COUNT, "k", HOLD], ["new", COUNT, "new", PERIOD], ["k", COUNT, "h", f"u@{T}"]):
            assert apply(server, *words) == WRONGTYPE, words


def test_from_a_user_nothing_is_changed_where_a_count_would_overflow(server):
    batch(server, [["SWLIMIT.APPLY", "k", COUNT], ["SWLIMIT.APPLY", "h", HOLD], ["SWLIMIT.APPLY", "p", PERIOD]])
    with unchanged(server):
        for key, word in (("k", f"c5000*12@{T}+{MAX}"), ("p", f"{PERIOD}+{MAX}"), ("h", f"hb>{T + 9}#7@{T}+{MAX}")):
            for words in ([key, word], ["new", COUNT, key, word]):
                assert apply(server, *words) == "ERR count would overflow", words
        assert apply(server, "new", f"c5000*12@{T}+{MAX}", "new", f"c5000*12@{T}+1") == "ERR count would overflow"


def test_a_user_has_no_more_subintervals_than_are_set(start):
    server = start(module_args=["max-subintervals", 10])
    error = "ERR window / resolution is 12 subintervals, above swlimit.max-subintervals (10)"
    assert apply(server, "k", COUNT) == apply(server, "new", BLOCK, "k", COUNT) == error
    assert server.cli("DBSIZE") == "0"


def test_from_a_file_only_a_key_of_another_type_is_left(start):
    server = start(options={"appendonly": "yes", "appendfsync": "always"}, module_args=["max-subintervals", 10])
    server.cli("SET", "s", "x")
    server.kill()
    with open(aof.written(server), "ab") as end:
        end.write(encode("SWLIMIT.APPLY", "k", COUNT, "s", COUNT, "p", PERIOD, "h", HOLD, "k", PERIOD + "~0"))
        end.write(encode("SWLIMIT.APPLY", "s", HOLD))
        end.write(encode("SWLIMIT.APPLY", "l", f"c5000*12@{T}+{MAX}", "l", COUNT, "l", f"c5000*12@{T}:5"))
    server.start()
    assert batch(server, [["GET", "s"], ["EXISTS", "k", "p", "h", "l"]]) == ["x", "3"]
    assert stored(server, "l")["total"] == MAX
    before = digest(server), expiries(server)
    server.restart()
    assert (digest(server), expiries(server)) == before


def test_a_replica_passes_effects_on_as_they_are(start):
    """And leaves alone what is of another type there; so does its file, read again."""
    primary = start(options=PROMPT)
    replica = start(options=PROMPT | {"appendonly": "yes", "appendfsync": "always", "replica-read-only": "no"})
    second = start(options=PROMPT | {"replica-read-only": "no"})
    follow(replica, primary)
    follow(second, replica)
    for server in (replica, second):
        server.cli("SET", "{t}s", "x")
    before = len(aof.commands(replica))
    batch(primary, [["SWLIMIT.MALLOW", 3, "{t}k", "{t}s", "{t}l", *(9, 60, 5, 2) * 3], ["SWLIMIT.ALLOW", "k", 9, 60, 5],
                    ["SWLIMIT.RECORD", "k", 0, 60, 5, "BLOCK", "1h"], ["SWLIMIT.HOLD", "h", 9, "1h", b"\xff%,"],
                    ["SWLIMIT.RELEASE", "h", b"\xff%,"]])
    in_step(replica, primary)
    in_step(second, replica)
    assert [words[1::2] for words in aof.commands(replica)[before:] if words[0] == "SWLIMIT.APPLY"] == [
        ["{t}k", "{t}s", "{t}l"], ["k"], ["k", "k"], ["h"], ["h"]]
    for server in (replica, second):
        assert server.cli("GET", "{t}s") == "x"
        for key in ("{t}k", "{t}l", "k"):
            assert stored(server, key) == stored(primary, key)
    held = digest(replica), expiries(replica)
    assert replica.cli("DEBUG", "LOADAOF") == "OK"
    assert (digest(replica), expiries(replica)) == held


def test_many_ids_are_several_words(start):
    """Of one command, and none of them too long."""
    server = start(options={"appendonly": "yes", "appendfsync": "always"})
    ids = [b"\xff" * 120 + b"%08d" % number for number in range(1_000)]
    batch(server, [["SWLIMIT.HOLD", "k", MAX, "1h", id] for id in ids])
    before = len(aof.commands(server))
    assert ask(server, "SWLIMIT.RENEW", "k", "2h", *ids) == [1] * 1_000
    assert ask(server, "SWLIMIT.RELEASE", "k", *ids[1:]) == [999]
    renewed, released = aof.commands(server)[before:]
    assert [len(words[1::2]) for words in (renewed, released)] == [8, 8]
    assert max(map(len, renewed)) < 65_536
    held = digest(server), expiries(server)
    server.restart()
    assert (digest(server), expiries(server)) == held


def test_it_is_counted_as_what_it_repeats(server):
    names = "recorded", "refunded", "blocked", "held", "renewed", "released", "denied", "granted"
    before = [statistics(server)[name] for name in names]
    apply(server, "k", COUNT, "k", f"r1@{T}", "k", BLOCK, "p", PERIOD, "h", HOLD, "h", f"na>{T + 5}@{T}", "h",
          f"ea@{T}")
    assert [statistics(server)[name] - was for name, was in zip(names, before)] == [2, 1, 1, 1, 1, 1, 0, 0]


def test_rights_and_memory(server):
    for rules, allowed in (("+swlimit.apply ~k ~h", True), ("+swlimit.apply ~k", False),
                           ("+swlimit.apply %R~k %RW~h", False), ("+@all -swlimit.apply ~*", False)):
        server.cli("ACL", "SETUSER", "ann", "reset", "on", "nopass", *rules.split())
        reply = server.cli("SWLIMIT.APPLY", "k", COUNT, "h", HOLD,
                           flags=["--user", "ann", "--pass", "x", "--no-auth-warning"])
        assert reply == "2" if allowed else reply.startswith("NOPERM"), rules
    server.cli("ACL", "DELUSER", "ann")
    server.cli("CONFIG", "SET", "maxmemory", 1)
    assert apply(server, "k", COUNT).startswith("OOM ")
    server.cli("CONFIG", "SET", "maxmemory", 0)
