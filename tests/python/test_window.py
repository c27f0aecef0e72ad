"""The window in Python decides as the module does: by the test vectors, and by the tests' own model."""

import json
import random

import pytest

from support.bounds import MAX
from support.server import ROOT
from support.workload import OVERFLOW, Workload
from swlimit.local import Local
from swlimit.quota import Geometry, Quota, milliseconds
from swlimit.window import CountOverflow, Key, Window

VECTORS = ROOT / "tests/vectors"


def vectors(name):
    return json.loads((VECTORS / name).read_text())


def test_durations():
    for case in vectors("durations.json"):
        try:
            assert milliseconds(case["text"]) == case["ms"], case
        except ValueError:
            assert case["ms"] is None, case


def test_decisions():
    for case in vectors("decisions.json"):
        stored, request = case["stored"], case["request"]
        window = None
        if stored and stored["counts"]:
            geometry = Geometry(stored["window"], stored["resolution"])
            window = Window(geometry, {start // geometry.resolution: units for start, units in stored["counts"]})
        quota = Quota(request["limit"], Geometry(request["window"], request["resolution"]), request["strict"])
        key = Key(window, case["blocked_until"])
        assert key.peek(quota, case["now"], request["cost"], request["partial"]) == case["decision"], case


def answer(local, words):
    """What is decided in the process for a command that says its instant with AT."""
    words = [int(word) if isinstance(word, str) and word.isdigit() else word for word in words]
    at = words.index("AT")
    try:
        return local.execute(tuple(words[:at] + words[at + 2:]), words[at + 1])
    except CountOverflow as error:
        return {"error": f"ERR {error}"}


@pytest.mark.parametrize("sequence", [one for one in vectors("replies.json") if one["name"] != "errors"],
                         ids=lambda sequence: sequence["name"])
def test_replies(sequence):
    local = Local()
    for step in sequence["steps"]:
        assert answer(local, step["command"]) == step["reply"], step["command"]


@pytest.mark.parametrize("seed", range(20))
def test_the_model(seed):
    workload, local = Workload(seed), Local()
    for _ in range(400):
        words, expected = workload.next()
        if words[0] != "SWLIMIT.INFO":
            reply = answer(local, words)
            assert (reply if isinstance(reply, (list, dict)) else [reply]) == (
                {"error": OVERFLOW} if expected == OVERFLOW else expected), words


def test_a_share_of_the_limit():
    local = Local(share=0.1)
    assert local.execute(("SWLIMIT.ALLOW", b"k", 25, "1m", "1s"), 0) == [1, 2, 1, 0, 61_000]
    assert local.execute(("SWLIMIT.ALLOW", b"k", 5, "1m", "1s", "COST", 1), 0)[:2] == [0, 1]
    assert local.execute(("SWLIMIT.ALLOW", b"other", 0, "1m", "1s"), 0) == [0, 0, 0, -1, 0]
    with pytest.raises(ValueError, match="share"):
        Local(share=1.5)


def test_memory_is_bounded():
    local = Local(max_keys=10)
    names = [f"key:{number}".encode() for number in range(100)]
    random.Random(1).shuffle(names)
    for name in names:
        local.execute(("SWLIMIT.ALLOW", name, 1, "1m", "1s"), 0)
    assert len(local) == 10
    assert [local.execute(("SWLIMIT.PEEK", name, 1, "1m", "1s"), 0)[0] for name in names[-11:]] == [1] + [0] * 10


@pytest.mark.parametrize("limit", [-1, MAX + 1, 1.5, "10", True])
def test_what_is_no_limit(limit):
    with pytest.raises(ValueError, match="limit must be an integer"):
        Quota.of(limit, 60, 5)


@pytest.mark.parametrize("window, resolution", [(0, 1), ("5w", 1), (60, 7), (5, 60), (0.0001, 0.0001), ("1h", "1us")])
def test_what_is_no_window(window, resolution):
    with pytest.raises(ValueError, match="must"):
        Quota.of(10, window, resolution)
