"""What others can do to swlimitd: read its metrics without end, begin bodies and end none, ask for much at once."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from statistics import median, quantiles

from support.daemon import Daemon, request, rls_pb2_grpc
from support.http2 import Http2

from .cpu import rounded, spread
from .daemon import PLENTY, cpu_of
from .load import cores
from .sizing import POD, limited, memory

MIB = 1 << 20
READERS, RULES = 4, 900
READER = "import sys, urllib.request as it\nwhile True: it.urlopen(sys.argv[1]).read()"
CONNECTIONS, STREAMS = 300, 200
SETTLED = 1.0  # s; until then all readers read


@dataclass(frozen=True)
class Case:
    """Something there are few or many of, and who asks a swlimitd about it."""

    label: str
    few: int
    many: int
    requests: int    # in a round
    make: Callable   # (stack, number) -> the daemon, what asks it once
    is_asked: bool   # whether a request asks for all of them


def start(stack, **limits):
    """A swlimitd that counts by itself."""
    return stack.enter_context(Daemon(json.dumps({"domain": "d", **limits})))


def over_grpc(stack, started, *descriptors):
    """What asks for these descriptors once."""
    stub = rls_pb2_grpc.RateLimitServiceStub(stack.enter_context(started.channel()))
    asked = request(*descriptors)
    return lambda: stub.ShouldRateLimit(asked)


def with_descriptors(stack, number):
    started = start(stack, descriptors=[{"key": "k", **limited(PLENTY)}])
    return started, over_grpc(stack, started, *(f"k=value{at}" for at in range(number)))


def with_wildcards(stack, number):
    started = start(stack, descriptors=[{"key": "p", "value": f"/t/{at}/*", **limited(PLENTY)} for at in range(number)])
    return started, over_grpc(stack, started, f"p=/t/{number - 1}/x")


def with_policies(stack, number):
    started = start(stack, policies=[{"name": f"n{at}", "match": {"path": f"/t/{at}/*"}, "key": "k", **limited(PLENTY)}
                                     for at in range(number)])
    connection = http.client.HTTPConnection("127.0.0.1", started.http_port)
    stack.callback(connection.close)
    headers = {"X-Forwarded-Method": "GET", "X-Forwarded-Host": "a", "X-Forwarded-Uri": f"/t/{number - 1}/x"}

    def ask():
        connection.request("GET", "/auth", headers=headers)
        reply = connection.getresponse()
        assert reply.status == 200, (reply.status, reply.read())
        reply.read()
    return started, ask


CASES = [
    Case("a descriptor of a request", 100, 1000, 100, with_descriptors, is_asked=True),
    Case("a request, with policies", 10, 10_000, 1000, with_policies, is_asked=False),
    Case("a request, with wildcards", 10, 10_000, 1000, with_wildcards, is_asked=False),
]


@contextmanager
def readers(port):
    """Processes that read `/metrics` all the time, and leave the processor to others."""
    command = ["nice", "-n", "19", sys.executable, "-c", READER, f"http://127.0.0.1:{port}/metrics"]
    several = [subprocess.Popen(command) for _ in range(READERS)]
    try:
        time.sleep(SETTLED)
        yield
        assert all(one.poll() is None for one in several), "a reader failed"
    finally:
        for one in several:
            one.kill()
            one.wait()


def late(ask, times):
    """The 99th percentile of latency, in µs."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    return quantiles(taken, n=100)[-1] * 1e6


def scraped(rounds, times):
    """The 99th percentiles of rounds without readers of metrics, and of those with them."""
    with ExitStack() as stack:
        started = start(stack, descriptors=[{"key": f"k{at}", **limited(PLENTY)} for at in range(RULES)])
        ask = over_grpc(stack, started, "k1=x")
        ask()
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(late(ask, times))
            with readers(started.http_port):
                beside.append(late(ask, times))
        return alone, beside


def over_http1(stack, port):
    for _ in range(CONNECTIONS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        stack.callback(connection.close)
        connection.putrequest("POST", "/json")
        connection.putheader("Content-Length", MIB)
        with suppress(OSError):  # it may be given up already
            connection.endheaders(b" " * (MIB - 1))


def over_http2(stack, port):
    connection = Http2(port)
    stack.enter_context(connection.socket)
    connection.settle()
    for stream in range(1, 2 * STREAMS, 2):
        connection.request(stream, b"POST", b"/json", ends=False)
        connection.send(stream, b" " * (MIB - 1))


BODIES = {f"{CONNECTIONS} connections of HTTP/1.1": over_http1,
          f"{STREAMS} streams of one connection of HTTP/2": over_http2}


def held(send):
    """The memory of an idle swlimitd, and the most that it has had after these bodies, in bytes."""
    with ExitStack() as stack:
        started = start(stack)
        idle = memory(started.process)
        send(stack, started.http_port)
        return idle, memory(started.process, "VmHWM")


def per_request(case, rounds):
    """The CPU of each of few and of many in each round, in µs."""
    with ExitStack() as stack:
        sides = [(number, *case.make(stack, number)) for number in (case.few, case.many)]
        seen = [], []
        for _ in range(1 + rounds):
            for (number, started, ask), several in zip(sides, seen):
                before = cpu_of(started.process)
                for _ in range(case.requests):
                    ask()
                each = case.requests * (number if case.is_asked else 1)
                several.append((cpu_of(started.process) - before) / 1000 / each)
        return tuple(several[1:] for several in seen)  # in the first one they still tidy up after their start


def measure(rounds, times):
    """All of it: percentiles, `{bodies: memory}`, `{label of a case: CPU}`."""
    os.sched_setaffinity(0, cores())  # other sections leave it one
    print("strain: readers of metrics", flush=True)
    late_by = scraped(rounds, times)
    print("strain: bodies", flush=True)
    kept = {label: held(send) for label, send in BODIES.items()}
    print("strain: large requests and configurations", flush=True)
    return late_by, kept, {case.label: per_request(case, rounds) for case in CASES}


def table(late_by, kept, spent):
    """What came out, as Markdown tables."""
    rows = ["| latency, p99 | µs | with readers, µs | ratio | wanted |", "|---|---:|---:|---:|---:|",
            f"| a decision | {compared(*late_by)} | ≤ 2 |", "",
            "| bodies of 1 MiB that do not end | swlimitd idle, MiB | at most, MiB | wanted |", "|---|---:|---:|---:|"]
    rows += [f"| {label} | {idle / MIB:.0f} | {most / MIB:.0f} | ≤ {POD / MIB:.0f} |"
             for label, (idle, most) in kept.items()]
    rows += ["", "| CPU | few | many | µs with few | µs with many | ratio |", "|---|---:|---:|---:|---:|---:|"]
    return rows + [f"| {case.label} | {case.few:,} | {case.many:,} | {compared(*spent[case.label])} |"
                   for case in CASES]


def compared(one, other):
    """Both medians, and the second by the first within a round, with quartiles."""
    low, middle, high = spread([then / first for first, then in zip(one, other)])
    return f"{rounded(median(one))} | {rounded(median(other))} | {middle:.2f} ({low:.2f}–{high:.2f})"
