"""MALLOW: several limits in one decision, all or nothing."""

import json
import random

import pytest

from support import model
from support.bounds import MAX, T
from support.cli import WRONGTYPE, ask, batch, feed, numbers, stored
from support.commands import mallow
from support.contents import statistics, unchanged

USER = "user", 10, 60, 5
TEAM = "team", 100, "1h", "1m"
ALL = "all", 1_000, 1, 1


def decide(server, *limits, options=("AT", T)):
    """`granted`, and the five integers of each key."""
    reply = ask(server, *mallow(*limits, options=options))
    assert len(reply) == 1 + 5 * len(limits)
    return reply[0], *(reply[at:at + 5] for at in range(1, len(reply), 5))


def test_granted_everywhere(server):
    assert decide(server, (*USER, 2), (*TEAM, 30), (*ALL, 1)) == (
        1, [2, 10, 8, 0, 65_000], [30, 100, 70, 0, 3_660_000], [1, 1_000, 999, 0, 2_000])
    assert [stored(server, key)["counts"] for key in ("user", "team", "all")] == [{T: 2}, {T: 30}, {T: 1}]


@pytest.mark.parametrize("full", range(3))
def test_one_full_limit_denies_all(server, full):
    limits = [(*USER, 2), (*TEAM, 3), (*ALL, 4)]
    key, limit, window, resolution, cost = limits[full]
    ask(server, "SWLIMIT.ALLOW", key, limit, window, resolution, "COST", limit - cost + 1, "AT", T)
    before = server.cli("DEBUG", "DIGEST")
    granted, *decisions = decide(server, *limits)
    assert granted == 0
    for number, (limit, decision) in enumerate(zip(limits, decisions)):
        peek = ask(server, "SWLIMIT.PEEK", *limit[:4], "COST", limit[4], "AT", T)
        assert decision == peek
        assert decision[0] == (0 if number == full else limit[4])
    assert server.cli("DEBUG", "DIGEST") == before
    assert server.cli("DBSIZE") == "1"
    # The full limit's retry_after is when all of it is granted, as the others are empty.
    retry_after = decisions[full][3]
    assert decide(server, *limits, options=("AT", T + retry_after - 1))[0] == 0
    assert decide(server, *limits, options=("AT", T + retry_after))[0] == 1


def test_options(server):
    assert decide(server, (*USER, 10), (*TEAM, 1))[0] == 1
    later = T + 62_500  # half of the user's 10 units are estimated to be left
    assert decide(server, (*USER, 5), (*TEAM, 1), options=("at", later, "strict"))[0] == 0
    assert decide(server, (*USER, 6), (*TEAM, 1), options=("At", later))[0] == 0
    assert decide(server, (*USER, 5), (*TEAM, 1), options=("STRICT", "AT", later + 2_500))[0] == 1
    assert decide(server, (*TEAM, 1), options=())[0] == 1


def test_keys_may_differ_in_their_clocks_and_geometries(server):
    ask(server, "SWLIMIT.ALLOW", *USER, "AT", T + 30_000)
    ask(server, "SWLIMIT.ALLOW", "team", 100, "1h", "1s", "COST", 4, "AT", T + 30_000)
    assert decide(server, (*USER, 2), (*TEAM, 3)) == (1, [2, 10, 7, 0, 95_000], [3, 100, 93, 0, 3_660_000])
    assert stored(server, "user")["counts"] == {T + 30_000: 3}
    assert stored(server, "team")["counts"] == {T: 7}


def test_nested_reply(server):
    words = mallow((*USER, 2), (*TEAM, 1), options=("AT", T))
    assert json.loads(server.cli(*words, flags=["--json"])) == [1, [2, 10, 8, 0, 65_000], [1, 100, 99, 0, 3_660_000]]
    shown = server.cli(*words, flags=["--no-raw"]).split("\n")
    assert [line.split() for line in shown[:2]] == [["1)", "(integer)", "1"], ["2)", "1)", "(integer)", "2"]]


def test_many_keys(server):
    limits = [(f"k{number}", 2, 60, 5, 1) for number in range(500)]
    words = [mallow(*limits, options=("AT", T))] * 3
    first, second, third = (numbers(reply) for reply in batch(server, words))
    assert first == [1, *[1, 2, 1, 0, 65_000] * 500]
    assert second == [1, *[1, 2, 0, 0, 65_000] * 500]
    assert third == [0, *[0, 2, 0, 62_500, 65_000] * 500]


def test_costs_beyond_a_limit_never_fit(server):
    granted, user, team = decide(server, (*USER, MAX), (*TEAM, 1))
    assert (granted, user, team) == (0, [0, 10, 10, -1, 0], [1, 100, 100, 0, 0])


def test_statistics_count_commands_and_all_their_units(server):
    before = statistics(server)
    decide(server, (*USER, 8), (*TEAM, 3))
    decide(server, (*USER, 5), (*TEAM, 4))
    after = statistics(server)
    changed = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    assert changed.pop("memory") > 0
    assert changed == {"granted": 1, "granted_units": 11, "denied": 1, "denied_units": 9, "keys": 2}


def test_in_transactions_and_scripts(server):
    words = "SWLIMIT.MALLOW 2 user team 10 60 5 6 100 1h 1m 1"
    lines = feed(server, "MULTI", f"{words} AT {T}", f"{words} AT {T}", "EXEC")[3:]
    assert numbers(" ".join(lines)) == [1, 6, 10, 4, 0, 65_000, 1, 100, 99, 0, 3_660_000,
                                        0, 0, 10, 4, 61_667, 65_000, 1, 100, 99, 0, 3_660_000]
    script = "return redis.call('SWLIMIT.MALLOW', 2, KEYS[1], KEYS[2], 10, 60, 5, 4, 100, '1h', '1m', 1, 'AT', ARGV[1])"
    assert ask(server, "EVAL", script, 2, "user", "team", T) == [1, 4, 10, 0, 0, 65_000, 1, 100, 98, 0, 3_660_000]
    assert ask(server, "EVAL", script, 2, "user", "team", T)[0] == 0


@pytest.mark.parametrize("position", range(3))
def test_an_error_on_any_key_counts_nothing(server, position):
    server.cli("SET", "string", "x")
    limits = [(*USER, 1), (*TEAM, 1)]
    limits.insert(position, ("string", 10, 60, 5, 1))
    with unchanged(server):
        assert server.cli(*mallow(*limits)) == WRONGTYPE
    assert server.cli("DBSIZE") == "1"


def test_random_mallows_answer_as_the_model(server):
    draw = random.Random(11)
    keys = {name: model.Key() for name in "abcdef"}
    quotas = {name: (draw.randint(5, 40), 3_600_000, draw.choice([60_000, 900_000, 3_600_000])) for name in keys}
    commands, expected, now = [], [], T
    for _ in range(600):
        now += draw.choice([0, 1, 1_000, 60_000, 400_000, -60_000])
        strict = draw.random() < 0.3
        limits = [(name, *quotas[name], draw.randint(1, 8)) for name in draw.sample(list(keys), draw.randint(1, 4))]
        peeks = [keys[name].peek(*quota, now, cost, strict=strict) for name, *quota, cost in limits]
        granted = all(peek[0] for peek in peeks)
        if granted:
            peeks = [keys[name].allow(*quota, now, cost, strict=strict) for name, *quota, cost in limits]
        spelled = [(name, limit, f"{window}ms", f"{resolution}ms", cost)
                   for name, limit, window, resolution, cost in limits]
        commands.append(mallow(*spelled, options=["AT", now, *(["STRICT"] if strict else [])]))
        expected.append([int(granted), *sum(peeks, [])])
    assert {reply[0] for reply in expected} == {0, 1}
    assert [numbers(reply) for reply in batch(server, commands)] == expected
