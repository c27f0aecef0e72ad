"""Holds and budgets: words, errors, effects, expiry, events, statistics."""

import random

import pytest

from support import aof
from support.bounds import MAX, MAX_WINDOW, T
from support.cli import WRONGTYPE, batch, feed
from support.contents import digest, info_of, statistics, unchanged
from support.events import events
from support.holding_workload import HoldingWorkload, Refused, answers
from support.payloads import damaged, leb128
from support.waiting import eventually

pytestmark = pytest.mark.as_run
LAST = 9_007_199_254_740
LIMIT = f"ERR limit must be an integer between 0 and {MAX}"
END = "ERR until must be a Unix time in milliseconds after now, at most 3650 days"


def ask(server, *words):
    reply, = answers(server, [words])
    return reply


ERRORS = [
    ("HOLD k x 60 a", LIMIT), ("HOLD k -1 60 a", LIMIT), (f"HOLD k {MAX + 1} 60 a", LIMIT),
    ("HOLD k 1 0 a", "ERR ttl must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    ("HOLD k 1 3651d a", "ERR ttl must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["HOLD", "k", "1", "60", ""], "ERR id must be 1 to 128 bytes"),
    (["HOLD", "k", "1", "60", "x" * 129], "ERR id must be 1 to 128 bytes"),
    ("HOLD k 1 60 a COST 0", f"ERR cost must be an integer between 1 and {MAX}"),
    (f"HOLD k 1 60 a AT {LAST + 1}", "ERR AT must be a Unix time in milliseconds"),
    ("HOLD k 1 60 a AT 1 AT 1", "ERR syntax error near 'AT'"),
    ("HOLD k 1 60 a STRICT", "ERR syntax error near 'STRICT'"),
    ("HOLD k 1 60 a WAIT 5 AT 1", "ERR syntax error near 'AT'"),
    ("HOLD k 1 60 a AT 1 WAIT 5", "ERR syntax error near 'WAIT'"),
    ("HOLD k 1 60 a WAIT 61m", "ERR timeout must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    ("HOLD k 1 60 a WAIT x", "ERR timeout must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    ("HOLD k 1 60 a END 5", "ERR syntax error near 'END'"), ("HOLD k 1 60 a TOKEN 5", "ERR syntax error near 'TOKEN'"),
    ("HOLD k 1 60 a UNTIL 5", "ERR syntax error near 'UNTIL'"),
    ("HOLD k 1 60 a RESERVED 1", "ERR syntax error near 'RESERVED'"),
    ("HOLD k 1 60", "ERR wrong number of arguments for 'swlimit.hold' command"),
    ("RELEASE k", "ERR wrong number of arguments for 'swlimit.release' command"),
    ("RELEASE k a AT x", "ERR AT must be a Unix time in milliseconds"),
    (["RELEASE", "k", "a", ""], "ERR id must be 1 to 128 bytes"),
    ("RENEW k 60", "ERR wrong number of arguments for 'swlimit.renew' command"),
    (f"RENEW k 60 a AT {LAST + 1}", "ERR AT must be a Unix time in milliseconds"),
    ("HOLDERS k 0", "ERR count must be an integer between 1 and 10000"),
    ("HOLDERS k 10001", "ERR count must be an integer between 1 and 10000"),
    ("HOLDERS k 5 COST 5", "ERR syntax error near 'COST'"),
    (f"BUDGET k x {T}", LIMIT), ("BUDGET k 1 x", END), (f"BUDGET k 1 {T} AT {T}", END),
    (f"BUDGET k 1 {T + MAX_WINDOW + 1} AT {T}", END),
    (f"BUDGET k 1 {T} PARTIAL FORCE", "ERR syntax error near 'FORCE'"),
    (f"BUDGET k 1 {T} FORCE PARTIAL", "ERR syntax error near 'PARTIAL'"),
    ("BUDGET k 1", "ERR wrong number of arguments for 'swlimit.budget' command"),
]


@pytest.mark.parametrize("words, error", ERRORS, ids=lambda value: "-" if isinstance(value, list) else value[:40])
def test_errors_change_nothing(server, words, error):
    name, *rest = words.split() if isinstance(words, str) else words
    with unchanged(server):
        assert server.cli(f"SWLIMIT.{name}", *rest) == error


def test_a_live_id_with_another_cost(server):
    assert ask(server, "SWLIMIT.HOLD", "k", 9, "1h", "a", "COST", 5, "AT", T)[0] == 5
    with unchanged(server):
        assert server.cli("SWLIMIT.HOLD", "k", 9, "1h", "a", "AT", T) == "ERR id holds 5 units"
    assert ask(server, "SWLIMIT.HOLD", "k", 0, "2h", "a", "COST", 5, "AT", T + 1) == [5, 0, 0, 0, 7_200_000, T * 1_000]


def test_each_type_is_for_its_own_commands(server):
    batch(server, [["SET", "text", "x"], ["SWLIMIT.ALLOW", "window", 5, 60, 5], ["SWLIMIT.HOLD", "hold", 5, "1h", "a"],
                   ["SWLIMIT.BUDGET", "budget", 5, 4_000_000_000_000 - 1, "AT", 3_999_999_999_999 - MAX_WINDOW]])
    batch(server, [["SWLIMIT.BUDGET", "budget", 5, 2_000_000_000_000]])
    commands = {"window": [["ALLOW", 5, 60, 5], ["PEEK", 5, 60, 5], ["RECORD", 5, 60, 5], ["BLOCK", 5], ["UNBLOCK"]],
                "hold": [["HOLD", 5, 60, "a"], ["RELEASE", "a"], ["RENEW", 5, "a"], ["HOLDERS"]],
                "budget": [["BUDGET", 5, 2_000_000_000_000]]}
    for type_name, own in commands.items():
        for key in {"text", *commands} - {type_name}:
            with unchanged(server):
                for name, *rest in own:
                    assert server.cli(f"SWLIMIT.{name}", key, *rest) == WRONGTYPE, (name, key)
    with unchanged(server):
        assert server.cli("SWLIMIT.REFUND", "hold", 1) == server.cli("SWLIMIT.REFUND", "text", 1) == WRONGTYPE
        assert server.cli("SWLIMIT.INFO", "text") == WRONGTYPE
    assert [server.cli("TYPE", key) for key in commands] == ["sw-window", "sw-holder", "sw-budget"]


def test_info_of_holds_and_budgets(server):
    now = ask(server, "TIME")[0] * 1_000
    token = ask(server, "SWLIMIT.HOLD", "h", 9, "1h", "a", "COST", 4, "AT", now)[5]
    ask(server, "SWLIMIT.HOLD", "h", 9, "1ms", "b", "AT", now - 500_000)
    shown = ask(server, "SWLIMIT.INFO", "h")
    shown = shown if isinstance(shown, dict) else dict(zip(shown[::2], shown[1::2], strict=True))
    assert shown.pop("memory") == info_of(server, "h", "memory") > 100
    assert shown == {"holds": 1, "units": 4, "end": now + 3_600_000, "token": token + 1}
    ask(server, "SWLIMIT.BUDGET", "b", 9, now + 3_600_000, "COST", 3, "AT", now)
    shown = ask(server, "SWLIMIT.INFO", "b")
    shown = shown if isinstance(shown, dict) else dict(zip(shown[::2], shown[1::2], strict=True))
    assert shown.pop("memory") > 0
    assert shown == {"used": 3, "since": now, "until": now + 3_600_000}


def test_too_many_holds(start):
    server = start(module_args=["max-holds", 2])
    assert ask(server, "CONFIG", "GET", "swlimit.max-holds") in (["swlimit.max-holds", "2"], {"swlimit.max-holds": "2"})
    assert [ask(server, "SWLIMIT.HOLD", "k", 9, "1h", id, "AT", T)[0] for id in "ab"] == [1, 1]
    with unchanged(server):
        assert server.cli("SWLIMIT.HOLD", "k", 9, "1h", "c", "AT", T) == "ERR too many holds"
    assert ask(server, "SWLIMIT.HOLD", "k", 2, "1h", "c", "AT", T)[:4] == [0, 2, 0, 3_600_000]
    assert ask(server, "SWLIMIT.HOLD", "k", 9, "1h", "a", "AT", T)[0] == 1  # live: renewed
    assert ask(server, "SWLIMIT.HOLD", "k", 9, "1h", "c", "AT", T + 3_600_000)[0] == 1  # all have ended
    # What was accepted once is obeyed.
    for id in "defg":
        assert ask(server, "SWLIMIT.APPLY", "k", f"h{id}>4000000000000#7@{T}") == 1


def test_a_key_whose_tokens_are_used_up_says_so(server):
    now = ask(server, "TIME")[0] * 1_000
    ask(server, "SWLIMIT.APPLY", "k", f"ha>{now + 60_000}#{2**53 - 1}@{now}!")
    with unchanged(server):
        used_up = "ERR the fencing token of this key is used up"
        assert server.cli("SWLIMIT.HOLD", "k", 9, "1h", "b") == used_up
        assert server.cli("SWLIMIT.ADMIT", 1, "k", "HOLD", 9, "1h", "b", 1) == used_up


@pytest.mark.parametrize("command", [
    ("HOLD", "k", 9, "1h", "b"), ("RENEW", "k", "1h", "live"), ("ADMIT", 1, "k", "HOLD", 9, "1h", "b", 1),
], ids=lambda words: words[0])
def test_a_hold_from_the_future_shortens_no_other(server, command):
    """A hold lives as long as its ttl by the clock, although one that ends later, seen from its AT, is there."""
    now = ask(server, "TIME")[0] * 1_000
    ask(server, "SWLIMIT.HOLD", "k", 9, "2s", "future", "AT", now + 10 * 86_400_000)
    ask(server, "SWLIMIT.HOLD", "k", 9, "2s", "live")
    assert 0 < ask(server, "PTTL", "k") <= 2_000
    assert server.cli(f"SWLIMIT.{command[0]}", *command[1:])
    assert 3_500_000 < ask(server, "PTTL", "k") <= 3_600_000
    ask(server, "SWLIMIT.RENEW", "k", "2s", "live")
    ask(server, "SWLIMIT.HOLD", "k", 9, "11d", "later", "AT", now + 10 * 86_400_000 + 1)
    assert ask(server, "PTTL", "k") > 10 * 86_400_000


def test_a_hold_that_ends_later_than_one_from_the_future_is_kept(server):
    now = ask(server, "TIME")[0] * 1_000
    ask(server, "SWLIMIT.HOLD", "k", 9, "20d", "long")
    ask(server, "SWLIMIT.HOLD", "k", 9, "11d", "future", "AT", now + 10 * 86_400_000)
    assert ask(server, "PTTL", "k") > 19 * 86_400_000
    ask(server, "SWLIMIT.RELEASE", "k", "future", "AT", now + 10 * 86_400_000)
    assert ask(server, "PTTL", "k") > 19 * 86_400_000


def test_only_effects_are_written(start):
    server = start(options={"appendonly": "yes", "appendfsync": "always"})
    hour, end = 3_600_000, T + 86_400_000
    answers(server, [
        ["SWLIMIT.HOLD", "k", 3, "1h", "a", "COST", 2, "AT", T],
        ["SWLIMIT.HOLD", "k", 3, "1h", "b", "COST", 2, "AT", T],  # denied
        ["SWLIMIT.HOLD", "k", 3, "1h", "a", "COST", 2, "AT", T],  # renewed to the same end
        ["SWLIMIT.HOLD", "k", 3, "2h", "a", "COST", 2, "AT", T],
        ["SWLIMIT.HOLD", "k", 3, "1h", "b", "AT", T + 1],
        ["SWLIMIT.RENEW", "k", "3h", "a", "c", "b", "b", "AT", T + 2],
        ["SWLIMIT.RENEW", "k", "3h", "c", "AT", T + 2],
        ["SWLIMIT.RELEASE", "k", "c", "b", "b", "AT", T + 3],
        ["SWLIMIT.RELEASE", "k", "b", "AT", T + 3],
        ["SWLIMIT.HOLDERS", "k"],
        ["SWLIMIT.BUDGET", "p", 5, end, "COST", 4, "AT", T],
        ["SWLIMIT.BUDGET", "p", 5, end, "COST", 4, "AT", T],  # denied
        ["SWLIMIT.BUDGET", "p", 5, end - 1, "COST", 4, "PARTIAL", "AT", T - 5],
        ["SWLIMIT.BUDGET", "p", 5, end, "COST", 4, "FORCE", "AT", T + 1],
        ["SWLIMIT.REFUND", "p", 2, "AGE", 0, "AT", T + 2],
    ])
    written = aof.commands(server)
    words = [word.split("~") for _, _, word in written]
    assert [len(parts) for parts in words] == [2, 2, 1, 2, 1, 2, 1, 1, 1], "where the expiry was set"
    assert [[name, key, word] for (name, key, _), (word, *_) in zip(written, words)] == [
        ["SWLIMIT.APPLY", key, word] for key, word in [
            ("k", f"ha>{T + hour}#{T * 1_000}@{T}+2"), ("k", f"na>{T + 2 * hour}@{T}"),
            ("k", f"hb>{T + 1 + hour}#{T * 1_000 + 1_000}@{T + 1}"), ("k", f"na,b>{T + 2 + 3 * hour}@{T + 2}"),
            ("k", f"eb@{T + 3}"), ("p", f"p{end}@{T}+4"), ("p", f"p{end}@{T}"), ("p", f"p{end}@{T + 1}+4"),
            ("p", f"r2@{T + 2}:{T + 2}"),
        ]]


def test_the_key_goes_with_its_last_hold(server):
    now = ask(server, "TIME")[0] * 1_000
    ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "a")
    ask(server, "SWLIMIT.HOLD", "k", 3, "2h", "b")
    assert abs(int(server.cli("PEXPIRETIME", "k")) - now - 7_200_000) < 20_000
    ask(server, "SWLIMIT.RELEASE", "k", "b")
    assert abs(int(server.cli("PEXPIRETIME", "k")) - now - 3_600_000) < 20_000
    assert ask(server, "SWLIMIT.RELEASE", "k", "a") == 1
    assert server.cli("EXISTS", "k") == "0"
    # Not within the millisecond of a grant: the token of the next one has to be larger.
    assert ask(server, "SWLIMIT.HOLD", "t", 1, "1h", "a", "AT", 4_000_000_000_000)[5] == 4_000_000_000_000_000
    assert ask(server, "SWLIMIT.RELEASE", "t", "a", "AT", 3_999_999_000_000) == 1
    assert ask(server, "SWLIMIT.HOLD", "t", 1, "1h", "b", "AT", 3_999_999_000_000)[5] == 4_000_000_000_000_001


def test_the_largest_token_survives_a_rewrite(start):
    server = start(options={"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    at = 4_000_000_000_000
    answers(server, [["SWLIMIT.HOLD", "k", 5, "1h", "a", "AT", at],
                     ["SWLIMIT.HOLD", "k", 5, "1h", b"b\0\r\n", "AT", at],
                     ["SWLIMIT.HOLD", "k", 5, "2h", "last", "AT", at], ["SWLIMIT.RELEASE", "k", b"b\0\r\n", "AT", at]])
    answers(server, [["SWLIMIT.HOLD", "k", 5, "1h", "c", "AT", at], ["SWLIMIT.RELEASE", "k", "c", "AT", at],
                     ["SWLIMIT.HOLD", "empty", 5, "1h", "c", "AT", at],
                     ["SWLIMIT.RELEASE", "empty", "c", "AT", at - 3_600_000]])
    before = digest(server)
    aof.rewrite(server)
    server.restart()
    assert digest(server) == before
    assert ask(server, "SWLIMIT.HOLD", "k", 5, "1h", "d", "AT", at)[5] == at * 1_000 + 4
    assert ask(server, "SWLIMIT.HOLD", "empty", 5, "1h", "d", "AT", at)[5] == at * 1_000 + 1


def test_events_and_statistics(server):
    names = "held", "released", "renewed", "granted", "denied"
    before = [statistics(server)[name] for name in names]
    with events(server) as heard:
        answers(server, [["SWLIMIT.HOLD", "k", 1, "1h", "a", "AT", T], ["SWLIMIT.HOLD", "k", 1, "1h", "b", "AT", T],
                         ["SWLIMIT.RENEW", "k", "2h", "a", "AT", T], ["SWLIMIT.RELEASE", "k", "a", "AT", T + 5],
                         ["SWLIMIT.BUDGET", "p", 1, T + 9, "AT", T], ["SWLIMIT.BUDGET", "p", 1, T + 9, "AT", T]])
    ours = "keyevent:swlimit."
    raised = [(channel.removeprefix(ours), key) for channel, key in heard if channel.startswith(ours)]
    assert raised == [("held", "k"), ("denied", "k"), ("renewed", "k"), ("released", "k"), ("granted", "p"),
                      ("denied", "p")]
    after = [statistics(server)[name] for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1, 2, 2]
    assert {"k", "p"} <= {line[1] for line in ask(server, "SWLIMIT.TOP", 10_000)}


def test_what_ends_unreleased_is_counted_when_it_is_swept(server):
    before = statistics(server)["holds_expired"]
    answers(server, [["SWLIMIT.HOLD", "k", 9, "1h", id, "AT", T] for id in "abc"])
    answers(server, [["SWLIMIT.HOLD", "k", 0, "1h", "d", "AT", T + 3_600_000], ["SWLIMIT.HOLDERS", "k"]])
    assert statistics(server)["holds_expired"] == before  # a denial sweeps nothing
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "d", "AT", T + 3_600_000)
    assert statistics(server)["holds_expired"] == before + 3


def test_copies_and_moves(server):
    workload = HoldingWorkload(5)
    answers(server, [workload.next()[0] for _ in range(800)])
    for key in server.cli("KEYS", "*").split("\n"):
        dump = feed(server, f"DEBUG DIGEST-VALUE {key}")
        with server.client() as client:
            payload, ttl = client.dump(key), client.pttl(key)
            client.restore(f"{key}:restored", ttl, payload)
            client.copy(key, f"{key}:copy")
            client.rename(f"{key}:copy", f"{key}:renamed")
        assert feed(server, f"DEBUG DIGEST-VALUE {key}:restored") == feed(
            server, f"DEBUG DIGEST-VALUE {key}:renamed") == dump
        assert server.cli("MOVE", f"{key}:restored", 1) == "1"
    before = digest(server)
    server.cli("SWAPDB", 0, 1)
    server.cli("SWAPDB", 0, 1)
    assert server.cli("DEBUG", "RELOAD") == "OK" and digest(server) == before
    server.cli("FLUSHALL")
    eventually(lambda: [statistics(server)[name] for name in ("hold_keys", "budget_keys", "memory")], [0, 0, 0])


def test_hostile_payloads(server):
    """An error, or a sound value: never a crash, and never a key that a command trips over."""
    draw = random.Random(3)
    workload = HoldingWorkload(6)
    answers(server, [workload.next()[0] for _ in range(300)])
    accepted = refused = 0
    with server.client() as client:
        client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
        assert client.config_get("sanitize-dump-payload").get("sanitize-dump-payload", "no") == "no"
        frames = {}
        for key in client.keys("*"):
            dump = client.dump(key)
            length = dump[11] if dump[11] < 64 else (dump[11] & 63) << 8 | dump[12]
            begin = 12 if dump[11] < 64 else 13
            frames[key] = dump[:11], dump[begin:begin + length], dump[-10:-8]
        values = [value for _, value, _ in frames.values()]
        for _ in range(4_000):
            head, value, foot = frames[draw.choice(list(frames))]
            value = damaged(draw, value, draw.choice(values))
            if len(value) >= 1 << 14:
                continue
            size = bytes([len(value)]) if len(value) < 64 else (0x4000 | len(value)).to_bytes(2, "big")
            payload = head + size + value + b"\0" + foot + bytes(8)
            try:
                client.restore("hostile", 3_600_000, payload, replace=True)
            except Exception:
                refused += 1
                continue
            accepted += 1
            pipeline = client.pipeline(transaction=False)
            for words in (["SWLIMIT.HOLDERS", "hostile"], ["SWLIMIT.HOLD", "hostile", MAX, "1h", "a"],
                          ["SWLIMIT.RENEW", "hostile", "2h", "a"], ["SWLIMIT.RELEASE", "hostile", "a", "b"],
                          ["SWLIMIT.BUDGET", "hostile", 5, 2_000_000_000_000], ["SWLIMIT.REFUND", "hostile", 3],
                          ["SWLIMIT.INFO", "hostile"], ["DUMP", "hostile"], ["DEL", "hostile"]):
                pipeline.execute_command(*words)
            pipeline.execute(raise_on_error=False)
        client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 0)
    assert server.alive and refused > 500 and accepted > 50, (accepted, refused)


def test_payloads_that_are_too_large_take_no_memory(server):
    with server.client() as client:
        client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
        client.execute_command("SWLIMIT.HOLD", "k", 5, "1h", "a")
        dump = client.dump("k")
        head, foot = dump[:11], dump[-10:-8]
        for value in (leb128(1) + leb128(5) + leb128(2**60), leb128(1) + leb128(5) + leb128(2**64 - 1) + b"\x01" * 50):
            with pytest.raises(Exception, match="Bad data format"):
                client.restore("x", 0, head + bytes([len(value)]) + value + b"\0" + foot + bytes(8))


def test_out_of_memory(server):
    ask(server, "SWLIMIT.HOLD", "k", 5, "1h", "a")
    server.cli("CONFIG", "SET", "maxmemory", 1)
    try:
        for words in (["HOLD", "k", 5, "1h", "b"], ["BUDGET", "p", 5, 2_000_000_000_000]):
            assert server.cli(f"SWLIMIT.{words[0]}", *words[1:]).startswith("OOM ")
        assert ask(server, "SWLIMIT.RENEW", "k", "2h", "a") == [1]
        assert len(ask(server, "SWLIMIT.HOLDERS", "k")) == 1
        assert ask(server, "SWLIMIT.RELEASE", "k", "a") == 1
    finally:
        server.cli("CONFIG", "SET", "maxmemory", 0)


def test_ids_may_be_any_bytes(server):
    ids = [b"\0", b"\r\n", b"\xff" * 128, b"AT", b"until", b"1", "schlüssel".encode()]
    with server.client() as client:
        for id in ids:
            assert client.execute_command("SWLIMIT.HOLD", "k", 99, "1h", id)[0] == 1
        assert client.execute_command("SWLIMIT.RENEW", "k", "2h", *ids, "x") == [1] * len(ids) + [0]
        assert {hold[0] for hold in client.execute_command("SWLIMIT.HOLDERS", "k")} == set(ids)
        assert client.execute_command("SWLIMIT.RELEASE", "k", *ids) == len(ids)


def test_refusals_are_strings(server):
    assert isinstance(ask(server, "SWLIMIT.HOLD", "k", "x", 60, "a"), Refused)
