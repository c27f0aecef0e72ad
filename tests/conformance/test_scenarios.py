"""Every scenario with the client of every language, as far as it is able: known.toml says what fails still."""

import asyncio
from collections import Counter

import pytest

from conformance.adapters import ADAPTERS
from conformance.runner import judged, known, run, scenarios


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_scenarios(adapter, report):
    words, options = ADAPTERS[adapter]()
    found = asyncio.run(run(words, scenarios(), **options))
    words = Counter(how.partition(":")[0] for how in found.values())
    report(", ".join(f"{number} {word}" for word, number in words.items()))
    assert words["ok"] > len(found) / 3
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
