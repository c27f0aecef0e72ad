"""How the adapter of each client is built and started: its words, and options of its process."""

import os
import sys
from functools import partial
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


def go(*kind):
    program = ROOT / "target" / "-".join(["go-adapter", *kind])
    done = golang.run("build", "-o", program, "./adapter", cwd=golang.TESTS)
    assert done.returncode == 0, done.stderr
    return [program, *kind], {}


def rust():
    return [Path(crates.built("swlimit-client", "--example", "adapter"))], {}


def swlimitd():
    return [sys.executable, TESTS / "daemon/adapter.py", DAEMON], {}


ADAPTERS = {
    **{f"python-{kind}": partial(python, kind) for kind in ("threads", "asyncio", "fakes")},
    **{f"node-{kind}": partial(javascript, kind) for kind in ("redis", "ioredis", "fakes")},
    "go": go,
    "go-fakes": partial(go, "fakes"),
    "rust": rust,
    "swlimitd": swlimitd,
}
