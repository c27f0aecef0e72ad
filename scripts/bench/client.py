"""What deciding through the Rust client costs, and how much more than the limit its clients grant who do not ask first.

The client runs on one core and the server on another, but where two threads of one client are measured: the server has
hardly anything to do then. What is compared takes turns, round after round, and ratios are taken within a round.
"""

import asyncio
import json
import os
import subprocess
from contextlib import contextmanager
from queue import SimpleQueue
from statistics import median
from threading import Thread

from crossregion.link import Link
from support.server import ROOT

from .cpu import rounded, spread
from .load import cores, start_server

PROGRAM = "target/bench/program/client-bench"  # from the top, where all of this runs
NEAR = {"cached": "a denial that is known", "leased": "a unit of a lease", "eventual": "synchronized later",
        "local granted": "only local, granted", "governor granted": "`governor`, granted",
        "local denied": "only local, denied", "governor denied": "`governor`, denied"}
MANY_CASES = ("local granted", 1_000_000), ("local granted", 100_000), ("governor granted", 1_000_000)
MODES = {"redis": "the crate `redis` alone", "direct": "direct", "cached": "cached", "leased": "leased",
         "eventual": "eventual"}
PLENTY = {"limit": 2**40, "window": "1d", "resolution": "1d", "strict": False}
SCARCE = {"limit": 1_000, "window": "10s", "resolution": "1s"}
HOT = {"limit": 100_000, "window": "1m", "resolution": "1s", "strict": False}
BUSY, KEYS, MANY_KEYS = 50, 1_000, 1_000_000
MEMORABLE = 100_000  # keys that the client remembers unless set
LIMIT, WINDOW, RESOLUTION, RATE = 1_000, 2_000, 200, 2_500  # of overshoot, in ms; units asked for in a second
LENGTH = RESOLUTION  # of a lease
CLIENTS, INTERVALS = (2, 4, 8, 16, 32, 64), (10, 30, 100, 300, 1_000)
MANY, USUAL = 16, 100
TRIP = 1  # ms, there and back, to a server in the same data center
ASKING = {"tasks": 50, "every": 5}  # of an outage: each task asks again after so many ms


class Client:
    """The program that measures, beside a server of its own."""

    def __init__(self, server):
        self.server = server

    def url(self, port=None):
        """Of the server, or of what leads there."""
        return f"redis://127.0.0.1:{port or self.server.port}/"

    def run(self, what, cores_used=None, **options):
        """What it measures, of a server without keys."""
        self.server.cli("FLUSHALL", "SYNC")
        options = {"url": self.url()} | options
        pinned = ["taskset", "--cpu-list", ",".join(map(str, cores_used))] if cores_used else []
        done = subprocess.run([*pinned, PROGRAM, what, json.dumps(options)], cwd=ROOT, check=True, text=True,
                              stdout=subprocess.PIPE)
        return json.loads(done.stdout)


def measure(rounds, seconds):
    """All of it, by what is measured."""
    with start_server() as server:
        client = Client(server)
        return {"near": near(client, rounds, seconds / 4), "many": many(client, max(3, rounds // 5), seconds / 2),
                "plenty": plenty(client, rounds, seconds), "scarce": scarce(client, 20 * seconds),
                "hot": hot(client, 10 * seconds), "overshoot": overshoot(client, 3 if seconds >= 1 else 1),
                "outage": outage(client, max(3, rounds // 5), 2)}


def near(client, rounds, seconds):
    """Decisions that need no answer, by case, keys and threads: `{case: {(keys, threads): [result, …]}}`."""
    found = {case: {} for case in NEAR}
    for number in range(rounds):
        print(f"client: near the request, round {number + 1} of {rounds}", flush=True)
        for case in NEAR:
            for keys in (1, KEYS):
                for threads in (1, 2):
                    one = client.run("near", cores()[:threads], case=case, keys=keys, max_keys=MEMORABLE,
                                     threads=threads, seconds=seconds)
                    found[case].setdefault((keys, threads), []).append(one)
    return found


def many(client, rounds, seconds):
    """As many keys as fit in no cache, by case and how many keys are remembered: `{(case, max_keys): [result, …]}`."""
    found = {}
    for number in range(rounds):
        print(f"client: {MANY_KEYS:,} keys, round {number + 1} of {rounds}", flush=True)
        for case, max_keys in MANY_CASES:
            one = client.run("near", cores()[:1], case=case, keys=MANY_KEYS, max_keys=max_keys, threads=1,
                             seconds=seconds)
            found.setdefault((case, max_keys), []).append(one)
    return found


def plenty(client, rounds, seconds):
    """Requests that are all granted, by mode and tasks: `{(mode, tasks): [result, …]}`."""
    found = {}
    for number in range(rounds):
        print(f"client: requests, round {number + 1} of {rounds}", flush=True)
        for mode in MODES:
            for tasks in (1, BUSY):
                one = client.run("requests", mode=mode, tasks=tasks, keys=KEYS, seconds=seconds, **PLENTY)
                found.setdefault((mode, tasks), []).append(one)
    return found


def scarce(client, seconds):
    """Ten times the limit, by mode and whether it is strict: `{(mode, strict): result}`."""
    rate = 10 * SCARCE["limit"] / 10
    found = {}
    for mode in list(MODES)[1:]:
        for strict in (False, True):
            print(f"client: ten times the limit, {mode}{', strict' * strict}", flush=True)
            found[mode, strict] = client.run("requests", mode=mode, strict=strict, tasks=100, keys=1, rate=rate,
                                            seconds=seconds, **SCARCE)
    return found


def hot(client, seconds):
    """One key with a large limit, at nine tenths of it, here and a short way off: `{(mode, is_far): result}`."""
    rate, found = 0.9 * HOT["limit"] / 60, {}
    with a_short_way_off(client.server.port) as port:
        for mode in list(MODES)[1:]:
            print(f"client: one key with a large limit, {mode}", flush=True)
            for url in client.url(), client.url(port):
                found[mode, url != client.url()] = client.run("requests", url=url, mode=mode, tasks=100, keys=1,
                                                              rate=rate, seconds=seconds, **HOT)
    return found


@contextmanager
def a_short_way_off(port):
    """The port of a link to a port, with a round trip of `TRIP`. It runs on the server's core."""
    ports, ended = SimpleQueue(), asyncio.Event()

    async def pass_on():
        async with Link(port, TRIP / 2000) as link:
            ports.put((link.port, asyncio.get_running_loop()))
            await ended.wait()

    def run():
        os.sched_setaffinity(0, {cores()[0]})
        asyncio.run(pass_on())

    thread = Thread(target=run)
    thread.start()
    there, loop = ports.get()
    try:
        yield there
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def overshoot(client, windows):
    """The most that is granted in a span: `{(clients, interval, share): (units, bound)}`; no interval is leased."""
    kinds = (USUAL, 0), (USUAL, 0.1), (None, 0.1)
    cases = [(clients, interval, share) for clients in CLIENTS for interval, share in kinds]
    cases += [(MANY, interval, 0) for interval in INTERVALS if interval != USUAL]
    found = {}
    for clients, interval, share in cases:
        print(f"client: overshoot, {clients} clients, {f'every {interval} ms' if interval else 'leased'}", flush=True)
        one = client.run("overshoot", clients=clients, interval=interval, share=share, limit=LIMIT, window=WINDOW,
                         resolution=RESOLUTION, rate=RATE, seconds=windows * WINDOW / 1000,
                         span=WINDOW - RESOLUTION - (0 if interval else LENGTH))
        highest = bound(clients, interval, share, one["late"], one["round_trip"]) if interval else LIMIT
        found[clients, interval, share] = one["most"] / LIMIT, highest / LIMIT
    return found


def outage(client, rounds, seconds):
    """The server is stopped for a while and goes on: `{mode: [result, …]}`."""
    found = {}
    for number in range(rounds):
        print(f"client: the server is stopped, round {number + 1} of {rounds}", flush=True)
        for mode in list(MODES)[1:]:
            one = client.run("outage", mode=mode, pid=client.server.process.pid, seconds=seconds, **ASKING)
            found.setdefault(mode, []).append(one)
    return found


def bound(clients, interval, share, late, round_trip):
    """The most units that are granted in a span of W − R: with what others ask for unseen, and what all may unheard.

    One way to the server may be as much longer than another as a round trip.
    """
    unseen = 2 * max(interval + late, round_trip) + 2 * round_trip
    return LIMIT + RATE * (clients - 1) / clients * unseen / 1000 + clients * share * LIMIT


def table(found):
    """What came out, as Markdown tables."""
    parts = [
        ("A decision near the request, in ns; with two cores, what it takes on each while both decide",
         near_table(found["near"])),
        (f"The same of {MANY_KEYS:,} keys, one after the other, on one core", many_table(found["many"])),
        (f"Requests that are all granted, {BUSY} at a time, {KEYS:,} keys", plenty_table(found["plenty"])),
        ("Direct beside the crate `redis`, as ratios", ratio_table(found["plenty"])),
        (f"Ten times the limit, which is {written(SCARCE)}; 100 tasks, one key", scarce_table(found["scarce"])),
        (f"One key with {written(HOT)}, at nine tenths of that, on one machine, and over a link with a round trip of "
         f"{TRIP} ms", hot_table(found["hot"])),
        (f"Most granted in any span of W − R, as a share of the limit, synchronized every {USUAL} ms; leased, in "
         "any span of W − R − T", overshoot_table(found["overshoot"])),
        (f"The same of {MANY} clients, by the interval", interval_table(found["overshoot"])),
        (f"Redis is stopped for two seconds (`SIGSTOP`); {ASKING['tasks']} tasks, each asks again after "
         f"{ASKING['every']} ms", outage_table(found["outage"])),
    ]
    return [line for caption, rows in parts for line in (f"**{caption}.**", "", *rows, "")][:-1]


def written(quota):
    """A quota in words."""
    return "{limit:,} per {window} with a resolution of {resolution}".format(**quota)


def near_table(found):
    rows = [f"| | one key, one core | two cores | {KEYS:,} keys, one core | two cores | allocations |",
            "|---|---:|---:|---:|---:|---:|"]
    for case, label in NEAR.items():
        several = [found[case][keys, threads] for keys in (1, KEYS) for threads in (1, 2)]
        cells = [f"{median(one['ns'] for one in each):.0f}" for each in several]
        allocations = max(one["allocations"] for each in several for one in each)
        rows.append(f"| {label} | {' | '.join(cells)} | {allocations:.2g} |")
    return rows


def many_table(found):
    rows = ["| | keys that are remembered | ns | allocations |", "|---|---:|---:|---:|"]
    for (case, max_keys), several in found.items():
        ns, allocations = (median(one[name] for one in several) for name in ("ns", "allocations"))
        remembered = f"{max_keys:,}" if case.startswith("local") else "all"
        rows.append(f"| {NEAR[case]} | {remembered} | {ns:.0f} | {allocations:.2g} |")
    return rows


def plenty_table(found):
    rows = ["| | requests a second and core | client CPU, µs | server commands a request | p50, µs | p99, µs |",
            "|---|---:|---:|---:|---:|---:|"]
    for mode, label in MODES.items():
        several = found[mode, BUSY]
        cpu = median(cpu_of(one) for one in several)
        commands = median(one["commands"] / one["requests"] for one in several)
        late = [rounded(median(one[name] for one in several)) for name in ("p50", "p99")]
        rows.append(f"| {label} | {1e6 / cpu:,.0f} | {cpu:.2f} | {commands:.2g} | {' | '.join(late)} |")
    return rows


def cpu_of(one):
    """µs of the client's CPU per request."""
    return 1e6 * one["cpu"] / one["requests"]


def ratio_table(found):
    rows = ["| | client CPU | p50 | p99 |", "|---|---:|---:|---:|"]
    for tasks in (1, BUSY):
        cells = []
        for figure in (cpu_of, lambda one: one["p50"], lambda one: one["p99"]):
            ratios = [figure(mine) / figure(its) for mine, its in zip(found["direct", tasks], found["redis", tasks])]
            low, middle, high = spread(ratios)
            cells.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
        rows.append(f"| {tasks} at a time | {' | '.join(cells)} |")
    return rows


def scarce_table(found):
    rows = ["| | server commands a grant | a request | p50, µs | p99, µs |", "|---|---:|---:|---:|---:|"]
    for (mode, strict), one in found.items():
        each = [rounded(one["commands"] / one[of]) for of in ("granted", "requests")]
        late = [rounded(one[name]) for name in ("p50", "p99")]
        rows.append(f"| {MODES[mode]}{', `STRICT`' * strict} | {' | '.join(each + late)} |")
    return rows


def hot_table(found):
    rows = ["| | requests a server command | granted | p50, µs | p99, µs |", "|---|---:|---:|---:|---:|"]
    for (mode, is_far), one in found.items():
        late = [rounded(one[name]) for name in ("p50", "p99")]
        each = rounded(one["requests"] / one["commands"]), f"{100 * one['granted'] / one['requests']:.1f} %"
        rows.append(f"| {MODES[mode]}{', over the link' * is_far} | {' | '.join([*each, *late])} |")
    return rows


def overshoot_table(found):
    rows = ["| clients | eventual, share 0 | bound | eventual, share 10 % | bound | leased (bound 1) |",
            "|---:|---:|---:|---:|---:|---:|"]
    for clients in CLIENTS:
        cells = [*found[clients, USUAL, 0], *found[clients, USUAL, 0.1], found[clients, None, 0.1][0]]
        rows.append(f"| {clients} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    return rows


def interval_table(found):
    rows = ["| interval, ms | eventual, share 0 | bound |", "|---:|---:|---:|"]
    for interval in INTERVALS:
        rows.append(f"| {interval:,} | {' | '.join(f'{cell:.2f}' for cell in found[MANY, interval, 0])} |")
    return rows


def outage_table(found):
    """A request is late that was decided more than 5 ms after its timeout of 50 ms."""
    rows = ["| | decided without it after, ms | requests that waited | late | longest, ms | asked again after, ms |",
            "|---|---:|---:|---:|---:|---:|"]
    for mode, several in found.items():
        cells = [rounded(median(one[name] for one in several)) for name in ("open", "waited", "late", "longest")]
        rows.append(f"| {MODES[mode]} | {' | '.join(cells)} | {rounded(median(one['back'] for one in several))} |")
    return rows
