"""What a request to swlimitd costs, beside limitador as a service and a service that decides nothing.

Services have one core, Redis and the load generator the other. All take turns, round after round; ratios are taken
within a round. CPU is that of all threads of a service, and of the main thread of Redis, per request.
"""

import json
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from itertools import product
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
SERVICES = ("floor", "swlimitd", "redis", "redis_cached")  # the last two are limitador's, by its storage
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
    port, quotas = free_port(), json.dumps({kind: quota for kind, (*quota, _) in KINDS.items()})
    words = ["floor", port] if name == "floor" else ["limitador", port, name, url, quotas]
    with subprocess.Popen([PROGRAM, *map(str, words)], cwd=ROOT) as process:
        try:
            wait_for(port)
            yield port, process
        finally:
            process.kill()


def limits():
    """The limits of all kinds of keys, for swlimitd."""
    units = {HOUR: "hour", WINDOW: "minute"}
    return json.dumps({"domain": "bench", "descriptors": [  # JSON is YAML
        {"key": kind, "rate_limit": {"unit": units[window], "requests_per_unit": limit, "mode": mode}}
        for kind, (limit, window, mode) in KINDS.items()]})


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


def measure(rounds, seconds):
    """All of it: `{(case, tasks): [result, …]}`, and `{service: [granted, …]}`."""
    seen = {each: [] for each in product(CASES, TASKS)}
    with start_server() as server:
        with ExitStack() as stack:
            services = {name: stack.enter_context(service(name, server)) for name in SERVICES}
            for number in range(rounds):
                print(f"daemon: round {number + 1} of {rounds}", flush=True)
                for (case, tasks), results in seen.items():
                    name, kind = CASES[case]
                    results.append(once(server, *services[name], kind, tasks, seconds))
        return seen, {case: [exactness(server, *how, 2 * seconds) for _ in range(3)] for case, how in EXACT.items()}


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
    """How much two services with 25 requests at a time each grant of one key."""
    server.cli("FLUSHALL", "SYNC")
    with service(name, server) as (one, _), service(name, server) as (other, _):
        loads = [load(port, kind, 25, seconds, keys=1) for port in (one, other)]
        return sum(finished(each)["granted"] for each in loads)


def total(one):
    """µs of the service and of Redis."""
    return one["service"] + one["redis"]


def quotients(seen):
    """What is compared: the wanted ratio, and by the number of requests at a time those measured in each round."""
    def ratios(mine, theirs, of=total):
        return {tasks: [of(a) / of(b) for a, b in zip(seen[mine, tasks], seen[theirs, tasks])] for tasks in TASKS}
    return {
        "a denial that is known ÷ the floor": ("≤ 1.2", ratios(DENIAL, FLOOR)),
        "the server decides ÷ the floor, the service alone":
            ("≤ 2", ratios(DECISION, FLOOR, lambda one: one["service"])),
        "`limitador`, granted ÷ the server decides": ("≥ 3", ratios(GRANTED, DECISION)),
        "`limitador`, denied ÷ a denial that is known": ("", ratios(DENIED, DENIAL)),
        "`limitador` with its cache, granted ÷ a unit of a lease": ("", ratios(CACHED, LEASE)),
    }


def table(seen, exact):
    """What came out, as Markdown tables."""
    rows = []
    for tasks in TASKS:
        rows += [f"| {tasks} at a time | requests a second | service, µs | Redis, µs | p50, µs | p99, µs |",
                 "|---|---:|---:|---:|---:|---:|"]
        for case in CASES:
            several = seen[case, tasks]
            rate = median(one["requests"] / one["seconds"] for one in several)
            cells = [rounded(median(one[figure] for one in several)) for figure in ("service", "redis", "p50", "p99")]
            rows.append(f"| {case} | {rate:,.0f} | {' | '.join(cells)} |")
        rows.append("")
    at_a_time = " | ".join(f"{tasks} at a time" for tasks in TASKS)
    rows += [f"| CPU of service and Redis, as ratios | wanted | {at_a_time} |", "|---|---:|---:|---:|"]
    for what, (wanted, ratios) in quotients(seen).items():
        cells = ["{1:.2f} ({0:.2f}–{2:.2f})".format(*spread(ratios[tasks])) for tasks in TASKS]
        rows.append(f"| {what} | {wanted} | {' | '.join(cells)} |")
    rows += ["", f"| two services, 25 requests at a time each, {LIMIT:,} in {WINDOW} s | granted, three runs |",
             "|---|---:|"]
    return rows + [f"| {case} | {', '.join(f'{run:,}' for run in runs)} |" for case, runs in exact.items()]
