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
from swlimit.deciding import Deciding

PORT = int(os.environ["SWLIMIT_PORT"])
words = Deciding._words


class Storage(swlimit.limits.SwlimitStorage):
    STORAGE_SCHEME = ["memory"]

    def __init__(self, _uri=None, **options):
        super().__init__(f"swlimit+redis://127.0.0.1:{PORT}", **options | {"mode": "direct", "subintervals": 1000})


def dated(self, *args, **options):
    return (*words(self, *args, **options), "AT", int(time.time() * 1000))


Deciding._words = dated
limits.strategies.STRATEGIES["fixed-window"] = limits.strategies.MovingWindowRateLimiter


@pytest.fixture(autouse=True)
def empty():
    redis.Redis(port=PORT).flushall()


@pytest.fixture(scope="session")
def docker_services():
    pytest.skip("needs Docker")
