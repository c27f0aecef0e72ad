"""Servers whose wall clock is off."""

import itertools
import os
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock.c")


@pytest.fixture(scope="session")
def skewed(tmp_path_factory):
    """The environment of a server whose clock is so many seconds off, until `set_clock` says otherwise."""
    return skewing(tmp_path_factory.mktemp("clock"))


def skewing(folder):
    """The function that makes such environments, with what it takes in a folder.

    libfaketime is not used: it hangs servers that are linked with a shared jemalloc, which most here are.
    """
    library, numbers = Path(folder, "clock.so"), itertools.count()
    words = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, SOURCE]
    subprocess.run(words, check=True)

    def skewed(seconds):
        file = library.with_name(f"skew-{next(numbers)}")
        file.write_text(str(seconds))
        return {"LD_PRELOAD": str(library), "CLOCK_SKEW": str(file)}

    return skewed


def set_clock(server, seconds):
    """Put the clock of a server that was started with `skewed` to a Unix time."""
    file = Path(server.env["CLOCK_SKEW"])
    new = file.with_suffix(".new")
    new.write_text(f"{seconds - time.time():.6f}")
    new.rename(file)  # at once: the server reads it all the time


def clock_of(server):
    """A server's wall clock, in seconds."""
    with server.client() as client:
        seconds, micros = client.time()
    return seconds + micros / 1e6
