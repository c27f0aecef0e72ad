"""The oldest and the newest redis-py, valkey-py and valkey-glide that the package takes: scripts/setup has them.

What can differ between releases: how connections are made, written to, read and closed, and what a cluster tells.
"""

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import valkey
import valkey.asyncio
from packaging.requirements import Requirement
from packaging.version import Version

import swlimit
from support.server import ROOT

HERE = Path(__file__).resolve().parent
VERSIONS = {"redis": ["5.2.1", "8.1.0"], "valkey": ["6.0.2", "6.2.0"], "valkey-glide": ["2.2.0", "2.6.0"],
            "valkey-glide-sync": ["2.2.0", "2.6.0"]}
OF_ALL = [
    "test_limiter.py", "test_line.py", "test_waiting.py", "test_denials.py::test_what_pushes_is_heard",
    "test_denials.py::test_what_pushes_nothing", "test_topologies.py::test_clusters",
    "test_topologies.py::test_a_primary_that_does_not_know_that_it_was_replaced",
    "test_topologies.py::test_what_the_client_says_is_kept", "test_unavailable.py", "test_holds.py",
    "test_script.py::test_holds_are_renewed_and_released", "test_script.py::test_a_cluster", "test_budgets.py",
]
"""Those whose clients may be of any library."""
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


@pytest.mark.parametrize("library", VERSIONS)
def test_the_package_takes_what_is_tested(library):
    """The limiters use inner parts of the libraries' connections, so that any release may break them."""
    project = tomllib.loads((ROOT / "src/clients/python/pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(one for extra in ("valkey", "glide", "glide-sync")
                                          for one in project["optional-dependencies"][extra])]
    taken, = (one.specifier for one in map(Requirement, needed) if one.name == library)
    oldest, newest = map(Version, VERSIONS[library])
    assert str(taken) == f"<{newest.major}.{newest.minor + 1},>={oldest.major}.{oldest.minor}"


@pytest.mark.long
@pytest.mark.parametrize("library, version", [
    *((one, version) for one in ("redis", "valkey") for version in VERSIONS[one]),
    ("valkey-glide", VERSIONS["valkey-glide"][0])])  # .venv has the newest of that
def test_releases(library, version):
    folder = ROOT / f".cache/{library}-py/{version}"
    assert folder.exists(), "run scripts/setup test"
    if library == "valkey-glide":  # which shares a part with its client for threads
        folder = f"{folder}:{ROOT}/.cache/valkey-glide-sync-py/{version}"
    env = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    program = f"from importlib.metadata import version; print(version({library!r}))"
    told = subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True,
                          check=True).stdout.strip()
    assert told == version
    # Finalizers of valkey-py 6.0's own connections fail where a loop was closed before.
    env |= {"PYTEST_ADDOPTS": "-p no:unraisableexception"} if told == "6.0.2" else {}
    if library == "valkey-glide":
        run(["test_glide.py"], env)
    else:
        run(TESTS if library == "redis" else OF_ALL, env | {"SWLIMIT_LIBRARY": library})


def test_valkey_py():
    """The release that .venv has, with threads and asyncio, a cluster and sentinels."""
    run(["test_limiter.py::test_allow_peek_and_deny", "test_waiting.py::test_first_come_first_served",
         "test_topologies.py::test_clusters", "test_denials.py::test_what_pushes_is_heard",
         "test_holds.py::test_a_lost_hold_tells_its_holder",
         "test_topologies.py::test_a_primary_that_does_not_know_that_it_was_replaced",
         "test_script.py::test_holds_are_renewed_and_released"], os.environ | {"SWLIMIT_LIBRARY": "valkey"})


def test_what_valkey_py_raises(start):
    """No error of its own reaches a caller, and each has its reason."""
    server = start()
    refused = swlimit.Limiter(valkey.Valkey(port=server.port, username="ann", password="wrong"), 1, "1m", timeout=2,
                              on_failure="error")
    with pytest.raises(swlimit.UnavailableError) as raised, refused:
        refused.allow("k")
    assert raised.value.reason == "auth"

    async def main():
        client = valkey.asyncio.Valkey(port=server.port)
        async with swlimit.AsyncLimiter(client, 1, "1m", timeout=2, on_failure="error") as limiter:
            await client.set("k", "v")
            with pytest.raises(swlimit.RefusedError, match="WRONGTYPE"):
                await limiter.allow("k")
            server.process.kill()
            server.process.wait()
            with pytest.raises(swlimit.UnavailableError) as raised:
                await limiter.allow("l")
            assert raised.value.reason in ("refused", "disconnected")
    asyncio.run(main())


def run(tests, env):
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=HERE, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:]
