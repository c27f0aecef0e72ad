"""The test vectors: what they say is what the model says, and what the server answers."""

import json

import pytest

from conformance.vectors import make
from support.bounds import T
from support.resp import Connection, Failed
from support.vector_keys import of_vector


def vectors(name):
    return json.loads((make.HERE / name).read_text())


@pytest.fixture
def pipe(server):
    with Connection(server.port) as pipe:
        yield pipe


def as_json(reply):
    if isinstance(reply, Failed):
        return {"error": str(reply)}
    if isinstance(reply, list):
        return [as_json(one) for one in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


@pytest.mark.parametrize("name", make.FILES)
def test_files_are_what_the_model_says(name):
    assert (make.HERE / name).read_text() == make.text(make.FILES[name]()), "run tests/conformance/vectors/make.py"


def test_durations(pipe):
    cases = vectors("durations.json")
    refused = "ERR window must be a duration such as 60, 500ms, 5m, 1h or 7d"
    for case, reply in zip(cases, pipe.calls([("SWLIMIT.PEEK", "k", 1, case["text"], case["text"]) for case in cases])):
        assert reply == (refused if case["ms"] is None else [1, 1, 1, 0, 0]), case
    for case in [case for case in cases if case["ms"] is not None]:
        *_, (granted, shown) = pipe.calls([("MULTI",), ("SWLIMIT.ALLOW", "k", 1, case["text"], case["text"], "AT", T),
                                           ("SWLIMIT.INFO", "k"), ("EXEC",)])
        assert granted[0] == 1 and shown[1] == case["ms"], case
        pipe.call("DEL", "k")


def test_default_resolutions(pipe):
    """The server takes each, and no coarser one of at least twelve subintervals divides the window."""
    for case in vectors("defaults.json")["resolutions"]:
        window, resolution = case["window"], case["resolution"]
        assert pipe.call("SWLIMIT.PEEK", "k", 1, f"{window}ms", f"{resolution}ms") == [1, 1, 1, 0, 0], case
        finest = 4096 if resolution == window else window // resolution - 1
        assert all(window % subintervals for subintervals in range(12, finest + 1)), case


def test_decisions(pipe):
    for case in vectors("decisions.json"):
        assert pipe.calls(of_vector(case))[-1] == case["decision"], case


@pytest.mark.parametrize("sequence", vectors("replies.json") + vectors("holds.json") + vectors("budgets.json"),
                         ids=lambda one: one["name"])
def test_replies(pipe, sequence):
    for step, reply in zip(sequence["steps"], pipe.stream(step["command"] for step in sequence["steps"])):
        assert as_json(reply) == step["reply"], step["command"]


@pytest.mark.parametrize("case", vectors("encodings.json"), ids=lambda case: f"{case['layout']}: {case['name']}")
def test_encodings(server, pipe, case):
    """Each layout is read for ever, and what was written in the first one is written in it again."""
    assert pipe.call("RESTORE", "k", 0, bytes.fromhex(case["dump"])) == b"OK"
    shown = pipe.call("SWLIMIT.INFO", "k")
    shown = dict(zip(shown[::2], shown[1::2]))
    fields = {b"window": case["window"], b"resolution": case["resolution"], b"counts": case["counts"],
              b"blocked": case["blocked_until"], b"since": case.get("since", 0)}
    assert {name: shown[name] for name in fields} == fields
    value = bytes.fromhex(case["value"])
    assert value in pipe.call("DUMP", "k")
    assert pipe.call("DEBUG", "RELOAD") == b"OK"
    assert value in pipe.call("DUMP", "k")
