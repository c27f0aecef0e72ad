"""Thousands of random commands, each answered by the server and by an independent model of the specification."""

import pytest

from support.bounds import T
from support.cli import batch, info_fields, numbers
from support.workload import FUTURE, RisingWorkload, Workload


def parsed(words, reply):
    if reply.startswith("ERR"):
        return reply
    if words[0] == "SWLIMIT.INFO":
        fields = info_fields(reply.split("\n"))
        fields.pop("memory")
        return fields
    return numbers(reply)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("start", [T, FUTURE])
@pytest.mark.parametrize("geometry_changes", [False, True])
@pytest.mark.parametrize("kind", [Workload, RisingWorkload])
def test_server_answers_as_the_model(server, seed, geometry_changes, start, kind):
    workload = kind(seed, geometry_changes, start)
    expected = [workload.next() for _ in range(1500)]
    replies = batch(server, [words for words, _ in expected])
    kinds = set()
    for number, ((words, answer), reply) in enumerate(zip(expected, replies)):
        assert parsed(words, reply) == answer, f"command {number}: {' '.join(map(str, words))}"
        kinds.add((words[0], "granted" if isinstance(answer, list) and answer[0] else "not"))
    assert kinds >= {(f"SWLIMIT.{name}", kind) for name in ("ALLOW", "PEEK", "RECORD", "REFUND", "UNBLOCK")
                     for kind in ("granted", "not")}
