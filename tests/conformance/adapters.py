"""How the adapter of each client is built and started: its words, and options of its process."""

import os
import sys
from pathlib import Path

from support import crates, golang, node
from support.daemon import DAEMON
from support.server import ROOT

TESTS = ROOT / "tests"


def python(kind):
    return [sys.executable, TESTS / "clients/python/adapter.py", kind], {
        "env": os.environ | {"PYTHONPATH": str(ROOT / "src/clients/python")}}


def javascript(client):
    node.build()
    return [node.NODE, TESTS / "clients/node/adapter.mjs", client], {}


def go():
    program = ROOT / "target/go-adapter"
    done = golang.run("build", "-o", program, "./adapter", cwd=golang.TESTS)
    assert done.returncode == 0, done.stderr
    return [program], {}


def rust():
    return [Path(crates.built("swlimit-client", "--example", "adapter"))], {}


def swlimitd():
    return [sys.executable, TESTS / "daemon/adapter.py", DAEMON], {}


ADAPTERS = {
    "python-threads": lambda: python("threads"),
    "python-asyncio": lambda: python("asyncio"),
    "python-fakes": lambda: python("fakes"),
    "node-redis": lambda: javascript("redis"),
    "node-ioredis": lambda: javascript("ioredis"),
    "node-fakes": lambda: javascript("fakes"),
    "go": go,
    "rust": rust,
    "swlimitd": swlimitd,
}
