"""Programs whose threads are greenlets."""

import os
import subprocess
import sys

from support.server import ROOT

GEVENT = """
from gevent import monkey
monkey.patch_all()
import os, signal, sys, time
import gevent, redis, swlimit

port, pid = int(sys.argv[1]), int(sys.argv[2])
limiter = swlimit.Limiter(redis.Redis(port=port), 100_000, "1h", timeout=0.1, on_failure="allow")


def sources(number):
    return {one.value.source for one in gevent.joinall([gevent.spawn(limiter.allow, f"k:{n}") for n in range(number)])}


def come_back(when):
    # Connecting takes its time on a busy machine.
    ends = time.monotonic() + 10
    while sources(50) != {"server"}:
        assert time.monotonic() < ends, when
        time.sleep(0.05)


come_back("before")
os.kill(pid, signal.SIGSTOP)
for _ in range(5):
    sources(20)
assert sources(20) == {"failure"}, "away"
time.sleep(1)
os.kill(pid, signal.SIGCONT)
come_back("after")
"""


def test_gevent_after_an_outage(start):
    """Its probes find the server again."""
    server = start()
    done = subprocess.run([sys.executable, "-c", GEVENT, str(server.port), str(server.process.pid)], text=True,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/src/python"}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
