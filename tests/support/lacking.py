"""What to do where something to test with is not at hand."""

import os

import pytest

from .releases import Unavailable, obtain


def lacking(what):
    """Skip the test and say what it lacks; in CI, which must lack nothing, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks {what}", pytrace=False)
    pytest.skip(f"LACKING {what}")


def needed(name):
    """The binaries of a release that the test cannot do without."""
    try:
        return obtain(name)
    except Unavailable as reason:
        lacking(f"{name}: {reason}")
