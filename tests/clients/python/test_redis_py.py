"""The oldest and the newest redis-py that the package takes: scripts/setup has both.

What can differ between releases: how connections are made, written to, read and closed, and what a cluster tells.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from support.server import ROOT

HERE = Path(__file__).resolve().parent
VERSIONS = ["5.2.1", "8.1.0"]
TESTS = [
    "test_limiter.py::test_allow_peek_and_deny", "test_limiter.py::test_options_of_commands",
    "test_line.py::test_a_busy_loop_is_not_the_server_s_failure", "test_cancelling.py", "test_undoing.py",
    "test_lost.py",
    "test_waiting.py::test_first_come_first_served", "test_waiting.py::test_quota_that_comes_back_early",
    "test_denials.py::test_what_pushes_is_heard", "test_denials.py::test_what_pushes_nothing",
    "test_unavailable.py::test_away_and_back_are_told_once", "test_topologies.py::test_clusters",
    "test_topologies.py::test_a_primary_that_does_not_know_that_it_was_replaced",
    "test_topologies.py::test_what_the_client_says_is_kept",
    "test_holds.py::test_taken_denied_and_released", "test_holds.py::test_a_lost_hold_tells_its_holder",
    "test_rates.py::test_a_limiter_from_a_url", "test_script.py::test_holds_are_renewed_and_released",
]


def test_the_package_takes_what_is_tested():
    """The limiters use inner parts of redis-py's connections, so that any release may break them."""
    needed = tomllib.loads((ROOT / "src/clients/python/pyproject.toml").read_text())["project"]["dependencies"]
    taken, = (one.specifier for one in map(Requirement, needed) if one.name == "redis")
    oldest, newest = map(Version, VERSIONS)
    assert str(taken) == f"<{newest.major}.{newest.minor + 1},>={oldest.major}.{oldest.minor}"


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_releases(version):
    folder = ROOT / f".cache/redis-py/{version}"
    assert folder.exists(), "run scripts/setup test"
    env = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    told = subprocess.run([sys.executable, "-c", "import redis; print(redis.__version__)"], env=env, text=True,
                          capture_output=True, check=True).stdout.strip()
    assert told == version
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], cwd=HERE, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:]
