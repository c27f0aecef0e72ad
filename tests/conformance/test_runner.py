"""The runner itself: each kind of step fails when it should, and what no scenario says is judged at its end."""

import asyncio
import sys

import pytest

from conformance.play import Failed, compare, is_so
from conformance.runner import run

# A client of one request a connection, by whatever its scenario's limiter says.
ADAPTER = """
import json, socket, sys, threading
port, options, open_ones = {}, {}, {}
def say(**words): print(json.dumps(words), flush=True)
def call(asked):
    name = asked["client"]
    with socket.create_connection(("127.0.0.1", port[name])) as one:
        for word in options[name].get("sends", ["ALLOW"]):
            words = ["SWLIMIT." + word, *asked["keys"]]
            data = b"".join(b"$%d\\r\\n%s\\r\\n" % (len(x), x.encode()) for x in words)
            one.sendall(b"*%d\\r\\n" % len(words) + data)
        try:
            got = one.makefile().readline()
        except ConnectionError:
            got = ""
        granted = int(got[1:]) if got[1:].strip() else None
        say(id=asked["id"], ok={"granted": granted, "each": [{"granted": granted}], "value": options[name].get("says")})
for line in sys.stdin:
    asked = json.loads(line)
    do, name, number = asked["do"], asked.get("client"), asked["id"]
    if do == "limiters":
        port[name], options[name] = int(asked["addresses"][0].split(":")[1]), asked["limiters"][0]
        if "wrong" in options[name]:
            say(id=number, error="invalid")
            continue
        say(log="it begins here")
        if options[name].get("leaves"):
            open_ones[name] = socket.create_connection(("127.0.0.1", port[name]))
    if do == "call":
        threading.Thread(target=call, args=(asked,), daemon=True).start()
    elif do == "hello":
        say(id=number, ok=["cancel"])
    elif do == "statistics":
        say(id=number, ok={"server": 1})
    elif do == "drop":
        open_ones.pop(name, socket.socket()).close()
        say(id=number, ok=None)
    elif not (do == "close" and options[name].get("hangs")):
        say(id=number, ok=None)
"""
GRANTED = ["a: allow k", "S: ALLOW k", "S> 1", "a= granted 1"]


def outcome(*steps, limiter=None, **scenario):
    scenario = {"name": "one", "limiter": limiter or {}, "steps": list(steps)} | scenario
    return asyncio.run(run([sys.executable, "-c", ADAPTER], [scenario]))["one"]


def test_what_is_so_passes():
    assert outcome(*GRANTED, "S? quiet 1ms", "statistics server 1", "close") == "ok"
    assert outcome("S~ ALLOW k > 1", "a: allow k", "a= granted 1", "until allow k granted 1") == "ok"
    assert outcome("log it begins *", "S! silent", "S~ ALLOW k > 1", "a: allow k", "a waits still", "S! hears",
                   "a= granted 1, 1.granted 1") == "ok"
    assert outcome("S! slow 50ms", "S~ ALLOW k > [1]", "a: allow k", "S? counted k 1", "a= granted 1") == "ok"
    assert outcome("c: close", "c= ok absent") == "ok"
    assert outcome("wait 1ms", limiter={"wrong": True}, refused="error invalid") == "ok"
    assert outcome("S~ SENTINEL ... > nothing", "S! names S 5 of 1") == "ok"


@pytest.mark.parametrize("said, steps", [
    ("granted is 1, not 2", [*GRANTED[:3], "a= granted 2"]),
    ("S got ALLOW k", ["a: allow k", "S: PEEK k"]),
    ("never answered: a", ["a: allow k", "S: ALLOW k"]),
    ("it has ended", ["a: allow k", "S: ALLOW k", "S> 1", "wait 300ms", "a waits still"]),
    ("S got ALLOW k", ["a: allow k", "S? quiet 300ms"]),
    ("besides: S got ALLOW k", ["a: allow k", "wait 300ms", "S! cut", "a= granted absent"]),
    ("came over an old one", ["a: allow k", "S: ALLOW k", "S! new connections", "S> 1", "a= granted 1",
                              "S! is another connection"]),
    ("server is 1, not 2", ["statistics server 2"]),
    ("not logged", ["log it ends *"]),
    ("1.granted is 1", [*GRANTED[:3], "a= 1.granted 2"]),
    ("S counted {'k': 0}", ["S~ ALLOW k > [0]", "a: allow k", "S? counted k 2", "a= granted 0"]),
])
def test_what_is_not_so_fails(said, steps):
    assert said in outcome(*steps)


def test_what_no_scenario_says_is_judged():
    assert "besides: S got PEEK k" in outcome(*GRANTED, limiter={"sends": ["ALLOW", "PEEK"]})
    assert "open after close" in outcome(*GRANTED, limiter={"leaves": True})
    assert "it says hush" in outcome(*GRANTED, limiter={"says": "password hush"}, secret="hush")
    assert "error is None" in outcome(*GRANTED, refused="error invalid")
    assert outcome(*GRANTED, needs=["magic"]) == "not able: magic"


def test_a_step_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="no such step"):
        outcome("a dances")


@pytest.mark.parametrize("got, wanted, expected", [
    (0, "0", True), (None, "0", False), (None, "absent", True), (0, "absent", False), (True, "1", False),
    (1.0, "1", False), (5, "3..5", True), (6, "3..5", False), ("x", "3..5", False), (4, ">3", True), (3, ">3", False),
    (2, "<3", True), ("server", "server", True),
])
def test_values(got, wanted, expected):
    assert is_so(got, wanted) is expected


def test_an_error_is_compared_as_what_was_said():
    compare({"id": 1, "error": "unavailable"}, "error unavailable")
    with pytest.raises(Failed, match="granted is None"):
        compare({"id": 1, "error": "unavailable"}, "granted 1")
