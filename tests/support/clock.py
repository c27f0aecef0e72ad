"""Servers whose wall clock is off."""

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock.c")


@pytest.fixture(scope="session")
def skewed(tmp_path_factory):
    """The environment of a server whose clock is so many seconds off.

    libfaketime is not used: it hangs servers that are linked with a shared jemalloc, which most here are.
    """
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    words = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, SOURCE]
    subprocess.run(words, check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "CLOCK_SKEW": str(seconds)}


def clock_of(server):
    """A server's wall clock, in seconds."""
    with server.client() as client:
        seconds, micros = client.time()
    return seconds + micros / 1e6
