"""Every scenario with the client of every language, as far as it is able: known.toml says what fails still."""

import asyncio
from collections import Counter

import pytest

from conformance.adapters import ADAPTERS
from conformance.conftest import PREFIX
from conformance.runner import HERE, judged, known, run_steadily, scenarios


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_scenarios(adapter, record_property):
    words, options = ADAPTERS[adapter]()
    found = asyncio.run(run_steadily(adapter, words, scenarios(adapter), **options))
    record_property(PREFIX + adapter, found)
    assert Counter(found.values())["ok"] > len(found) / 3
    assert list(judged(adapter, found)) == []


def test_names():
    names = Counter(scenario["name"] for scenario in scenarios())
    assert max(names.values()) == 1
    assert {(adapter, scenario) for adapter, scenario in known()
            if adapter not in ADAPTERS or scenario not in names} == set()
    assert [one for one in known().values() if not (one["reason"] and one["owner"])] == []


def test_sizes():
    """A scenario is read in one look, and tells one fault."""
    assert [one["name"] for one in scenarios() if len(one["steps"]) > 25 or not one["why"].endswith(".")] == []


def test_the_runner_stays_small():
    """Scenarios are data: what plays them has no place for conditions of theirs."""
    assert sum(len((HERE / name).read_text().splitlines()) for name in (
        "adapters.py", "fake.py", "play.py", "runner.py")) < 760
