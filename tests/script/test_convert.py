"""scripts/convert: keys of the module become keys of the script, and back, and decide as before."""

import os
import random
import subprocess
import sys

import pytest

from conversion.layout import decode, encode
from support.bounds import MAX
from support.commands import random_commands
from support.resp import Connection
from support.script import scripted, sha
from support.server import ROOT


def convert(*words):
    return subprocess.run([sys.executable, "-m", "conversion", *map(str, words)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/scripts"})


def url(server):
    return f"redis://127.0.0.1:{server.port}"


def asked(draw):
    """PEEKs at any geometry, and INFO."""
    geometries = [("1h", "1h"), ("1h", "1m"), ("1d", "1h"), ("2h", "7200s")]
    looks = [["SWLIMIT.PEEK", f"key:{number}", draw.choice([5, 60]), *draw.choice(geometries),
              "COST", draw.randint(1, 9), *draw.choice([[], ["STRICT"]])] for number in range(40)]
    return looks + [["SWLIMIT.INFO", f"key:{number}"] for number in range(40)]


def answers(connection, commands):
    """The replies, without what INFO says of memory."""
    return [without_memory(reply) for reply in connection.calls(commands)]


def without_memory(reply):
    if not isinstance(reply, list) or b"memory" not in reply:
        return reply
    place = reply.index(b"memory")
    return reply[:place] + reply[place + 2:]


def test_there_and_back(server, plain, plain_server):
    """Random keys; the clock runs, so replies are asked for at instants of their own."""
    with Connection(server.port) as module:
        now = module.call("TIME")
        at = int(now[0]) * 1000
        commands = [[at - 3_600_000 + 1000 * number if last == "AT" else word
                     for last, word in zip([None, *words], words)]
                    for number, words in enumerate(random_commands(random.Random(6), 600))]
        list(module.stream(commands))
        module.call("SWLIMIT.ALLOW", "key:wide", MAX, "4096m", "1m", "COST", MAX - 5)
        module.call("SWLIMIT.APPLY", "key:forever", f"c60000*60@{at}~0")
        for number in range(40):  # a block alone that has passed by the clock is not copied
            if module.call("SWLIMIT.INFO", f"key:{number}")[-3:] == [0, b"counts", []]:
                module.call("DEL", f"key:{number}")
        module.call("SWLIMIT.BUDGET", "plan:month", 9, at + 86_400_000, "COST", 7, "AT", at - 5000)
        module.call("SET", "key:foreign", "a string")
        looks = [words if words[0] == "SWLIMIT.INFO" else [*words, "AT", at + 5000]
                 for words in asked(random.Random(7))]
        looks += [["SWLIMIT.BUDGET", "plan:month", 9, at + 86_400_000, "COST", 3, "AT", at],
                  ["SWLIMIT.INFO", "plan:month"]]
        before = answers(module, looks)
        done = convert("script", url(server), url(plain_server))
        assert done.returncode == 0 and "convert:" not in done.stderr, done
        copied = int(done.stdout.split()[1])
        assert copied == plain.call("DBSIZE") > 20
        assert answers(plain, [scripted(words, sha()) for words in looks]) == before
        for key in ("key:0", "key:wide", "key:forever", "plan:month"):
            assert plain.call("PTTL", key) == pytest.approx(module.call("PTTL", key), abs=5000)

        done = convert("module", url(plain_server), url(server), "--prefix", "back:")
        assert done.returncode == 0 and "convert:" not in done.stderr, done
        assert answers(module, [[words[0], f"back:{words[1]}", *words[2:]] for words in looks]) == before
        for key in ("key:0", "key:wide", "key:forever", "plan:month"):
            assert module.call("PTTL", f"back:{key}") == pytest.approx(module.call("PTTL", key), abs=5000)


def test_what_is_there_is_kept(server, plain, plain_server):
    server.cli("SWLIMIT.ALLOW", "k", 5, 60, 5)
    plain.call("SET", "k", "mine")
    done = convert("script", url(server), url(plain_server))
    assert done.returncode == 1 and "there is such a key already" in done.stderr
    assert plain.call("GET", "k") == b"mine"
    assert convert("script", url(server), url(plain_server), "--replace").returncode == 0
    assert plain.call(*scripted(["SWLIMIT.PEEK", "k", 5, 60, 5], sha()))[2] == 4


def test_what_cannot_be_copied_is_named(server, plain, plain_server):
    server.cli("CONFIG", "SET", "swlimit.max-subintervals", 10_000)
    server.cli("SWLIMIT.ALLOW", "wide", 5, "5000s", "1s")
    done = convert("script", url(server), url(plain_server))
    assert done.returncode == 1 and "wide" in done.stderr and "5000 subintervals" in done.stderr
    plain.call("SET", "broken", b"swl1" + bytes(70))
    done = convert("module", url(plain_server), url(server))
    assert done.returncode == 1 and "broken" in done.stderr
    assert convert("script", "redis://127.0.0.1:1", url(plain_server)).returncode == 2
    assert "--prefix" in convert("--help").stdout


def test_what_the_script_writes_is_encoded_the_same(plain, run):
    """Where no total goes back before the first slot."""
    for number in range(40):
        run("SWLIMIT.ALLOW", f"k{number}", 50, "10h", "1h", "COST", 1 + number, "BLOCK", "1m")
    run("SWLIMIT.BUDGET", "plan", 9, 1000 * (int(plain.call("TIME")[0]) + 3600), "COST", 5)
    for key in plain.call("KEYS", "*"):
        value = plain.call("GET", key)
        assert encode(decode(value)) == value, key
