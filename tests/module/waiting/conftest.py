"""Clients that wait on the shared server."""

import pytest

from support.contents import statistics
from support.waiters import waiters


@pytest.fixture
def wait(server):
    """Let clients wait on the shared server. Nobody is left when the test ends."""
    with waiters(server) as wait:
        yield wait


@pytest.fixture
def counted(server):
    """What the statistics have grown by since the test began."""
    before = statistics(server)
    names = [name for name in before if name not in ("keys", "memory", "version")]

    def grown():
        after = statistics(server)
        return {name: after[name] - before[name] for name in names if after[name] != before[name]}

    return grown
