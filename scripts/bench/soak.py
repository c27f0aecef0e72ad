"""Run swlimitd at full speed while its configuration changes and its server restarts; print memory, errors and counts.

Fails if memory grows once it has warmed up, if anything is granted above a limit or not counted, or if more is counted
than was granted or left without an answer.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from statistics import mean

import redis

from support.daemon import Daemon
from support.server import ROOT, Server

from .daemon import PROGRAM

# Modes: limits, keys, and how many requests at a time.
KINDS = {"cached": (1, 1_000_000, 64), "leased": (100_000, 1_000, 8), "eventual": (100_000, 1_000, 8)}
TIMEOUT = 1.0  # s, of swlimitd
STEP, CHANGE, RESTART = 10.0, 1.0, 45.0  # s between looks at memory, between changes, between restarts
WARM = 0.5  # of the time; memory may grow until then: a million keys have to be seen
GROWTH = 0.05  # of what it is then
BATCH = 10_000  # commands a pipeline


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    seconds = parser.parse_args().minutes * 60
    with Server() as server, Daemon(limits(0), server, timeout=f"{TIMEOUT:g}s") as daemon:
        loads = {kind: load(daemon.port, kind, seconds) for kind in KINDS}
        over = threading.Event()
        disturbers = [threading.Thread(target=disturb, args=(one, over)) for one in (changes(daemon), restarts(server))]
        for one in disturbers:
            one.start()
        seen = list(watch(daemon, server, seconds))
        over.set()
        for one in disturbers:
            one.join()
        results = {kind: json.loads(process.communicate()[0]) for kind, process in loads.items()}
        configurations = daemon.metrics("swlimitd_configurations_total")
        ending = daemon.stop()
        print(f"configurations: {configurations}; ended within {ending:.1f} s", flush=True)
        wrong = [*grown(seen), *[one for kind, result in results.items() for one in differences(kind, result, server)]]
    for one in wrong:
        print(f"soak: {one}", file=sys.stderr)
    return 1 if wrong else 0


def limits(version):
    """The limits, and a rule that each version of them has for itself."""
    rules = [{"key": kind, "rate_limit": {"unit": "day", "requests_per_unit": limit, "mode": kind}}
             for kind, (limit, *_) in KINDS.items()]
    rules.append({"key": f"rule{version}", "rate_limit": {"unit": "second", "requests_per_unit": version}})
    return json.dumps({"domain": "bench", "descriptors": rules})


def load(port, kind, seconds):
    """Requests of one kind for so long; it prints what came of them."""
    _, keys, tasks = KINDS[kind]
    options = {"port": port, "kind": kind, "keys": keys, "tasks": tasks, "times": 0, "seconds": seconds}
    return subprocess.Popen([PROGRAM, "load", json.dumps(options)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def disturb(disturbances, over):
    """Do what each disturbance does, after the pause that it asks for, until all is over."""
    for pause in disturbances:
        if over.wait(pause):
            return


def changes(daemon):
    """Change the limits, now and then to what is refused, and send the signal for it as well."""
    for version in count(1):
        yield CHANGE
        daemon.write_limits(limits(version) if version % 10 else "domain: [")
        if version % 2:
            daemon.send_signal(signal.SIGHUP)


def restarts(server):
    """Restart the server, which keeps what it counted."""
    while True:
        yield RESTART
        with server.client() as client:
            client.shutdown(save=True)
        server.process.wait()
        server.start()


def watch(daemon, server, seconds):
    """The memory of the daemon in MiB, at each step."""
    print("| s | swlimitd, MiB | server, MiB | requests | errors |\n|---:|---:|---:|---:|---:|", flush=True)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        memory = resident(daemon.process.pid)
        requests = daemon.metrics("swlimitd_requests_total")
        errors = sum(number for labels, number in requests.items() if "error" in labels)
        print(f"| {passed:.0f} | {memory:.0f} | {used(server)} | {sum(requests.values()):,.0f} | {errors:,.0f} |",
              flush=True)
        yield memory
        time.sleep(STEP)


def resident(pid):
    """The memory of a process, in MiB."""
    return int(re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]) / 1024


def used(server):
    """The memory of the server, in MiB."""
    try:
        with server.client(socket_timeout=5) as client:
            return f"{client.info('memory')['used_memory'] / 2**20:.0f}"
    except redis.exceptions.RedisError:
        return "away"


def grown(seen):
    """Whether the last tenth of the steps needed more memory than the first one after it was warm."""
    few, warm = max(len(seen) // 10, 1), seen[int(len(seen) * WARM):]
    early, late = mean(warm[:few]), mean(warm[-few:])
    print(f"memory: {early:.0f} MiB once warm, {late:.0f} MiB at the end", flush=True)
    if late > early * (1 + GROWTH):
        yield "memory grows"


def differences(kind, result, server):
    """How what the callers were granted differs from what is counted."""
    limit, keys, _ = KINDS[kind]
    counted = 0
    with server.client() as client:
        for first in range(0, keys, BATCH):
            pipeline = client.pipeline(transaction=False)
            for key in range(first, min(first + BATCH, keys)):
                pipeline.execute_command("SWLIMIT.PEEK", f"{{bench}}|{kind}={key:07}|1d", limit, "1d", "2h")
            counted += sum(limit - reply[2] for reply in pipeline.execute())
    granted, errors, most = result["granted"], result["errors"], result["most"]
    print(f"{kind}: {result['requests']:,} requests, {errors:,} without an answer, {granted:,} granted, {counted:,} "
          f"counted; at most {most:,} of {limit:,}; the slowest took {result['longest'] / 1000:,.0f} ms", flush=True)
    if most > limit:
        yield f"{kind}: {most} granted of {limit}"
    if not granted <= counted <= granted + errors:
        yield f"{kind}: {granted} granted, {counted} counted"


sys.exit(main())
