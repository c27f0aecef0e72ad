"""The tests that `limits` has for its storages and strategies, run on the storages of swlimit.

They come with its source distribution. Changed in them are the addresses of servers alone; only the tests of such
addresses are run, and `limits_suite.py` says which of them do not apply.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.lacking import lacking
from support.server import ROOT

VERSION = metadata.version("limits")
FILES = ["test_storage.py", "test_strategy.py", "integration/test_concurrency.py"]
ASYNC_FILES = ["aio/__init__.py", "aio/test_storage.py", "aio/test_strategy.py"]


@pytest.fixture(scope="module")
def source():
    """The source distribution of the installed release."""
    archive = ROOT / f".cache/python/limits-{VERSION}.tar.gz"
    if not archive.exists():
        lacking("the sources of limits: scripts/setup test")
    return archive


def prepare(folder, source, files, uri):
    """Unpack the tests in these files, with the storage at `uri`."""
    with tarfile.open(source) as archive:
        for name in [*files, "__init__.py", "utils.py"]:
            text = archive.extractfile(f"limits-{VERSION}/tests/{name}").read().decode()
            for old in ("redis://localhost:7379", "redis+cluster://localhost:7001/"):
                if old.split(":")[0] == uri.split(":")[0]:
                    text = text.replace(f'"{old}"', f'"swlimit+{uri}"').replace(f'"async+{old}"',
                                                                               f'"async+swlimit+{uri}"')
            target = folder / "tests" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text.replace('"implementation": ASYNC_REDIS_IMPLEMENTATION,', ""))
    shutil.copy(Path(__file__).with_name("limits_suite.py"), folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")


def begin(folder, servers, *options):
    """Begin the tests in a folder, in a process of its own."""
    ports = ",".join(str(server.port) for server in servers)
    return subprocess.Popen([sys.executable, "-m", "pytest", "-rA", "-W", "ignore", *options, "tests"], cwd=folder,
                            env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:.", "PORTS": ports},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [
    ("threads", "asyncio in a cluster"),
    ("threads in a cluster", "asyncio"),
], ids=" and ".join)
def test_its_own_tests(source, start, tmp_path, kinds):
    """Two at a time, because most of them sleep most of the time.

    They have as little as 100 ms for six requests: what fails is run once more, with nothing beside it.
    """
    running = []
    for kind in kinds:
        files = ASYNC_FILES if kind.startswith("asyncio") else FILES
        if kind.endswith("cluster"):
            cluster = Cluster(start)
            uri, servers = f"redis+cluster://127.0.0.1:{cluster.servers[0].port}/", cluster.masters()
        else:
            servers = [start()]
            uri = f"redis://127.0.0.1:{servers[0].port}"
        folder = tmp_path / kind.replace(" ", "-")
        prepare(folder, source, files, uri)
        running.append((folder, servers, begin(folder, servers)))
    for _, _, process in running:
        printed, _ = process.communicate(timeout=240)
        assert process.returncode in (0, 1) and printed.count("PASSED") >= 20, printed[-8000:]
    for folder, servers, process in running:
        if process.returncode:
            alone = begin(folder, servers, "--last-failed")
            printed, _ = alone.communicate(timeout=240)
            assert alone.returncode == 0, printed[-8000:]
