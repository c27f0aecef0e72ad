"""Limits of how many at once that follow response times."""

import dataclasses
import json

import pytest

from support.server import ROOT
from swlimit._core.adaptive import Sample, Settings, State, step

VECTORS = json.loads((ROOT / "tests/vectors/adaptive.json").read_text())


def beginning(options):
    return Settings(**{name.removesuffix("_us"): value for name, value in options.items()}), State(options["min"])


@pytest.mark.parametrize("case", VECTORS["samples"], ids=lambda case: case["name"])
def test_samples(case):
    settings, state = beginning(case["options"])
    for one in case["steps"]:
        step(settings, state, Sample(*one["sample"]))
        assert of_state(state) == one["state"], one


@pytest.mark.parametrize("case", VECTORS["phases"], ids=lambda case: case["name"])
def test_phases(case):
    """Many windows of ten samples, which are made as the vectors' page says."""
    settings, state = beginning(case["options"])
    expected = {one["windows"]: one["state"] for one in case["states"]}
    windows = now = 0
    for phase in case["phases"]:
        for number in range(phase["windows"]):
            for sample in window_of(phase, number, now, state.limit, settings.window):
                step(settings, state, sample)
            now += settings.window + 1
            windows += 1
            if windows in expected:
                assert of_state(state) == expected.pop(windows), windows
    assert not expected


def window_of(phase, number, now, limit, window):
    numerator, denominator, plus = phase["share"]
    inflight = limit * numerator // denominator + plus
    rtt, capacity = phase["rtt_us"] + number * phase["ramp_us"], phase["capacity"]
    if capacity:
        rtt = rtt * max(inflight, capacity) // capacity
    for i in range(10):
        yield Sample(now + (window + 1) * (i + 1) // 10, rtt + i, inflight, phase["drop"] and i == 0)


def of_state(state):
    """As the vectors name it."""
    names = {"ends": "ends_us", "sum": "sum_us", "windows_sum": "windows_us", "long": "long_us"}
    return {names.get(name, name): value for name, value in dataclasses.asdict(state).items()}
