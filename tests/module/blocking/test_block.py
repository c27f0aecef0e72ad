"""What a block means: BLOCK, UNBLOCK, the option BLOCK of ALLOW and RECORD, and every other command meanwhile."""

import random

import pytest

from support.cli import ask, feed, numbers, stored
from support.contents import digest, unchanged
from support.resp import Connection
from support.waiting import eventually

NOW = 1_111_112 * 3_600_000  # an hour begins; after today's clock, by which INFO tells whether a key is blocked
QUOTA = 2, 10, 1
COMMANDS = "ALLOW", "RECORD"


def block(server, duration, now=NOW, *options):
    """The instant that BLOCK replies with."""
    instant, = ask(server, "SWLIMIT.BLOCK", "k", duration, *options, "AT", now)
    return instant


def unblock(server, now=NOW):
    lifted, = ask(server, "SWLIMIT.UNBLOCK", "k", "AT", now)
    return lifted


def peek(server, now, *options, quota=QUOTA):
    return ask(server, "SWLIMIT.PEEK", "k", *quota, *options, "AT", now)


def blocked_until(server):
    return stored(server, "k")["blocked"]


def exhaust(server, now=NOW):
    """Count what the quota has."""
    assert ask(server, "SWLIMIT.ALLOW", "k", *QUOTA, "COST", 2, "AT", now) == [2, 2, 0, 0, 11_000]


def test_nothing_is_granted_until_the_instant(server):
    assert block(server, "30s") == NOW + 30_000
    assert peek(server, NOW) == [0, 2, 0, 30_000, 30_000]
    assert ask(server, "SWLIMIT.ALLOW", "k", *QUOTA, "AT", NOW + 29_999) == [0, 2, 0, 1, 1]
    assert peek(server, NOW + 30_000) == [1, 2, 2, 0, 0]
    assert ask(server, "SWLIMIT.ALLOW", "k", *QUOTA, "AT", NOW + 30_000) == [1, 2, 1, 0, 11_000]


def test_a_block_on_a_key_nobody_has_used(server):
    """There is no window to show."""
    block(server, "1h")
    found = stored(server, "k")
    assert found.pop("memory") > 0
    assert found == {"window": 0, "resolution": 0, "subintervals": 0, "newest": 0, "total": 0, "counts": {},
                     "blocked": NOW + 3_600_000, "since": 0}


@pytest.mark.parametrize("duration, ms", [("1ms", 1), ("60", 60_000), ("3650D", 3650 * 86_400_000)])
@pytest.mark.parametrize("now", [0, NOW, 2**53 - 1])
def test_any_duration_at_any_instant(server, now, duration, ms):
    assert block(server, duration, now) == now + ms
    ask(server, "SWLIMIT.APPLY", "k", f"b{now + ms}~0")
    assert peek(server, min(now + ms, 2**53) - 1)[0] == 0
    assert block(server, "1ms", now, "NX") == now + ms
    if now + ms < 2**53:
        assert peek(server, now + ms)[0] == 1


@pytest.mark.parametrize("options, later, in_force", [
    ((), 0, 20_000), ((), 9_999, 29_999), ((), 10_000, 30_000), ((), -5_000, 15_000),
    (("NX",), 0, 10_000), (("nx",), 9_999, 10_000), (("NX",), 10_000, 30_000), (("NX",), -5_000, 10_000),
    (("GT",), 0, 20_000), (("GT",), -9_999, 10_001), (("gt",), -10_000, 10_000), (("GT",), -15_000, 10_000),
    (("GT",), 10_000, 30_000),
])
@pytest.mark.parametrize("counted", [False, True])
def test_block_sets_the_block_whatever_it_was(server, counted, options, later, in_force):
    """NX: unless there is one at that instant. GT: unless one ends no earlier."""
    if counted:
        exhaust(server)
    block(server, 10)
    assert block(server, 20, NOW + later, *options) == NOW + in_force
    assert blocked_until(server) == NOW + in_force


def test_a_block_can_be_made_shorter(server):
    block(server, "1h")
    assert block(server, "1ms", NOW) == NOW + 1
    ask(server, "SWLIMIT.APPLY", "k", f"b{NOW + 1}~0")
    assert [peek(server, NOW + ms)[0] for ms in (0, 1)] == [0, 1]


def test_what_does_not_block_changes_nothing(server):
    block(server, "1h")
    with unchanged(server):
        assert block(server, "2h", NOW + 1, "NX") == NOW + 3_600_000
        assert block(server, "1h", NOW, "GT") == NOW + 3_600_000
        assert block(server, "1m", NOW, "GT") == NOW + 3_600_000


def test_unblock(server):
    """1 for a block that held, which is as if it had never been; else 0, and nothing changes."""
    exhaust(server)
    before = digest(server)
    with unchanged(server):
        assert unblock(server) == 0
    block(server, "1h")
    assert digest(server) != before
    assert (unblock(server, NOW + 1), digest(server)) == (1, before)
    with unchanged(server):
        assert unblock(server, NOW + 1) == 0
    block(server, "1h")
    with unchanged(server):
        assert unblock(server, NOW + 3_600_000) == 0


def test_unblock_deletes_a_key_without_counts(server):
    assert unblock(server) == 0
    block(server, "1h")
    assert unblock(server, NOW + 3_599_999) == 1
    assert server.cli("DBSIZE") == "0"


def test_unblock_deletes_a_key_whose_counts_have_ended(server):
    exhaust(server)
    block(server, "1h")
    assert unblock(server, NOW + 11_000) == 1
    assert server.cli("DBSIZE") == "0"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_denial_begins_a_block(server, command):
    """That denial replies as during a block. Grants begin none."""
    words = f"SWLIMIT.{command}", "k", *QUOTA, "COST", 2, "block", "1m", "AT"
    assert ask(server, *words, NOW)[:4] == [2, 2, 0, 0]
    assert blocked_until(server) == 0
    assert ask(server, *words, NOW + 1) == [0, 2, 0, 60_000, 60_000]
    assert blocked_until(server) == NOW + 60_001
    assert stored(server, "k")["total"] == (2 if command == "ALLOW" else 4)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_denial_without_the_option_begins_none(server, command):
    exhaust(server)
    ask(server, f"SWLIMIT.{command}", "k", *QUOTA, "AT", NOW)
    assert blocked_until(server) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_requests_neither_prolong_nor_renew_a_block(server, command):
    exhaust(server)
    words = f"SWLIMIT.{command}", "k", *QUOTA, "BLOCK", 5, "AT"
    first = ask(server, *words, NOW)
    assert blocked_until(server) == NOW + 5_000
    for later in (0, 1, 4_999):
        assert ask(server, *words, NOW + later)[:3] == [0, 2, 0]
        assert blocked_until(server) == NOW + 5_000
    assert first[3] == 10_500 if command == "ALLOW" else first[3] > 5_000  # the window denies for longer
    assert ask(server, *words, NOW + 5_000)[0] == 0
    assert blocked_until(server) == NOW + 10_000, "denied by the window, and no block held any more"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_window_grants_begins_no_block_after_one(server, command):
    block(server, 5)
    ask(server, f"SWLIMIT.{command}", "k", *QUOTA, "BLOCK", "1h", "AT", NOW)  # denied by the block, not by the window
    assert blocked_until(server) == NOW + 5_000
    assert ask(server, f"SWLIMIT.{command}", "k", *QUOTA, "BLOCK", "1h", "AT", NOW + 5_000)[0] == 1
    assert blocked_until(server) == NOW + 5_000


def test_a_denial_begins_a_block_on_a_new_key(server):
    assert ask(server, "SWLIMIT.ALLOW", "k", 0, 10, 1, "BLOCK", "1h", "AT", NOW) == [0, 0, 0, -1, 3_600_000]
    assert stored(server, "k")["window"] == 0 and blocked_until(server) == NOW + 3_600_000


def test_a_cost_above_the_limit_never_helps(server):
    block(server, 5)
    assert peek(server, NOW, "COST", 3) == [0, 2, 0, -1, 5_000]
    assert ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "COST", 3, "AT", NOW) == [0, 2, 0, -1, 11_000]
    assert ask(server, "SWLIMIT.ALLOW", "k", *QUOTA, "COST", 3, "BLOCK", "1h", "AT", NOW + 5_000) == [
        0, 2, 0, -1, 3_600_000]


def test_partial(server):
    """A part is a grant and begins no block. During a block there is no part, and one unit is what is waited for."""
    words = "SWLIMIT.ALLOW", "k", *QUOTA, "COST", 5, "PARTIAL", "BLOCK", "3s", "AT"
    assert ask(server, *words, NOW) == [2, 2, 0, 0, 11_000]
    assert ask(server, *words, NOW + 9_600) == [0, 2, 0, 3_000, 3_000]
    assert ask(server, *words, NOW + 12_600)[0] == 2
    block(server, 5, NOW + 30_000)
    assert peek(server, NOW + 30_000, "COST", 5, "PARTIAL") == [0, 2, 0, 5_000, 5_000]


def test_record_counts_during_a_block(server):
    """What is counted is denied, even what would fit, and is waited for until block and window let it through."""
    block(server, "1h")
    assert ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "AT", NOW) == [0, 2, 0, 3_600_000, 3_600_000]
    assert stored(server, "k")["total"] == 1
    assert ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "COST", 2, "AT", NOW + 3_599_000) == [0, 2, 0, 11_000, 11_000]
    assert blocked_until(server) == NOW + 3_600_000


@pytest.mark.parametrize("dated", [("AT", NOW - 11_001), ("AGE", "12s", "AT", NOW)], ids=["at", "age"])
def test_a_dropped_record_begins_no_block(server, dated):
    exhaust(server)
    with unchanged(server):
        reply = ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "BLOCK", "1h", *dated)
        assert reply == peek(server, dated[-1])
    block(server, "1h", NOW - 20_000)
    with unchanged(server):
        reply = ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "BLOCK", "1h", *dated)
        assert reply == peek(server, dated[-1]) and reply[3] > 3_500_000


def test_a_late_record_begins_a_block_from_its_own_instant(server):
    exhaust(server)
    ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "BLOCK", "1h", "AT", NOW - 1_000)
    assert blocked_until(server) == NOW - 1_000 + 3_600_000
    assert stored(server, "k")["counts"] == {NOW - 1_000: 1, NOW: 2}


def test_mallow_denies_for_a_blocked_key(server):
    block(server, 5)
    words = "SWLIMIT.MALLOW", 2, "k", "other", *QUOTA, 1, *QUOTA, 1, "AT"
    before = digest(server)
    assert ask(server, *words, NOW) == [0, 0, 2, 0, 5_000, 5_000, 1, 2, 2, 0, 0]
    assert digest(server) == before
    assert ask(server, *words, NOW + 5_000) == [1, 1, 2, 1, 0, 11_000, 1, 2, 1, 0, 11_000]


def test_refund_leaves_the_block(server):
    """Also when the last count goes, and after the block has passed, when nothing is left."""
    exhaust(server)
    block(server, 5)
    assert ask(server, "SWLIMIT.REFUND", "k", 1, "AT", NOW) == [1]
    assert ask(server, "SWLIMIT.REFUND", "k", 9, "AT", NOW) == [1]
    assert stored(server, "k")["window"] == 0
    assert peek(server, NOW) == [0, 2, 0, 5_000, 5_000]
    assert ask(server, "SWLIMIT.REFUND", "k", 9, "AT", NOW) == [0]
    ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "AT", NOW)
    assert ask(server, "SWLIMIT.REFUND", "k", 1, "AT", NOW + 5_000) == [1]
    assert server.cli("DBSIZE") == "0"


@pytest.mark.parametrize("words", [
    ("ALLOW", "k", *QUOTA), ("ALLOW", "k", 9, "1h", "1m"), ("RECORD", "k", *QUOTA), ("RECORD", "k", 9, "1h", "1m"),
    ("ALLOW", "k", 9, *QUOTA[1:], "BLOCK", "1h"), ("MALLOW", 1, "k", *QUOTA, 1), ("REFUND", "k", 1),
], ids=lambda words: " ".join(map(str, words)))
def test_only_block_and_unblock_change_a_block(server, words):
    """A block that has passed stays, for those to whom it has not: replicas, and clocks that were set back."""
    ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "AT", NOW)
    block(server, 20)
    assert ask(server, f"SWLIMIT.{words[0]}", *words[1:], "AT", NOW + 21_000)[0] == (0 if words[0] == "REFUND" else 1)
    assert blocked_until(server) == NOW + 20_000
    assert peek(server, NOW + 19_999)[0] == 0


def test_another_window_or_resolution_keeps_the_block(server):
    exhaust(server)
    block(server, "1h")
    for quota in ((2, "10m", "1m"), (2, "1m", "100ms"), (2, 5, 5)):
        assert ask(server, "SWLIMIT.ALLOW", "k", *quota, "AT", NOW + 1) == [0, 2, 0, 3_599_999, 3_599_999]
        ask(server, "SWLIMIT.RECORD", "k", *quota, "AT", NOW + 1)
        assert blocked_until(server) == NOW + 3_600_000
    assert peek(server, NOW + 3_600_000)[0] == 1


def state(draw):
    """The quota and the commands that make a key with counts and a block, and a request at an instant."""
    quota = draw.choice([(3, "10s", "1s"), (40, "10s", "100ms"), (5, "1s", "1s"), (7, "3s", "1s")])
    commands = [["SWLIMIT.RECORD", "k", *quota, "COST", draw.randint(1, 6), "AT", NOW + draw.randrange(12_000)]
                for _ in range(draw.randint(0, 6))]
    commands.append(["SWLIMIT.BLOCK", "k", f"{draw.randint(1, 20_000)}ms", "AT", NOW + draw.randrange(12_000)])
    asked = quota if draw.random() < 0.7 else (quota[0], *draw.choice([("20s", "4s"), ("5s", "50ms")]))
    options = [option for option in ("STRICT", "PARTIAL") if draw.random() < 0.3]
    return quota, commands, [*asked, "COST", draw.randint(1, quota[0]), *options], NOW + draw.randrange(14_000)


def test_retry_after_is_exact_through_the_end_of_a_block(server):
    """Whether the window denies for longer or the block: asking again that many ms later is granted, one ms earlier
    is not; and when `reset_after` has passed, nothing is in the way."""
    draw = random.Random(10)
    by_block = by_window = 0
    for _ in range(400):
        quota, commands, request, now = state(draw)
        asked = ["SWLIMIT.PEEK", "k", *request, "AT"]
        with Connection(server.port) as pipe:
            pipe.call("DEL", "k")
            *_, until = pipe.calls(commands)
            granted, limit, remaining, retry, reset = pipe.call(*asked, now)
            if granted:
                assert now >= until and retry == 0
                continue
            assert limit == request[0] and retry > 0 and reset >= until - now
            assert now >= until or remaining == 0
            before, at = pipe.calls([(*asked, now + retry - 1), (*asked, now + retry)])
            assert before[0] == 0 and before[3] == 1
            assert at[0] > 0
            if tuple(request[:3]) == quota:
                assert pipe.call("SWLIMIT.PEEK", "k", *quota, "AT", now + reset) == [1, limit, limit, 0, 0]
            by_block += now + retry == until
            by_window += now < until < now + retry
    assert by_block > 50 and by_window > 50


def test_a_clock_set_back(server):
    """A block is by the command's own instant, not by that of the newest count."""
    exhaust(server, NOW + 60_000)
    block(server, 5)
    assert peek(server, NOW, quota=(9, 10, 1)) == [0, 9, 0, 5_000, 71_000]
    assert peek(server, NOW + 5_000, quota=(9, 10, 1)) == [1, 9, 7, 0, 66_000]


def expiry(server):
    return numbers(server.cli("PEXPIRETIME", "k"))[0]


def test_a_key_lives_until_the_later_of_its_window_and_its_block(server):
    until, = ask(server, "SWLIMIT.BLOCK", "k", "1h")
    assert expiry(server) == until
    ask(server, "SWLIMIT.RECORD", "k", 9, "30m", "1m")
    assert expiry(server) == until
    ask(server, "SWLIMIT.RECORD", "k", 9, "2h", "1m")
    window = stored(server, "k")["newest"] + 7_260_000
    assert expiry(server) == window
    until, = ask(server, "SWLIMIT.BLOCK", "k", "1d")
    assert expiry(server) == until
    ask(server, "SWLIMIT.BLOCK", "k", "1m")
    assert expiry(server) == window
    until, = ask(server, "SWLIMIT.BLOCK", "k", "1d")
    ask(server, "SWLIMIT.REFUND", "k", 9)
    assert expiry(server) == until
    ask(server, "SWLIMIT.RECORD", "k", 9, "30m", "1m")
    ask(server, "SWLIMIT.UNBLOCK", "k")
    assert expiry(server) == stored(server, "k")["newest"] + 31 * 60_000


@pytest.mark.parametrize("command", [
    ["BLOCK", "k", "20s"], ["ALLOW", "k", *QUOTA, "BLOCK", "20s"], ["RECORD", "k", *QUOTA, "BLOCK", "20s"]],
    ids=lambda command: command[0])
def test_a_key_lives_as_long_as_a_block_behind_its_counts(server, command):
    """From the block's own instant on, where its counts have less time left; when it is lifted, too."""
    exhaust(server, NOW)
    ask(server, f"SWLIMIT.{command[0]}", *command[1:])
    assert expiry(server) == NOW + 11_000, "by the clock"
    ask(server, "DEL", "k")
    ask(server, "SWLIMIT.ALLOW", "k", *QUOTA, "COST", 2, "AT", NOW + 999)
    ask(server, f"SWLIMIT.{command[0]}", *command[1:], "AT", NOW - 10_000)
    assert peek(server, NOW + 9_999)[0] == 0
    assert 20_000 < ask(server, "PTTL", "k")[0] <= 21_000
    unblock(server, NOW + 5_000)
    assert 5_000 < ask(server, "PTTL", "k")[0] <= 6_000


def test_an_old_log_keeps_its_blocks_as_long_as_they_held(server):
    block(server, "1h", 7)
    assert 3_590_000 < int(server.cli("PTTL", "k")) <= 3_600_000
    assert blocked_until(server) == 0, "by the clock"
    assert peek(server, 3_600_006)[0] == 0


def test_by_the_clock(server):
    """Denied before the instant and granted from then on, to the ms; then the key is gone."""
    with Connection(server.port) as pipe:
        until = pipe.call("SWLIMIT.BLOCK", "k", "300ms")

        def asked():
            before, reply, after = pipe.calls([("TIME",), ("SWLIMIT.PEEK", "k", *QUOTA), ("TIME",)])
            before, after = (int(seconds) * 1000 + int(micro) // 1000 for seconds, micro in (before, after))
            granted, _, remaining, retry, reset = reply
            if granted:
                assert after >= until and (remaining, retry, reset) == (2, 0, 0)
            else:
                assert before < until and before + retry <= until <= after + retry and remaining == 0
            return granted

        assert not asked()
        eventually(asked)
        eventually(lambda: pipe.call("EXISTS", "k"), 0)
        assert pipe.call("SWLIMIT.UNBLOCK", "k") == 0


def test_info_says_when_a_block_has_passed(server):
    """By the server's clock: 0 then, although the key lives on."""
    ask(server, "SWLIMIT.RECORD", "k", 9, "1h", "1m")
    until, = ask(server, "SWLIMIT.BLOCK", "k", "200ms")
    assert blocked_until(server) in (until, 0)
    eventually(lambda: blocked_until(server), 0)
    assert stored(server, "k")["total"] == 1


def test_in_a_transaction_and_a_script(server):
    allow = f"SWLIMIT.ALLOW k 2 10 1 AT {NOW}"
    printed = feed(server, "MULTI", f"SWLIMIT.BLOCK k 1h AT {NOW}", allow, f"SWLIMIT.UNBLOCK k AT {NOW}", allow, "EXEC")
    assert numbers("\n".join(printed[5:])) == [NOW + 3_600_000, 0, 2, 0, 3_600_000, 3_600_000, 1, 1, 2, 1, 0, 11_000]
    script = "redis.call('SWLIMIT.BLOCK', KEYS[1], '1h', 'AT', ARGV[1]); " \
             "return redis.call('SWLIMIT.PEEK', KEYS[1], 2, 10, 1, 'AT', ARGV[1])"
    assert ask(server, "EVAL", script, 1, "k", NOW) == [0, 2, 0, 3_600_000, 3_600_000]
