"""The tests of the package for Node, each file of them on real servers, whose ports it is told."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import node
from support.cluster import Cluster

HERE = node.MODULES
TESTS = sorted(path.name for path in HERE.glob("*.test.mjs"))
ON_EVERY_RELEASE = {"denials.test.mjs", "waiting.test.mjs"}  # what depends on what a server does
if os.environ.get("SWLIMIT_SERVERS"):
    TESTS = [name for name in TESTS if name in ON_EVERY_RELEASE]


@pytest.mark.parametrize("name", [name for name in TESTS if name not in ("away.test.mjs", "cluster.test.mjs")])
def test_file(name, server):
    passes(name, main=server.port)


@pytest.mark.skipif("away.test.mjs" not in TESTS, reason="depends on no release")
def test_away(server, start):
    """`spare` is paused and killed, and starts again; `bare` has no module."""
    spare, bare = start(), start(module=None)
    with ThreadPoolExecutor() as pool:
        passed = pool.submit(passes, "away.test.mjs", main=server.port, spare=spare.port, bare=bare.port)
        while not passed.done():
            spare.start()
            time.sleep(0.1)
        passed.result()


@pytest.mark.skipif("cluster.test.mjs" not in TESTS, reason="depends on no release")
def test_cluster(start):
    passes("cluster.test.mjs", main=Cluster(start).servers[0].port)


def passes(name, **ports):
    """A file of tests, of which at least one is run, and all pass."""
    done = node.run("--test", "--test-reporter=spec", name, env=node.ENVIRONMENT | {"SWLIMIT_PORTS": json.dumps(ports)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ℹ pass 0\n" not in done.stdout and "ℹ skipped 0\n" in done.stdout, done.stdout


def test_types():
    """The package's types fit those of the clients and the frameworks."""
    done = node.run(node.TSC, "--project", HERE)
    assert done.returncode == 0, done.stdout + done.stderr
