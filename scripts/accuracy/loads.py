"""The traffic: real logs, and generated loads that are the same in every run."""

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from replay import ReplayError, read
from support.server import ROOT

SEED = 20240101
START = 1_704_067_200_000  # 2024-01-01 00:00 UTC: a multiple of every window used here, in ms
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
YEAR = 2024                # of log stamps that name none, so that the day on which one measures makes no difference
DATA = ROOT.parent / "shared/data"


class Request(NamedTuple):
    """One request: its instant (Unix time in ms), the number of the client that sends it, and its cost in units."""

    at: int
    client: int
    cost: int = 1


@dataclass(frozen=True)
class Load:
    """Requests in order of time, and the limit to play them against.

    `make` takes the resolution in ms and returns the requests; only an adversary makes use of it.
    """

    name: str
    about: str
    limit: int
    window: int  # ms
    make: Callable[[int], list[Request]]
    adversary: bool = False


def real_logs():
    """(load or None, file, key) for each of the real logs; None if it is not on this machine."""
    wanted = [
        ("web log", "apache_access_10k.log.gz", "requests to a public web site, by client address", 10, 30 * SECOND),
        ("sshd log", "ssh_auth.log.gz", "failed logins under password guessing, by source address", 5, 10 * MINUTE),
    ]
    for name, file, about, limit, window in wanted:
        path = DATA / file
        yield file, log(path, limit=limit, window=window, name=name, about=about) if path.exists() else None


def log(path, key="address", limit=10, window=MINUTE, name=None, about=None):
    """A log as a load; `key` says which of its fields tell its clients apart."""
    numbers = {}
    requests = [Request(request.at, numbers.setdefault(request.key, len(numbers)), request.cost)
                for request in read(str(path), key=key, year=YEAR).requests]
    if not requests:
        raise ReplayError(f"nothing in {path} asks for leave")
    return Load(name or Path(path).name, about or f"by {key}", limit, window, lambda _: requests)


def generated(scale=1.0):
    """The generated loads; `scale` makes the clients fewer."""
    def clients(count):
        return max(1, round(count * scale))

    return [
        _fixed("Poisson", "clients at 0.5 … 1.5 times their limit", 100, MINUTE, _poisson, clients(30)),
        _fixed("bursts", "clients with 10 s on at 5 times their limit and 50 s off, on average", 100, MINUTE, _bursts,
               clients(30)),
        _fixed("diurnal", "a day of clients between 0.4 and 1.6 times their limit", 200, HOUR, _diurnal,
               clients(5)),
        _fixed("heavy tail", "clients of which the k-th sends 1/k as much as the first", 60, MINUTE, _heavy_tail,
               clients(500)),
        _fixed("costs", "as Poisson, but each request costs 1 … 10 units", 500, MINUTE, _costs, clients(30)),
        Load("late bursts", "the adversary: uses the limit up in the last ms of a subinterval, and comes back 1 ms "
             "before it is due", 100, MINUTE, _late_bursts, adversary=True),
        Load("early bursts", "the unlucky client: uses the limit up in the first ms of a subinterval, and comes back "
             "when it is due", 100, MINUTE, _early_bursts, adversary=True),
    ]


def _fixed(name, about, limit, window, generate, clients):
    random = Random(f"{SEED} {name}")
    requests = sorted(generate(random, clients, limit / window))
    return Load(name, about, limit, window, lambda _: requests)


def _arrivals(random, start, length, rate):
    """Instants of a Poisson process of `rate` a ms within `length` ms."""
    at = random.expovariate(rate)
    while at < length:
        yield start + int(at)
        at += random.expovariate(rate)


def _poisson(random, clients, rate):
    for client, own in enumerate(_spread(0.5, 1.5, clients)):
        for at in _arrivals(random, START, 10 * MINUTE, own * rate):
            yield Request(at, client)


def _bursts(random, clients, rate):
    for client in range(clients):
        at, end = START + random.uniform(0, MINUTE), START + 10 * MINUTE
        while at < end:
            on = random.expovariate(1 / (10 * SECOND))
            yield from (Request(one, client) for one in _arrivals(random, int(at), min(on, end - at), 5 * rate))
            at += on + random.expovariate(1 / (50 * SECOND))


def _diurnal(random, clients, rate):
    peak = 1.6
    for client in range(clients):
        for at in _arrivals(random, START, 24 * HOUR, peak * rate):
            wave = 1 - 0.6 * math.cos(2 * math.pi * (at - START) / (24 * HOUR))
            if random.random() * peak < wave:  # thins the peak's arrivals out
                yield Request(at, client)


def _heavy_tail(random, clients, rate):
    shares = list(itertools.accumulate(1 / rank for rank in range(1, clients + 1)))
    busiest = 6  # times the limit
    for at in _arrivals(random, START, 10 * MINUTE, busiest * rate * shares[-1]):
        yield Request(at, bisect.bisect(shares, random.random() * shares[-1]))


def _costs(random, clients, rate):
    mean = 5.5
    for client, own in enumerate(_spread(0.5, 1.5, clients)):
        for at in _arrivals(random, START, 10 * MINUTE, own * rate / mean):
            yield Request(at, client, 1 + int(random.random() * 10))


def _late_bursts(resolution, limit=100, window=MINUTE, times=10):
    first = resolution - 1
    return _pairs_of_bursts(first, first + window - 1, limit, window, times)


def _early_bursts(_, limit=100, window=MINUTE, times=10):
    return _pairs_of_bursts(0, window, limit, window, times)


def _pairs_of_bursts(first, second, limit, window, times):
    """Two bursts of the whole limit, these ms after the start of a window, again and again; all is forgotten between
    the pairs.
    """
    return [Request(START + time * 4 * window + offset, 0)
            for time in range(times) for offset in (first, second) for _ in range(limit)]


def _spread(low, high, count):
    return [low + (high - low) * (number + 0.5) / count for number in range(count)]
