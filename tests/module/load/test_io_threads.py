"""Commands that are read on I/O threads: ordinary traffic to a node of a cluster that writes an append-only file."""

import subprocess
import time

import pytest

from support.cli import ask
from support.commands import mallow
from support.contents import info
from support.threaded import ThreadedServer
from support.waiting import eventually

SECONDS = 3
RANDOM = "__rand_int__"  # redis-benchmark puts numbers there


@pytest.fixture
def node(binaries):
    """A cluster of one node."""
    with ThreadedServer(binaries, options={"cluster-enabled": "yes", "appendonly": "yes"}) as server:
        server.cli("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: "cluster_state:ok" in server.cli("CLUSTER", "INFO"))
        yield server


def test_a_server_survives_ordinary_traffic(node):
    """One limit and several at once, 25 connections each and a command at a time, while others look on."""
    quota = 1_000_000, 60, 5, 1
    traffic = mallow((f"k:{RANDOM}", *quota)), mallow((f"{{t}}:a{RANDOM}", *quota), (f"{{t}}:b{RANDOM}", *quota))
    loads = [subprocess.Popen(["redis-benchmark", "-p", str(node.port), "-c", "25", "-n", "1000000000", "-r", "2000",
                               *map(str, words)], stdout=subprocess.DEVNULL) for words in traffic]
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            assert node.alive, node.log[-5000:]
            assert all(load.poll() is None for load in loads)
            time.sleep(0.05)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    done = info(node, "commandstats")["cmdstat_swlimit.mallow"]
    assert int(done.split(",")[0].removeprefix("calls=")) > 1000 and "failed_calls=0" in done, done
    assert info(node, "stats")["io_threaded_writes_processed"] > 100
    assert ask(node, *mallow(("new", *quota)))[0] == 1
