"""Limits that rise after idleness."""

import pytest

from support.resp import Connection
from support.rising import Rising
from support.workload import RisingWorkload, compare


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("rounds", [20, pytest.param(1_000, marks=pytest.mark.long)])
def test_no_span_has_more_than_the_limit_in_force_at_its_end(server, report, is_strict, rounds):
    with Connection(server.port) as module:
        full = sum(Rising(seed, is_strict).check(module.calls, 500) for seed in range(rounds))
    report(f"{500 * rounds} requests, {full} spans that are full")
    assert full > 10 * rounds


@pytest.mark.parametrize("rounds", [20, pytest.param(1_000, marks=pytest.mark.long)])
def test_random_commands(server, report, rounds):
    compared = 0
    with Connection(server.port) as module:
        for seed in range(rounds):
            module.call("FLUSHALL")
            compared += compare(module.calls, RisingWorkload(seed, geometry_changes=seed % 2 == 1), 500)
    report(f"{compared} replies, 0 differ from the model's")
