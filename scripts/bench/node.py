"""What changes for an Express application that takes another store: each library on a real server, through node-redis.

CPU is the server's main thread's, divided by the requests that the library was asked to decide. The log is played on a
server whose clock is that of the log, request by request, beside an exact log of timestamps. Decisions that need no
server cost only the process.
"""

import json
import subprocess
import tempfile
from collections import defaultdict

import replay
from accuracy.exact_log import ExactLog
from support import node
from support.clock import set_clock, skewing
from support.server import Binaries, Server

from . import stores
from .cpu import spread
from .load import start_server
from .memory import settled as settled_memory
from .stores import HOUR, driven

PROGRAM = node.ROOT / "scripts/bench/stores.mjs"
IN_PROCESS = node.ROOT / "scripts/bench/in_process.mjs"
LABELS = {"swlimit": "`SwlimitStore`", "swlimit-direct": '`SwlimitStore`, `mode: "direct"`'}
STORES = (*LABELS, "rate-limit-redis", "rate-limiter-flexible")
MEMORY_KEYS = {1: 100_000, 20: 20_000}  # requests a key -> keys
LOG_LIMIT, LOG_WINDOW = 20, HOUR


def label(name):
    """How a store is called in tables."""
    return LABELS.get(name) or f"`{name}` {node.version(name)}"


def command(*words):
    """How the program of a store is started."""
    return node.command(PROGRAM, *words)


def measure(rounds, log):
    """CPU and commands by load and store, CPU without a server, memory by store, and the log if there is one."""
    node.build()
    return stores.cpu(STORES, command, rounds), in_process(rounds), memory(), exactness(log) if log else None


def in_process(rounds):
    """Nanoseconds of the process per decision without a server: `{limiter: {keys: [ns, …]}}`."""
    print("node: without a server", flush=True)
    return json.loads(subprocess.check_output(**node.command(IN_PROCESS, rounds)))


def memory():
    """Bytes per key: `{requests a key: {store: bytes}}`."""
    used = {requests: {} for requests in MEMORY_KEYS}
    for requests, keys in MEMORY_KEYS.items():
        for name in STORES:
            if name == "swlimit-direct":
                continue  # keeps what the other one keeps
            print(f"node: memory of {name}, {requests} requests a key", flush=True)
            with (start_server() as server, server.client() as client,
                  driven(command(name, server.port, 1_000_000, HOUR)) as ask):
                ask("1 1")
                client.flushall()
                before = settled_memory(client)
                ask(f"{keys} {requests}")
                used[requests][name] = (settled_memory(client) - before) / keys
    return used


def exactness(path):
    """How many requests of a log each store decided otherwise than an exact log, and the most it let through in a
    window: `{store: (too many, too few, most)}`, and the number of requests."""
    requests = replay.read(path, key="address").requests
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        skewed = skewing(folder)
        for name in STORES:
            if name == "swlimit":
                continue  # what it knows by itself it knows by the clock of the process
            print(f"node: the log with {name}", flush=True)
            with Server(Binaries.installed(), env=skewed(0)) as server:
                set_clock(server, requests[0].at / 1000)
                with driven(command(name, server.port, LOG_LIMIT, LOG_WINDOW)) as ask:
                    found[name] = played(server, ask, requests)
    return found, len(requests)


def played(server, ask, requests):
    """Play a log, and an exact log beside it."""
    exact, granted = (defaultdict(lambda: ExactLog(LOG_WINDOW)) for _ in range(2))
    too_many = too_few = most = 0
    now = None
    for request in requests:
        if request.at != now:
            now = request.at
            set_clock(server, now / 1000)
        expected = exact[request.key].allows(now, 1, LOG_LIMIT)
        if expected:
            exact[request.key].add(now, 1)
        decided = ask(request.key) == 1
        too_many += decided and not expected
        too_few += expected and not decided
        if decided:
            most = max(most, granted[request.key].add(now, 1))
    return too_many, too_few, most


def table(cpu, in_process, memory, log):
    """What came out, as Markdown tables."""
    rows = stores.table("store", cpu, label)
    rows += ["", "| a decision without a server, CPU of the process | 1 key | 1,000 keys |", "|---|---:|---:|"]
    rows += [f"| {name} | {' | '.join('{1:.0f} ns ({0:.0f}–{2:.0f})'.format(*spread(ns)) for ns in by_keys.values())} |"
             for name, by_keys in in_process.items()]
    counted = [f"{requests} request{'s' * (requests > 1)} a key" for requests in memory]
    rows += ["", f"| bytes per key | {' | '.join(counted)} |", f"|---|{'---:|' * len(counted)}"]
    rows += [f"| {label(name)} | {' | '.join(f'{used[name]:,.0f}' for used in memory.values())} |"
             for name in STORES if name in memory[1]]
    if not log:
        return [*rows, "", "No log was given (`--log FILE`), so decisions were not compared with an exact log."]
    found, total = log
    rows += ["", f"| {total:,} requests of an access log, {LOG_LIMIT} an hour | granted, too many | denied, too many | "
             "most in any hour |", "|---|---:|---:|---:|"]
    return rows + [f"| {label(name)} | {many:,} | {few:,} | {most} |" for name, (many, few, most) in found.items()]
