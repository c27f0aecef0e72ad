"""README's two commands on fresh Debian systems, as a newcomer runs them. See `make test-fresh`."""

import os
import re
import signal
import threading
import time

import pytest

from support.releases import Unavailable
from support.roots import USER, Root

pytestmark = pytest.mark.fresh
SUITES = ("bookworm", "trixie")
MINUTES = 30  # for one command, installing and compiling included


@pytest.fixture(scope="module")
def fresh():
    """Makes fresh systems; one that cannot be had is said and skipped, in CI, too."""
    made = []

    def fresh(suite):
        try:
            made.append(Root(suite).__enter__())
        except Unavailable as reason:
            pytest.skip(f"NO FRESH DEBIAN, set-up is not tested: {reason}")
        return made[-1]

    yield fresh
    for root in made:
        root.__exit__()


@pytest.fixture(scope="module", params=SUITES)
def root(request, fresh):
    return fresh(request.param)


@pytest.fixture(scope="module")
def checkout(root):
    return root.clone()


def assert_make_run_serves(root, folder, user):
    """`make run` starts a server that answers the command it prints, until Ctrl-C, which leaves nothing behind."""
    before = set(os.listdir(root.folder / "tmp"))
    process = root.start("make", "run", folder=folder, user=user)
    limit = threading.Timer(MINUTES * 60, process.kill)
    limit.start()
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if found := re.match(r"\s*(redis-cli -p \d+ SWLIMIT\.ALLOW .*)", line):
                break
        else:
            pytest.fail(f"make run ended:\n{''.join(printed)[-5000:]}", pytrace=False)
        for _ in range(50):
            reply = root.run(*found[1].split(), user=user).stdout.split()
            if len(reply) == 5:
                break
            time.sleep(0.2)  # the server is starting
        assert reply[:4] == ["1", "100", "99", "0"] and 60_000 < int(reply[4]) <= 65_000, reply
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()  # until all have ended
        assert set(os.listdir(root.folder / "tmp")) == before
    finally:
        limit.cancel()
        process.kill()
        process.wait()


def test_make_run(root, checkout):
    assert_make_run_serves(root, checkout, "root")


def test_make_test(root, checkout):
    done = root.run("timeout", f"{MINUTES}m", "make", "test", folder=checkout)
    tail = done.stdout[-5000:]
    assert done.returncode == 0, tail
    print(re.findall(r"^.*\d+ passed.*$", done.stdout, re.MULTILINE))
    assert re.search(r"test result: ok\. [1-9]", done.stdout), tail  # Rust's
    assert re.search(r"^[1-9]\d* passed", tail, re.MULTILINE), tail  # Python's


@pytest.mark.parametrize("suite", SUITES)
def test_without_the_right_to_install(fresh, suite):
    """A user without root or sudo gets one line to paste; when root has run it, `make run` serves that user."""
    root = fresh(suite)
    folder = root.clone(USER)
    refused = root.run("make", "run", folder=folder, user=USER)
    assert refused.returncode != 0
    line, = (line for line in refused.stdout.splitlines() if re.search(r"apt|sudo|rustup", line))
    assert line.startswith("apt-get update")
    pasted = root.run("sh", "-c", line)
    assert pasted.returncode == 0, pasted.stdout[-5000:]
    assert_make_run_serves(root, folder, USER)
