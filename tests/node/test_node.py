"""The tests of the package for Node, each file of them on real servers, whose ports it is told."""

import json
import os

import pytest

from support import node
from support.cluster import Cluster

HERE = node.MODULES
TESTS = sorted(path.name for path in HERE.glob("*.test.mjs"))
ON_EVERY_RELEASE = {"denials.test.mjs", "waiting.test.mjs"}  # what depends on what a server does
if os.environ.get("SWLIMIT_SERVERS"):
    TESTS = [name for name in TESTS if name in ON_EVERY_RELEASE]


@pytest.mark.parametrize("name", [name for name in TESTS if name != "cluster.test.mjs"])
def test_file(name, server, start):
    """`spare` is for those that stop it or pause it, `bare` has no module."""
    ports = {"main": server.port}
    if name == "away.test.mjs":
        ports |= {"spare": start().port, "bare": start(module=None).port}
    passes(name, ports)


@pytest.mark.skipif("cluster.test.mjs" not in TESTS, reason="depends on no release")
def test_cluster(start):
    cluster = Cluster(start)
    passes("cluster.test.mjs", {"main": cluster.servers[0].port, "another": cluster.servers[1].port})


def passes(name, ports):
    """A file of tests, of which at least one is run, and all pass."""
    done = node.run("--test", "--test-reporter=spec", name, env=node.ENVIRONMENT | {"SWLIMIT_PORTS": json.dumps(ports)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ℹ pass 0\n" not in done.stdout and "ℹ skipped 0\n" in done.stdout, done.stdout


def test_types():
    """The package's types fit those of the clients and the frameworks."""
    node.build()
    done = node.run(node.PACKAGE / "node_modules/typescript/bin/tsc", "--project", HERE)
    assert done.returncode == 0, done.stdout + done.stderr
