"""Servers for the script: one without the module, which most tests share, and pairs whose clocks stand."""

import pytest

from support.comparing import Clock
from support.resp import Connection
from support.script import load, scripted, sha


@pytest.fixture(scope="session")
def plain_server(starting):
    """A server that has no module."""
    with starting() as start:
        yield start(module=None)


@pytest.fixture
def plain(plain_server):
    """A connection to an empty server that has no module, and knows the script."""
    with Connection(plain_server.port) as plain:
        plain.call("FLUSHALL")
        load(plain)
        yield plain


@pytest.fixture
def run(plain):
    """The script's reply to a command in the module's words."""
    return lambda *words: plain.call(*scripted(words, sha()))


@pytest.fixture
def clock(tmp_path):
    """A clock for servers started with its `environment`."""
    return Clock(tmp_path)
