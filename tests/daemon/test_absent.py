"""What a proxy does while swlimitd is gone, or stopped and silent."""

import signal
import time
from pathlib import Path

import pytest

from support.waiting import eventually

FAR_TOO_LONG = 2.0  # the pages promise half a second, but this machine is busy


@pytest.fixture
def ask(proxy):
    def ask():
        """A status, which has to come soon."""
        began = time.monotonic()
        status = proxy.ask("/login", "POST")[0]
        assert time.monotonic() - began < FAR_TOO_LONG
        return status

    return ask


def expected(proxy):
    """Traefik cannot let requests pass."""
    return {"traefik": 502}.get(proxy.name, 200)


def test_gone(proxy, policed, ask):
    assert proxy.statuses(6, "/login", "POST")[-1] == 429
    policed.process.kill()
    policed.process.wait()
    assert [ask() for _ in range(3)] == [expected(proxy)] * 3
    policed.start()
    eventually(lambda: proxy.ask("/login", "POST")[0], 429)


def test_stopped(proxy, policed, ask):
    """Connections are accepted by the system, and nobody answers."""
    assert proxy.statuses(6, "/login", "POST")[-1] == 429
    policed.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: Path(f"/proc/{policed.process.pid}/stat").read_text().rpartition(")")[2].split()[0], "T")
        assert {ask() for _ in range(3)} <= {expected(proxy), 504 if proxy.name == "traefik" else 200}
    finally:
        policed.send_signal(signal.SIGCONT)
    eventually(lambda: proxy.ask("/login", "POST")[0], 429)
