"""scripts/regions: the figures it works out, the broken promises it finds, and that it runs."""

import os
import re
import subprocess
import sys
from math import inf

import pytest

from crossregion.__main__ import WAYS
from crossregion.outcome import LIMIT, Outcome, Phase, Request, broken, most, shares, table
from docs.pages import blocks, page_named
from support.daemon import DAEMON
from support.server import ROOT

DIRECT, LEASED, LOCAL, SPLIT = WAYS


def outcome_of(way, granted, failures=(0, 0, 0)):
    """What these make: `granted` has for each region how many are granted at which instants."""
    requests = [Request(region, at - 0.1, at, True) for region, instants in enumerate(granted)
                for at, number in instants.items() for _ in range(number)]
    return Outcome(way, requests, list(failures))


def test_the_most_in_a_span():
    instants = [0, 1, 1, 4, 5, 9]
    assert [most(instants, span) for span in (0.5, 1, 1.5, 5, 5.5, 99)] == [2, 2, 3, 4, 5, 6]
    assert [most(instants, 4, *between) for between in ((-inf, 1), (1, 4), (4, 6), (5.5, 99))] == [1, 3, 3, 1]
    assert most([], 4) == 0


@pytest.mark.parametrize("way, granted, failures, found", [
    (DIRECT, [{0: LIMIT}], (0, 0, 0), 0),
    (DIRECT, [{0: 300, 15: 200}, {17.8: 101}], (0, 0, 0), 1),
    (DIRECT, [{0: 300, 15: 200}, {18: 101}], (0, 0, 0), 0),
    (DIRECT, [{0: LIMIT, 1: 1}], (9, 9, 9), 1),
    (LEASED, [{0: LIMIT}, {15.8: 1}], (0, 1, 1), 1),
    (LEASED, [{0: LIMIT}, {16: 1}], (0, 1, 1), 0),  # counted before, and used for as long as leases last
    (LOCAL, [{0: LIMIT}, {1: 198}, {2: 198}], (0, 9, 9), 0),
    (LOCAL, [{0: LIMIT}, {1: 198}, {2: 199}], (0, 9, 9), 1),
    (LOCAL, [{0: LIMIT}, {1: 198}, {2: 1}], (0, 9, 0), 1),
    (SPLIT, [{0: 200}, {1: 200}, {2: 200}], (0, 0, 0), 0),
    (SPLIT, [{0: 200}, {1: 201}, {2: 1}], (0, 0, 0), 1),
])
def test_what_breaks_a_promise(way, granted, failures, found):
    assert len(list(broken(outcome_of(way, granted, failures), is_strict=False))) == found


def test_strict_promises_more():
    used = outcome_of(DIRECT, [{0: LIMIT, 19: 1}])
    assert [len(list(broken(used, is_strict))) for is_strict in (False, True)] == [0, 1]


def test_tables():
    used = outcome_of(DIRECT, [{5: 30}, {12: 60}])
    used.requests += [Request(0, 6.0, 6.3, False)] * 10
    phases = [Phase("before", 0, 10), Phase("during", 10, 20)]
    assert list(table([used], phases))[2:] == ["| direct, `deny` | before | 100.0 | 300.0 | 10% | 30 |",
                                              "| direct, `deny` | during | 100.0 | 100.0 | 20% | 90 |"]
    assert list(shares([used], phases[0], [40, 20])) == ["| way | 40 a second | 20 a second |", "|---|---:|---:|",
                                                        "| direct, `deny` | 75% | 0% |"]


def test_the_configuration_of_the_page_is_valid(tmp_path):
    settings, limits = [block.text for block in blocks(page_named("regions.md")) if block.language == "yaml"]
    (tmp_path / "swlimitd.yaml").write_text(settings)
    (tmp_path / "limits.yaml").write_text(limits)
    done = subprocess.run([DAEMON, "--config", tmp_path / "swlimitd.yaml", "--check"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("is valid: 1 limits\n"), done.stdout + done.stderr


@pytest.mark.long
def test_quick():
    done = subprocess.run([sys.executable, "-m", "crossregion", "--quick"], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/scripts:{ROOT}/tests"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\| (direct|leased|static).* \| (before|during|after) \|", done.stdout, re.MULTILINE)) == 12
