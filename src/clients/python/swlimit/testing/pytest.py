"""Fixtures for pytest, for `pytest_plugins = ["swlimit.testing.pytest"]` or `-p swlimit.testing.pytest`."""

import pytest

from . import AsyncFakeLimiter, FakeLimiter, TestClock


@pytest.fixture
def swlimit_clock() -> TestClock:
    """A clock that the test moves; its `limiter(3, "1m")` is a limiter by it."""
    return TestClock()


@pytest.fixture
def fake_limiter() -> FakeLimiter:
    """A limiter that denies when the test says so."""
    return FakeLimiter()


@pytest.fixture
def async_fake_limiter() -> AsyncFakeLimiter:
    """An AsyncLimiter that denies when the test says so."""
    return AsyncFakeLimiter()
