"""What a proxy does while swlimitd is gone, or stopped and silent."""

import signal
import time
from pathlib import Path

import pytest

from support.gateways import GRPC, NAMES
from support.waiting import eventually

pytestmark = pytest.mark.parametrize("proxy", [*NAMES, GRPC], indirect=True)
PROMISED = 0.5  # s: docs/proxies.md


def statuses_until_one_is_soon(proxy):
    """The statuses of requests, until one takes no longer than is promised. The proxy's own time-outs are part of each,
    and so of the fastest; what else a request takes longer for is a busy machine."""
    seen = set()

    def is_soon():
        began = time.monotonic()
        seen.add(proxy.ask("/login", "POST")[0])
        return time.monotonic() - began < PROMISED

    eventually(is_soon, seconds=60)
    return seen


def expected(proxy):
    """Traefik cannot let requests pass."""
    return {"traefik": 502}.get(proxy.name, 200)


def test_gone(proxy, policed):
    assert proxy.statuses(6, "/login", "POST")[-1] == 429
    policed.process.kill()
    policed.process.wait()
    assert statuses_until_one_is_soon(proxy) == {expected(proxy)}
    policed.start()
    eventually(lambda: proxy.ask("/login", "POST")[0], 429)


def test_stopped(proxy, policed):
    """Connections are accepted by the system, and nobody answers."""
    assert proxy.statuses(6, "/login", "POST")[-1] == 429
    policed.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: Path(f"/proc/{policed.process.pid}/stat").read_text().rpartition(")")[2].split()[0], "T")
        assert statuses_until_one_is_soon(proxy) <= {expected(proxy), 504 if proxy.name == "traefik" else 200}
    finally:
        policed.send_signal(signal.SIGCONT)
    eventually(lambda: proxy.ask("/login", "POST")[0], 429)
