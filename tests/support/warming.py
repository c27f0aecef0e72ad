"""Processes with a limiter of 120 a second that warms up for ten: they share a key of a server whose clock stands."""

import subprocess
from contextlib import contextmanager

from .comparing import NOW, Clock
from .node import ENVIRONMENT
from .server import ROOT

COLD, WHOLE, PERIOD = 40, 120, 10_000


def limit_at(t, whole=WHOLE, period=PERIOD):
    """Of a key that was cold at 0, by the formula of the documentation."""
    step = min(20, 20 * t // period)
    return int(whole / (9 - 8 * step / 20) ** 0.5)


@contextmanager
def saturating(words):
    """A process that reads instants, asks at each until it is denied, and prints what was granted and the denial's
    limit: a function of the instant."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src/clients/python")}
    process = subprocess.Popen([str(word) for word in words], env=environment, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)

    def ask(now):
        process.stdin.write(f"{now}\n")
        process.stdin.flush()
        return tuple(map(int, process.stdout.readline().split()))

    try:
        yield ask
    finally:
        process.stdin.close()
        assert process.wait(60) == 0


def check_shared_curve(folder, start, program):
    """`program`: the words of such a process, whose last one is the port."""
    clock = Clock(folder)
    server = start(env=clock.environment)
    words = [*program, server.port]
    with saturating(words) as first, saturating(words) as starved, server.client() as client:
        def used():
            return WHOLE - client.execute_command("SWLIMIT.PEEK", "k", WHOLE, "1s", "50ms")[2]

        def at(t, *processes):
            clock.set(NOW + t)
            return [process(NOW + t) for process in processes]

        of_starved = 0
        for t in range(0, 6000, 250):
            _, (granted, _) = at(t, first, starved)
            of_starved += granted
            assert used() == limit_at(t)
        assert of_starved == 0

        with saturating(words) as late:
            assert at(6000, first, late)[1][1] == limit_at(5500), "it began cold"
            of_late = 0
            for t in range(6250, 12_000, 250):
                (granted, limit), *_ = at(t, late, first, starved)
                assert limit in (limit_at(t), limit_at(t - 500))
                assert used() == limit_at(t)
                of_late += granted
            assert of_late > WHOLE
        assert at(12_250, starved)[0][1] == WHOLE
        assert at(14_000, first) == [(COLD, COLD)]  # idle for longer than the window
        assert at(30_000, first, starved) == [(COLD, COLD), (0, COLD)]  # and longer than the warm-up
        assert used() == COLD
