"""Programs whose threads are greenlets."""

import os
import subprocess
import sys

import pytest

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
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python"}, capture_output=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr


PATCHED_LATE = """
import os, sys
import redis, swlimit

limiter = swlimit.Limiter(redis.Redis(port=int(sys.argv[1])), 50, "1h", timeout=20.0, on_failure="error")
holds = swlimit.HoldLimiter(redis.Redis(port=int(sys.argv[1])), 50, timeout=20.0, on_failure="error")
if "used" in sys.argv:
    assert limiter.allow("warm") and limiter.acquire("warm", timeout=1)
if "forked" in sys.argv and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from gevent import monkey
monkey.patch_all()
import gevent

asked = [gevent.spawn(limiter.allow, "k") for _ in range(100)]
asked += [gevent.spawn(holds.hold, "h") for _ in range(100)]
asked += [gevent.spawn(limiter.acquire, "k", timeout=1) for _ in range(10)]
for one in gevent.joinall(asked, timeout=30):
    assert one.get(block=False) is not None
granted = [bool(one.value) for one in asked]
assert [sum(granted[:100]) + sum(granted[200:]), sum(granted[100:200])] == [50, 50], granted
"""


@pytest.mark.parametrize("before", [[], ["used", "forked"]], ids=["made", "used, forked"])
def test_gevent_after_the_limiter(start, before):
    """As gunicorn does with --preload: the program is loaded, then forked, then patched."""
    server = start()
    done = subprocess.run([sys.executable, "-c", PATCHED_LATE, str(server.port), *before], text=True,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python"}, capture_output=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]


TIMEOUTS = """
from gevent import monkey
monkey.patch_all()
import random, sys, time
import gevent, redis, swlimit

client = redis.Redis(port=int(sys.argv[1]))
limiter = swlimit.Limiter(client, 1_000_000, "1h", timeout=20.0, mode="direct")
holds = swlimit.HoldLimiter(client, 100_000, timeout=20.0)
draw = random.Random(7)
granted, ended, guards = [], 0, []


def ask(seconds):
    global ended
    try:
        with gevent.Timeout(seconds):
            guards.append(holds.hold("h"))
            granted.append(limiter.allow("k").granted)
            granted.append(limiter.acquire("k", timeout=5).granted)
    except gevent.Timeout:
        ended += 1


scale = 0.02
for _ in range(30):  # about half of them end, however fast the machine is
    before = ended
    gevent.joinall([gevent.spawn(ask, draw.uniform(0, scale)) for _ in range(60)])
    scale *= 1.3 if ended - before > 30 else 1 / 1.3
assert ended > 100 and sum(granted) > 100, (ended, sum(granted))


def is_settled():
    return 1_000_000 - limiter.peek("k").remaining == sum(granted) and len(holds.holders("h", 5000)) == len(guards)


deadline = time.monotonic() + 20
while not is_settled():
    assert time.monotonic() < deadline, (sum(granted), limiter.peek("k"), len(holds.holders("h", 5000)), len(guards))
    time.sleep(0.05)
"""


def test_gevent_timeouts(start):
    """What a greenlet is granted as its Timeout comes goes back."""
    done = subprocess.run([sys.executable, "-c", TIMEOUTS, str(start().port)], text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python"}, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
