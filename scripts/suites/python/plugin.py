"""A plugin of pytest: what asks `limits` for a storage in memory gets swlimit's, and moving windows by default.

Tests set the clock: each command says what it shows.
"""

import os
import time

import limits.storage
import limits.strategies
import pytest
import redis

import swlimit.limits
from swlimit._protocol import commands

PORT = int(os.environ["SWLIMIT_PORT"])
STRETCH = float(os.environ.get("SWLIMIT_STRETCH", 1))
"""How much faster than the test's the server's clock goes."""
arguments = commands.RateCommand.arguments


class Storage(swlimit.limits.SwlimitStorage):
    STORAGE_SCHEME = ["memory"]

    def __init__(self, _uri=None, **options):
        super().__init__(f"swlimit+redis://127.0.0.1:{PORT}", **options | {"mode": "direct", "subintervals": 1000})


def dated(command):
    return *arguments(command), "AT", int(time.time() * 1000 * STRETCH)


commands.RateCommand.arguments = dated
limits.strategies.STRATEGIES["fixed-window"] = limits.strategies.MovingWindowRateLimiter


@pytest.fixture(autouse=True)
def empty():
    redis.Redis(port=PORT).flushall()


@pytest.fixture(scope="session")
def docker_services():
    pytest.skip("needs Docker")
