"""Subscribers of key events that remove keys, as another module may: nothing that is still in use is freed."""

import shutil
import time
from itertools import product

from support.bounds import T
from support.contents import statistics
from support.lacking import lacking, needed
from support.memcheck import memcheck, records
from support.resp import Connection, Failed
from support.server_modules import built
from support.waiters import BLOCKED, PATIENT, waiters
from support.waiting import eventually

UNTIL = (int(time.time()) + 30 * 86_400) * 1000
PERIOD = 3_600_000
HOUR = ("1h", "1m")
GONE = ("SWLIMIT.APPLY", "gone", f"c60000*60@{T}~1")  # expired, which the server has not noticed
KEPT = ("SWLIMIT.HOLD", "kept", 9, "1h", "id")
WINDOW = ("SWLIMIT.RECORD", "w", 9, *HOUR, "COST", 2)
OTHER = ("SWLIMIT.RECORD", "v", 9, *HOUR)
BUDGET = ("SWLIMIT.BUDGET", "b", 9, UNTIL, "COST", 2)
ADMIT = ("SWLIMIT.ADMIT", 4, "kept", "w", "b", "more", "HOLD", 9, "1h", "id", 1, "RATE", 9, *HOUR, 2, "BUDGET", 9,
         UNTIL, 2, "HOLD", 9, "1h", "id", 1)
SETTLE = ("SWLIMIT.SETTLE", 4, "kept", "w", "b", "more", "id")
MALLOW = ("SWLIMIT.MALLOW", 3, "w", "v", "gone", *(9, *HOUR, 1) * 3)
KEYS = ("w", "v", "b", "kept", "more", "gone")

# What is there before, a command, and the events that it raises; `del?` where the clock decides.
CALLS = {
    "allow": ([WINDOW], ("SWLIMIT.ALLOW", "w", 9, *HOUR), "granted"),
    "allow, new": ([], ("SWLIMIT.ALLOW", "w", 9, *HOUR), "granted"),
    "allow, denied": ([WINDOW], ("SWLIMIT.ALLOW", "w", 0, *HOUR, "BLOCK", "1m"), "denied blocked"),
    "allow, expired": ([GONE], ("SWLIMIT.ALLOW", "gone", 9, *HOUR), "granted expired"),
    "peek": ([WINDOW, GONE], ("SWLIMIT.PEEK", "gone", 9, *HOUR), "expired"),
    "acquire": ([WINDOW], ("SWLIMIT.ACQUIRE", "w", 9, *HOUR, 0), "granted"),
    "acquire, denied": ([WINDOW], ("SWLIMIT.ACQUIRE", "w", 1, *HOUR, 0), "denied"),
    "record": ([WINDOW], ("SWLIMIT.RECORD", "w", 1, *HOUR, "BLOCK", "1m"), "recorded blocked"),
    "refund": ([WINDOW], ("SWLIMIT.REFUND", "w", 1), "refunded"),
    "refund all": ([WINDOW], ("SWLIMIT.REFUND", "w", 2), "refunded del"),
    "refund a budget": ([BUDGET], ("SWLIMIT.REFUND", "b", 2), "refunded del"),
    "block": ([WINDOW], ("SWLIMIT.BLOCK", "w", "1h"), "blocked"),
    "unblock": ([("SWLIMIT.BLOCK", "w", "1h")], ("SWLIMIT.UNBLOCK", "w"), "unblocked del"),
    "mallow": ([WINDOW, OTHER], MALLOW, "granted"),
    "mallow, one expired": ([WINDOW, OTHER, GONE], MALLOW, "granted expired"),
    "mallow, denied": ([WINDOW, OTHER, GONE], (*MALLOW[:-4], 0, *HOUR, 1), "denied expired"),
    "mallow, refused": ([WINDOW, GONE, ("SET", "v", "x")], ("SWLIMIT.MALLOW", 3, "w", "gone", "v",
                                                             *(9, *HOUR, 1) * 3), "expired"),
    "hold": ([], KEPT, "held"),
    "hold again": ([KEPT], (*KEPT[:3], "2h", "id"), "renewed"),
    "hold, denied": ([KEPT], ("SWLIMIT.HOLD", "kept", 1, "1h", "other"), "denied"),
    "renew": ([KEPT], ("SWLIMIT.RENEW", "kept", "2h", "id"), "renewed"),
    "release": ([KEPT, ("SWLIMIT.HOLD", "kept", 9, "1h", "z")], ("SWLIMIT.RELEASE", "kept", "z"), "released"),
    "release all": ([("SWLIMIT.HOLD", "kept", 9, "1h", "id", "AT", 1)], ("SWLIMIT.RELEASE", "kept", "id", "AT", 2000),
                    "released del"),
    "budget": ([BUDGET], ("SWLIMIT.BUDGET", "b", 9, UNTIL), "granted"),
    "budget, denied": ([BUDGET], ("SWLIMIT.BUDGET", "b", 1, UNTIL), "denied"),
    "budget, forced": ([BUDGET], ("SWLIMIT.BUDGET", "b", 1, UNTIL, "FORCE"), "recorded"),
    "admit": ([WINDOW], ADMIT, "granted held"),
    "admit again": ([WINDOW, ADMIT], (*ADMIT[:8], "2h", *ADMIT[9:]), "renewed"),
    "admit, denied": ([WINDOW], (*ADMIT[:12], 1, *ADMIT[13:]), "denied"),
    "admit beside a live second hold": ([("SWLIMIT.HOLD", "more", 9, "2h", "id")], ADMIT, "granted held renewed"),
    "admit, one expired": ([KEPT, GONE], ("SWLIMIT.ADMIT", 2, "kept", "gone", "HOLD", 9, "1h", "x", 1, "RATE", 9, *HOUR,
                                          1), "granted held expired"),
    "settle": ([WINDOW, ADMIT], (*SETTLE, 1, 1, 0), "settled refunded released del?"),
    "settle, beyond": ([WINDOW, ADMIT], (*SETTLE, 5, 5, 0), "settled recorded released del?"),
    "settle, one expired": ([("SWLIMIT.ADMIT", 3, "kept", "w", "gone", "HOLD", 9, "1h", "id", 1, "RATE", 9, *HOUR, 2,
                              "RATE", 9, *HOUR, 2), ("DEL", "gone"), GONE],
                            ("SWLIMIT.SETTLE", 3, "kept", "w", "gone", "id", 5, 5), "settled recorded expired del?"),
    "apply": ([WINDOW, KEPT], ("SWLIMIT.APPLY", "w", f"c60000*60@{T}+9", "kept", "hx>5#7@1", "w", f"b{T}", "b",
                               f"p{T}@{T - 1}", "gone", f"u@{T}"), "recorded held blocked"),
    "apply, all goes": ([WINDOW, GONE], ("SWLIMIT.APPLY", "w", f"r2@{UNTIL - 30 * 86_400_000}", "gone", f"b{T}", "gone",
                                         f"u@{T}"), "refunded del blocked unblocked expired"),
    "info": ([WINDOW], ("SWLIMIT.INFO", "w"), ""),
    "holders": ([KEPT], ("SWLIMIT.HOLDERS", "kept"), ""),
    "top": ([WINDOW], ("SWLIMIT.TOP",), ""),
}
# One of these is put under the name of an expired key by a subscriber of `expired`, while a command opens that key.
PUT = {
    "window": ("SWLIMIT.RECORD", "gone", 9, *HOUR, "AT", T),
    "holds": ("SWLIMIT.HOLD", "gone", 9, "1h", "thief", "AT", T),
    "budget": ("SWLIMIT.BUDGET", "gone", 9, T + PERIOD, "AT", T),
    "string": ("SET", "gone", "x"),
}
HELD_ELSEWHERE = ("SWLIMIT.ADMIT", 2, "kept", "gone", "HOLD", 9, "1h", "id", 1)
ON_EXPIRED = {
    "allow": ([], ("SWLIMIT.ALLOW", "gone", 1, *HOUR, "BLOCK", "1m", "AT", T)),
    "acquire": ([], ("SWLIMIT.ACQUIRE", "gone", 1, *HOUR, 0)),
    "record": ([], ("SWLIMIT.RECORD", "gone", 1, *HOUR, "AT", T)),
    "refund": ([], ("SWLIMIT.REFUND", "gone", 1, "AT", T)),
    "block": ([], ("SWLIMIT.BLOCK", "gone", "1h", "AT", T)),
    "unblock": ([], ("SWLIMIT.UNBLOCK", "gone", "AT", T)),
    "hold": ([], ("SWLIMIT.HOLD", "gone", 1, "1h", "id", "AT", T)),
    "hold again": ([], ("SWLIMIT.HOLD", "gone", 1, "2h", "thief", "AT", T)),
    "renew": ([], ("SWLIMIT.RENEW", "gone", "2h", "thief", "AT", T)),
    "release": ([], ("SWLIMIT.RELEASE", "gone", "thief", "AT", T)),
    "budget": ([], ("SWLIMIT.BUDGET", "gone", 1, T + PERIOD, "AT", T)),
    "budget, forced": ([], ("SWLIMIT.BUDGET", "gone", 1, T + PERIOD, "FORCE", "AT", T)),
    "mallow": ([WINDOW], ("SWLIMIT.MALLOW", 2, "w", "gone", *(9, *HOUR, 1) * 2, "AT", T)),
    "admit a rate": ([], (*HELD_ELSEWHERE, "RATE", 1, *HOUR, 1, "AT", T)),
    "admit a hold": ([], (*HELD_ELSEWHERE, "HOLD", 1, "1h", "x", 1, "AT", T)),
    "admit a budget": ([], (*HELD_ELSEWHERE, "BUDGET", 1, T + PERIOD, 1, "AT", T)),
    "settle": ([(*HELD_ELSEWHERE, "RATE", 9, *HOUR, 2, "AT", T), ("DEL", "gone")],
               ("SWLIMIT.SETTLE", 2, "kept", "gone", "id", 5, "AT", T)),
    "apply": ([], ("SWLIMIT.APPLY", "gone", f"c60000*60@{T}+9")),
    "apply to several": ([WINDOW], ("SWLIMIT.APPLY", "w", f"r1@{T}", "gone", f"hid>{T + 9}#7@{T}", "gone", f"eid@{T}")),
    "peek": ([], ("SWLIMIT.PEEK", "gone", 1, *HOUR, "AT", T)),
    "info": ([], ("SWLIMIT.INFO", "gone")),
    "holders": ([], ("SWLIMIT.HOLDERS", "gone", "AT", T)),
}
READING = ("peek", "info", "holders")
EVENTS = [*(f"swlimit.{name}" for name in ("granted", "denied", "recorded", "refunded", "blocked", "unblocked", "held",
                                           "released", "renewed", "settled")), "del", "expired"]


def raised(names):
    return {name if name in ("del", "del?", "expired") else f"swlimit.{name}" for name in names.split()}


def ways(command):
    """The command by itself, in a transaction, and in a script."""
    yield "command", [command]
    yield "MULTI", [("MULTI",), command, ("EXEC",)]
    yield "script", [("EVAL", "return redis.call(unpack(ARGV))", 0, *command)]


def calls(pipe):
    """Everything: that each event is raised where it should be, and that the server goes on."""
    done = 0
    for (name, (before, command, named)), event, (deed, keys) in product(
            CALLS.items(), EVENTS, (("delete", KEYS), ("flush", ()), ("rename", KEYS))):
        expected = raised(named)
        for way, commands in ways(command):
            if way != "command" and (event not in expected or deed == "rename"):
                continue
            *_, acted = pipe.calls([("FLUSHALL",), ("SWLIMIT.RECORD", "gone:w", 1, 60, 1), *before,
                                    ("SABOTEUR.ARM", event, deed, *keys)])
            *replies, after = pipe.calls([*commands, ("SABOTEUR.DISARM",)])
            assert after - acted == (event in expected) or f"{event}?" in expected, f"{name}: {event}, {way}: {replies}"
            done += 1
    assert pipe.call("FLUSHALL") == b"OK"
    return done


def recreations(pipe):
    """A command whose key has expired, and is there again before the command has opened it: it finds what a subscriber
    has put there, and all that is left is as if it had been there before."""
    done = 0
    for (name, (before, command)), (kind, put) in product(ON_EXPIRED.items(), PUT.items()):
        *_, expected = pipe.calls([("FLUSHALL",), *before, put, command])
        stored = pipe.call("DEBUG", "DIGEST")
        arm = ("SABOTEUR.ARM", "expired", "call", *put)
        *_, acted, reply, after = pipe.calls([("FLUSHALL",), *before, GONE, arm, command, ("SABOTEUR.DISARM",)])
        what = f"{name}, {kind}: {reply} for {expected}"
        assert after - acted == 1, what
        assert pipe.call("DEBUG", "DIGEST") == stored, what
        if name == "acquire" and not isinstance(expected, Failed):
            reply, expected = reply[:3], expected[:3]  # the rest is by the clock
        assert name in READING or str(reply) == str(expected), what
        done += 1
    assert pipe.call("FLUSHALL") == b"OK"
    return done


def waits(server, pipe):
    """What timers do, and commands that end waits."""
    armed = [("delete", KEYS), ("flush", ())]
    for event, deed in product(("swlimit.granted", "swlimit.held", "swlimit.denied", "swlimit.released"), armed):
        with waiters(server) as wait:
            pipe.calls([("FLUSHALL",), ("SWLIMIT.BLOCK", "w", BLOCKED), KEPT])
            units = [wait("w", 9, *HOUR, PATIENT) for _ in range(2)]
            holds = [wait("kept", 1, "1h", id, "WAIT", "1h", command="SWLIMIT.HOLD") for id in "xyz"]
            pipe.call("SABOTEUR.ARM", event, deed[0], *deed[1])
            pipe.calls([("SWLIMIT.RELEASE", "kept", "y"), ("CLIENT", "UNBLOCK", holds[2].id)])
            assert [holds[place].answer()[0] for place in (1, 2)] == [0, 0]
            pipe.calls([("SWLIMIT.UNBLOCK", "w"), ("SWLIMIT.RELEASE", "kept", "id")])
            assert [waiter.answer()[0] for waiter in (*units, holds[0])] == [1, 1, 1]
            pipe.call("SABOTEUR.DISARM")


def test_nobody_uses_what_a_subscriber_has_removed(start, tmp_path):
    server = start(options={"loadmodule": built("saboteur", tmp_path)})
    with Connection(server.port) as pipe:
        pipe.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        calls(pipe)
        recreations(pipe)
        waits(server, pipe)
        pipe.call("FLUSHALL")
        eventually(lambda: (statistics(server)["keys"], statistics(server)["memory"]), (0, 0))
    assert server.alive


def test_no_invalid_access(start, tmp_path, report):
    """Memcheck sees none, in the module or in the server, which uses the C library's allocator."""
    if not shutil.which("valgrind"):
        lacking("valgrind: memory safety is not tested")
    server = start(binaries=needed("valkey-9.1"), before=memcheck(tmp_path), ready_seconds=120,
                   options={"loadmodule": built("saboteur", tmp_path)})
    with Connection(server.port, timeout=300) as pipe:
        pipe.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        done = calls(pipe)
        again = recreations(pipe)
        waits(server, pipe)
    server.stop(timeout=120)
    found = [record for record in records(tmp_path) if "in loss record" not in record]
    report(f"{done} runs of {len(CALLS)} commands with {len(EVENTS)} events, and {again} with keys that are there "
           f"again: {len(found)} invalid accesses")
    assert not found, "\n\n".join(found[:10])


def test_a_subscriber_does_not_jump_the_queue(start, tmp_path):
    """Its HOLD comes while the first that waits is granted: it queues, as everybody's."""
    server = start(options={"loadmodule": built("saboteur", tmp_path)})
    with waiters(server) as wait, Connection(server.port) as pipe:
        pipe.call(*KEPT[:2], 1, *KEPT[3:])
        first, second = (wait("kept", 1, "1h", id, "WAIT", "1h", command="SWLIMIT.HOLD") for id in "ab")
        pipe.call("SABOTEUR.ARM", "swlimit.held", "hold", "kept")
        pipe.call("SWLIMIT.RELEASE", "kept", "id")
        assert first.answer()[0] == 1
        assert pipe.call("SABOTEUR.DISARM") == 1
        assert [hold[0] for hold in pipe.call("SWLIMIT.HOLDERS", "kept")] == [b"a"]
        assert not second.is_answered


def test_deletions_are_told_last(start, tmp_path):
    """A key's `del` comes after what happened to it."""
    server = start(options={"notify-keyspace-events": "Egd"})
    with Connection(server.port) as pipe, server.client() as client, client.pubsub() as heard:
        pipe.calls([("SWLIMIT.RECORD", "w", 9, *HOUR), ("SWLIMIT.HOLD", "h", 9, "1h", "id", "AT", 1)])
        heard.psubscribe("__keyevent@0__:*")
        heard.get_message(timeout=10)
        replies = pipe.calls([("SWLIMIT.REFUND", "w", 1), ("SWLIMIT.RELEASE", "h", "id", "AT", 2000)])
        assert not any(isinstance(reply, Failed) for reply in replies)
        names = [heard.get_message(timeout=10)["channel"].decode().split(":")[1] for _ in range(4)]
    assert names == ["swlimit.refunded", "del", "swlimit.released", "del"]
