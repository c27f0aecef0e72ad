"""What a request to swlimitd costs, beside limitador as a service and a service that decides nothing; and the services
themselves, envoyproxy/ratelimit with them.

Services have one core, Redis and the load generator the other. All take turns, round after round; ratios are taken
within a round. CPU is that of all threads of a service, and of the main thread of Redis, per request.
"""

import json
import os
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median

from support.daemon import READY_SECONDS, Daemon
from support.server import ROOT, free_port

from .cpu import rounded, spread
from .load import cores, cpu_nanoseconds, start_server

PROGRAM = "target/bench/release/daemon-bench"  # from the top, where all of this runs
PLENTY, HOUR, LIMIT, WINDOW = 1_000_000_000, 3600, 1000, 60
# What descriptors' keys are called: their limits, windows in seconds, and how swlimitd decides them.
KINDS = {"granted": (PLENTY, HOUR, "direct"), "denied": (1, HOUR, "cached"), "leased": (PLENTY, HOUR, "leased"),
         "exact": (LIMIT, WINDOW, "cached"), "exact_direct": (LIMIT, WINDOW, "direct")}
RATELIMIT = "target/bench/service_cmd"  # envoyproxy/ratelimit
CASES = {  # what it is called: the service and the kind of key
    "a service that decides nothing (the floor)": ("floor", "granted"),
    "swlimitd, a denial that is known": ("swlimitd", "denied"),
    "swlimitd, a unit of a lease": ("swlimitd", "leased"),
    "swlimitd, the server decides": ("swlimitd", "granted"),
    "`limitador` 0.14, granted": ("redis", "granted"),
    "`limitador` 0.14, denied": ("redis", "denied"),
    "`limitador` 0.14 with its cache, granted": ("redis_cached", "granted"),
}
FLOOR, DENIAL, LEASE, DECISION, GRANTED, DENIED, CACHED = CASES
EXACT = {"swlimitd": ("swlimitd", "exact"), "swlimitd, `mode: direct`": ("swlimitd", "exact_direct"),
         "`limitador` 0.14": ("redis", "exact"), "`limitador` 0.14 with its cache": ("redis_cached", "exact")}
KEYS, TASKS = 1000, (1, 50)
SETTLED = 1.1  # s; until then limitador's cache has told Redis, which it does once a second


@contextmanager
def service(name, server):
    """A service over a server: its port, and its process."""
    url = f"redis://127.0.0.1:{server.port}/"
    if name == "swlimitd":
        with Daemon(limits(), server) as daemon:
            yield daemon.port, daemon.process
        return
    if name.startswith("ratelimit"):
        with ratelimit(server, 1 << 20 if name == "ratelimit_cached" else 0) as found:
            yield found
        return
    port, quotas = free_port(), json.dumps({kind: quota for kind, (*quota, _) in KINDS.items()})
    # `redis` and `redis_cached` are limitador's, by its storage.
    words = ["floor", port] if name == "floor" else ["limitador", port, name, url, quotas]
    with listening([PROGRAM, *map(str, words)], port) as found:
        yield found


@contextmanager
def ratelimit(server, cache):
    """envoyproxy/ratelimit with a local cache of so many bytes, and otherwise as it is."""
    port, http, debug, metrics = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config").mkdir()
        (Path(folder) / "config/limits.yaml").write_text(limits(modes=False))
        settings = {
            "RUNTIME_ROOT": folder, "RUNTIME_SUBDIRECTORY": "", "RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "error",
            "USE_STATSD": "false", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": f"127.0.0.1:{metrics}",
            "GRPC_HOST": "127.0.0.1", "GRPC_PORT": port, "HOST": "127.0.0.1", "PORT": http, "DEBUG_HOST": "127.0.0.1",
            "DEBUG_PORT": debug, "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{server.port}",
            "LOCAL_CACHE_SIZE_IN_BYTES": cache}
        with listening([RATELIMIT], port, os.environ | {name: str(text) for name, text in settings.items()}) as found:
            yield found


@contextmanager
def listening(words, port, env=None):
    """A service once it listens: its port, and its process."""
    with subprocess.Popen(words, cwd=ROOT, env=env) as process:
        try:
            wait_for(port)
            yield port, process
        finally:
            process.kill()


def limits(modes=True):
    """The limits of all kinds of keys, with swlimitd's modes or without."""
    units, descriptors = {HOUR: "hour", WINDOW: "minute"}, []
    for kind, (limit, window, mode) in KINDS.items():
        own = {"mode": mode} if modes else {}
        descriptors.append({"key": kind, "rate_limit": {"unit": units[window], "requests_per_unit": limit} | own})
    return json.dumps({"domain": "bench", "descriptors": descriptors})  # JSON is YAML


def wait_for(port):
    """Until somebody listens there."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def load(port, kind, tasks, seconds=0.0, times=0, keys=KEYS):
    """Requests under way on the server's core; what comes of them in JSON is for `finished`."""
    options = {"port": port, "kind": kind, "keys": keys, "tasks": tasks, "times": times, "seconds": seconds}
    return subprocess.Popen(["taskset", "--cpu-list", str(cores()[0]), PROGRAM, "load", json.dumps(options)], cwd=ROOT,
                            stdout=subprocess.PIPE, text=True)


def finished(process):
    """What came of a load."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("the load generator failed")
    return json.loads(output)


def measure(rounds, seconds, cases=CASES, exact=EXACT):
    """All of it: `{(case, tasks): [result, …]}`, and `{service: [granted, …]}`."""
    seen = {each: [] for each in product(cases, TASKS)}
    with start_server() as server:
        with ExitStack() as stack:
            services = {name: stack.enter_context(service(name, server)) for name in dict(cases.values())}
            for number in range(rounds):
                print(f"daemon: round {number + 1} of {rounds}", flush=True)
                for (case, tasks), results in seen.items():
                    name, kind = cases[case]
                    results.append(once(server, *services[name], kind, tasks, seconds))
        return seen, {case: [exactness(server, *how, 2 * seconds) for _ in range(3)] for case, how in exact.items()}


def once(server, port, process, kind, tasks, seconds):
    """One round of one case, after all keys have been asked for often enough to be known."""
    finished(load(port, kind, max(TASKS), seconds / 4, times=3))
    time.sleep(SETTLED)
    before = cpu_of(process), cpu_nanoseconds(server)
    result = finished(load(port, kind, tasks, seconds))
    time.sleep(SETTLED)
    after = cpu_of(process), cpu_nanoseconds(server)
    granted = 0 if kind == "denied" else result["requests"]
    assert (result["errors"], result["granted"]) == (0, granted), f"{kind}: {result}"
    return result | dict(zip(("service", "redis"), [(now - then) / 1000 / result["requests"]
                                                    for now, then in zip(after, before)]))


def cpu_of(process):
    """What all threads of a process have run for, in ns, also those that have ended."""
    return time.clock_gettime_ns(~process.pid << 3 | 2)  # as clock_getcpuclockid(3) names its clock


def exactness(server, name, kind, seconds):
    """How much two services with 25 requests at a time each grant of one key, within a minute of the clock."""
    server.cli("FLUSHALL", "SYNC")
    while time.time() % WINDOW > WINDOW / 2:
        time.sleep(1)
    with service(name, server) as (one, _), service(name, server) as (other, _):
        loads = [load(port, kind, 25, seconds, keys=1) for port in (one, other)]
        return sum(finished(each)["granted"] for each in loads)


def total(one):
    """µs of the service and of Redis."""
    return one["service"] + one["redis"]


def ratios(seen, one, other, of=total):
    """How many times as much one case takes as another, by the number of requests at a time, in each round."""
    return {tasks: [of(a) / of(b) for a, b in zip(seen[one, tasks], seen[other, tasks])] for tasks in TASKS}


def table(seen, exact):
    """What came out, as Markdown tables."""
    return tables(seen, exact, {
        "a denial that is known ÷ the floor": ("≤ 1.2", ratios(seen, DENIAL, FLOOR)),
        "the server decides ÷ the floor, the service alone":
            ("≤ 2", ratios(seen, DECISION, FLOOR, lambda one: one["service"])),
        "`limitador`, granted ÷ the server decides": ("≥ 3", ratios(seen, GRANTED, DECISION)),
        "`limitador`, denied ÷ a denial that is known": ("", ratios(seen, DENIED, DENIAL)),
        "`limitador` with its cache, granted ÷ a unit of a lease": ("", ratios(seen, CACHED, LEASE)),
    })


def tables(seen, exact, compared):
    """All cases, what is compared (the wanted ratio, and those measured), and what several services granted."""
    rows = []
    for tasks in TASKS:
        rows += [f"| {tasks} at a time | requests a second | service, µs | Redis, µs | p50, µs | p99, µs |",
                 "|---|---:|---:|---:|---:|---:|"]
        for case in dict.fromkeys(case for case, _ in seen):
            several = seen[case, tasks]
            rate = median(one["requests"] / one["seconds"] for one in several)
            cells = [rounded(median(one[figure] for one in several)) for figure in ("service", "redis", "p50", "p99")]
            rows.append(f"| {case} | {rate:,.0f} | {' | '.join(cells)} |")
        rows.append("")
    at_a_time = " | ".join(f"{tasks} at a time" for tasks in TASKS)
    rows += [f"| CPU of service and Redis, as ratios | wanted | {at_a_time} |", "|---|---:|---:|---:|"]
    for what, (wanted, by_tasks) in compared.items():
        cells = ["{1:.2f} ({0:.2f}–{2:.2f})".format(*spread(by_tasks[tasks])) for tasks in TASKS]
        rows.append(f"| {what} | {wanted} | {' | '.join(cells)} |")
    rows += ["", f"| two services, 25 requests at a time each, {LIMIT:,} in {WINDOW} s | granted, three runs |",
             "|---|---:|"]
    return rows + [f"| {case} | {', '.join(f'{run:,}' for run in runs)} |" for case, runs in exact.items()]
