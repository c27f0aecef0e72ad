"""conftest of the tests of `limits`, when they run on the storages of swlimit; see test_limits_suite.py."""

import os

import pytest
import redis

import swlimit.limits

PORTS = [int(port) for port in os.environ["PORTS"].split(",")]
DO_NOT_APPLY = {
    # Two fixed windows, and when the older one gives back its share, to the moment.
    "test_sliding_window_counter_previous_window", "test_sliding_window_counter_stats",
    # The end of the window to the moment; here it is rounded up to whole seconds, so that nobody comes too early.
    "test_moving_window_stats",
    # A unit of 2 s ago is gone at once; here it is once its subinterval has slid out, some ms later.
    "test_moving_window_huge_cost",
}

# These tests look within fractions of a second whether units have slid out: subintervals as short as those.
for windows in (swlimit.contrib.limits._Windows, swlimit.contrib.limits._AsyncWindows):
    windows.__init__.__kwdefaults__["subintervals"] = 50


def pytest_configure(config):
    for mark in ("redis", "redis_cluster", "redis_sentinel", "memory", "memcached", "mongodb", "valkey",
                 "valkey_cluster", "integration", "flaky", "benchmark"):
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(items):
    def is_ours(item):
        uri = getattr(item, "callspec", None) and item.callspec.params.get("uri", "")
        return uri and "swlimit+" in uri and item.originalname not in DO_NOT_APPLY

    items[:] = [item for item in items if is_ours(item)]


@pytest.fixture(autouse=True)
def empty():
    for port in PORTS:
        redis.Redis(port=port).flushall()


@pytest.fixture
def redis_basic():
    pass


@pytest.fixture
def redis_cluster():
    pass
