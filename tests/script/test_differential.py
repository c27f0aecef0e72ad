"""The script replies to random commands as the module does, byte by byte. scripts/compare-script tries more."""

import itertools
import json
import time

import pytest

from conformance.vectors import make
from conformance.vectors.test_vectors import as_json
from support.comparing import Commands, Difference, compare
from support.lacking import needed
from support.lua import Interpreter
from support.releases import ONLY_SINCE_7, TOO_OLD
from support.rising import Rising
from support.script import PARTIAL, SEVERAL, STRICT, packed, scripted, sha, unpacked
from support.vector_keys import of_vector
from support.waiting import eventually
from support.workload import RisingWorkload
from support.workload import compare as compare_with_model


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_random_commands(start, clock, report, count):
    module, plain = start(env=clock.environment), start(env=clock.environment, module=None)
    began = time.process_time()
    size = compare(module, plain, clock, Commands(1), count)
    seconds = time.process_time() - began
    report(f"{count} commands, {size} bytes of replies, 0 differ; {seconds:.0f} s of CPU here")


@pytest.mark.parametrize("rounds", [20, pytest.param(1_000, marks=pytest.mark.long)])
def test_random_commands_with_limits_that_rise(plain, report, rounds):
    """As the model says, which shares no code with the module."""
    ask, compared = by_script(plain), 0
    for seed in range(rounds):
        plain.call("FLUSHALL")
        compared += compare_with_model(ask, RisingWorkload(seed, geometry_changes=seed % 2 == 1), 500)
    report(f"{compared} replies, 0 differ")


def by_script(plain):
    digest = sha()
    return lambda requests: plain.calls([scripted(words, digest) for words in requests])


@pytest.mark.parametrize("is_strict", [False, True])
def test_no_span_has_more_than_the_limit_in_force_at_its_end(plain, is_strict):
    ask = by_script(plain)
    assert sum(Rising(seed, is_strict).check(ask, 500) for seed in range(5)) > 50


def is_up(client, clock):
    """Whether a node answers, which it does some seconds after its start, by its clock."""
    clock.set(clock.ms + 1000)
    return client.execute_command("CLUSTER INFO")["cluster_state"] == "ok"


def test_random_commands_in_clusters(start, clock):
    servers = []
    for options in ({}, {"module": None}):
        server = start(env=clock.environment, options={"cluster-enabled": "yes"}, **options)
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            eventually(lambda client=client: is_up(client, clock))
        servers.append(server)
    compare(*servers, clock, Commands(2), 20_000)


def test_random_commands_on_the_release_that_takes_no_module(start, clock):
    module = start(env=clock.environment)
    plain = start(binaries=needed(TOO_OLD.name), module=None, env=clock.environment, options=ONLY_SINCE_7)
    compare(module, plain, clock, Commands(3), 20_000)


@pytest.mark.parametrize("version", ["lua51", "lua54"])
@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_random_commands_in_other_interpreters(start, clock, version, count):
    """Without struct, and in Lua 5.4, which has integers beside doubles."""
    plain = start(env=clock.environment, module=None)
    with Interpreter(plain, version) as interpreter:
        compare(start(env=clock.environment), interpreter, clock, Commands(5), count)


def test_a_difference_is_found(start, clock, monkeypatch):
    """In one of a thousand commands."""
    commands, number = Commands(4), itertools.count()
    decide = commands.decide

    def another_limit(key, chance):
        words, call = decide(key, chance)
        return ([*words[:2], words[2] + 10**6, *words[3:]] if next(number) == 300 else words), call

    monkeypatch.setattr(commands, "decide", another_limit)
    with pytest.raises(Difference):
        compare(start(env=clock.environment), start(env=clock.environment, module=None), clock, commands, 1000)


def test_durations(run):
    refused = "ERR window must be a duration such as 60, 500ms, 5m, 1h or 7d"
    for case in json.loads((make.HERE / "durations.json").read_text()):
        reply = run("SWLIMIT.PEEK", "k", 1, case["text"], case["text"])
        assert reply == (refused if case["ms"] is None else [1, 1, 1, 0, 0]), case


def test_decisions(plain):
    for case in json.loads((make.HERE / "decisions.json").read_text()):
        commands = [scripted(words, sha()) for words in of_vector(case, by_script=True)]
        asked = case["request"]
        assert plain.calls(commands)[-1] == case["decision"], case
        if "warm_up" not in asked:
            flags = PARTIAL * asked["partial"] | STRICT * asked["strict"]
            in_bytes = plain.call(*packed("k", asked["limit"], asked["resolution"],
                                          asked["window"] // asked["resolution"], asked["cost"], sha(), flags,
                                          case["now"]))
            assert unpacked(in_bytes, asked["limit"]) == case["decision"], case


@pytest.mark.parametrize("sequence", [sequence for name in ("replies.json", "budgets.json", "holds.json")
                                      for sequence in json.loads((make.HERE / name).read_text())],
                         ids=lambda one: one["name"])
def test_replies(plain, sequence):
    for step in sequence["steps"]:
        words = step["command"]
        if words[0] == "SWLIMIT.ACQUIRE":
            continue  # a script does not wait
        if words[0].removeprefix("SWLIMIT.") in SEVERAL:
            if len(words) < 2 or words[1] not in map(str, range(1, len(words) - 1)):
                continue  # numkeys is EVALSHA's own word, and so is its error
            words = [words[0], int(words[1]), *words[2:]]
        assert as_json(plain.call(*scripted(words, sha()))) == step["reply"], words
