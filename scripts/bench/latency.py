"""Latency as a client sees it, one command at a time, with 1 and with 50 connections.

One connection is this process's own, because redis-benchmark knows times in steps of 8 µs only; 50 are those of
redis-benchmark, because this process would be slower than the server. With 50 connections in a closed loop the server
is never idle, and latency is the time that 49 other commands take. Each contender has one key here, as redis-benchmark
sends one command over and over again.
"""

import gc
import re
import shutil
import subprocess
import time
from bisect import bisect_left
from statistics import median

from support.resp import encode

from .load import Load, start_server

REQUESTS = {1: 20_000, 50: 100_000}  # connections -> commands a round
PERCENTILES = (50, 99, 99.9)
MEASURED = ("floor", "incr", "granted-60", "denied-60")  # and what the peers grant
LINE = re.compile(r"^([\d.]+)% <= ([\d.]+) milliseconds", re.MULTILINE)


def available():
    """Whether redis-benchmark is here."""
    return bool(shutil.which("redis-benchmark"))


def measure(contenders_of, rounds, share=1.0):
    """Microseconds by contender, connections and percentile: `{(key, connections): [[p50, p99, p99.9], …]}`."""
    with start_server() as server, server.client() as client, Load(server) as load:
        contenders = [one for one in contenders_of(server)
                      if one.key in MEASURED or one.key.endswith("-granted")]
        for contender in contenders:
            for commands in (*contender.set_up, *contender.prepare):
                load.run_all(commands)
            contender.check(client)
        seen = {(contender.key, connections): [] for contender in contenders for connections in REQUESTS}
        for number in range(rounds):
            print(f"latency: round {number + 1} of {rounds}", flush=True)
            for contender in contenders:
                words = contender.commands[0]
                seen[contender.key, 1].append(alone(load, words, int(REQUESTS[1] * share)))
                seen[contender.key, 50].append(crowded(server, words, int(REQUESTS[50] * share)))
        for contender in contenders:
            contender.check(client)
    return seen, contenders


def alone(load, words, requests):
    """The percentiles of one connection, this process's own time for sending and receiving (some µs) included."""
    lines, command, connection = load.lines(words), encode(*words), load.sockets[0]
    clock, took = time.perf_counter_ns, []
    gc.disable()
    for _ in range(requests):
        start, left = clock(), lines
        connection.sendall(command)
        while left > 0:
            left -= connection.recv(4096).count(b"\n")
        took.append(clock() - start)
    gc.enable()
    took.sort()
    return [took[min(int(requests * percentile / 100), requests - 1)] / 1000 for percentile in PERCENTILES]


def crowded(server, words, requests):
    """The percentiles of 50 connections of redis-benchmark."""
    command = ["redis-benchmark", "-p", server.port, "-c", 50, "-n", requests, "--precision", 3, *words]
    done = subprocess.run([word if isinstance(word, bytes) else str(word) for word in command],
                          check=True, capture_output=True, text=True, timeout=300)
    return percentiles(done.stdout)


def percentiles(output):
    """What redis-benchmark's distribution says of the percentiles; it steps finely enough, 99.902 % for 99.9 %."""
    steps = [(float(percent), float(ms) * 1000) for percent, ms in LINE.findall(output.split("Cumulative")[0])]
    shares = [percent for percent, _ in steps]
    return [steps[min(bisect_left(shares, percentile), len(steps) - 1)][1] for percentile in PERCENTILES]


def middle(runs):
    """The medians of each percentile over the rounds."""
    return [median(values) for values in zip(*runs)]


def table(seen, contenders):
    """What came out, as a Markdown table: medians over the rounds, and the range of the 99.9th percentile."""
    rows = ["| command | connections | p50 | p99 | p99.9 | p99.9, least and most |", "|---|---:|---:|---:|---:|---:|"]
    for connections in REQUESTS:
        for contender in contenders:
            runs = seen[contender.key, connections]
            last = [run[-1] for run in runs]
            numbers = " | ".join(f"{value:.{0 if value > 99 else 1}f} µs" for value in middle(runs))
            rows.append(f"| {contender.label} | {connections} | {numbers} | {min(last):.0f}–{max(last):.0f} µs |")
    return rows
