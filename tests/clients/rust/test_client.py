"""The Rust client on real servers: the client's own tests, which start servers of the release under test themselves."""

import os
import subprocess

import pytest

from support.crates import built
from support.server import MODULE


@pytest.fixture(scope="session")
def program():
    """The client's tests on real servers, built."""
    return built("swlimit-client", "--test", "real")


@pytest.fixture
def run(program, binaries, report):
    """Run the tests, those that these words choose; a test that fails fails this one, with its output."""
    def run(*words, at_a_time, **env):
        server, = binaries.command
        env |= os.environ | binaries.env | {"SWLIMIT_SERVER": server, "SWLIMIT_MODULE": str(MODULE.absolute())}
        words = [program, f"--test-threads={at_a_time}", *words]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        for line in done.stderr.splitlines():
            report(line)
    return run


def test_real_servers(run):
    """Whatever depends on the server."""
    run("--skip", "processes::", at_a_time=8)


@pytest.mark.long
def test_real_servers_without_the_module(run):
    """The same by the script, except waiting in the server, and rights to the module's commands."""
    run("--skip", "processes::", "--skip", "acquire::", "--skip", "users_who_may_not_ask", at_a_time=8,
        SWLIMIT_BY_SCRIPT="1")


@pytest.mark.long
def test_processes(run, binaries):
    """What many processes were granted together: the same on every release."""
    if binaries.name != "installed":
        pytest.skip("does not depend on the server")
    run("processes::", at_a_time=3)


@pytest.mark.long
def test_long(run):
    """The same for longer."""
    run("--ignored", at_a_time=2)
