"""What a decision costs the client in Python, beside redis-py's own command: `python -m bench.python`, in scripts/.

CPU of the process, in rounds that alternate, so that a busy machine disturbs both alike; medians of the ratios.
"""

import asyncio
import statistics
import sys
import time
from pathlib import Path

import redis
import redis.asyncio

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src/clients/python"))
sys.path.insert(0, str(ROOT / "tests"))

import swlimit  # noqa: E402
from support.server import Binaries, Server  # noqa: E402

WORDS = "SWLIMIT.ALLOW", b"k", 1_000_000_000, "60000ms", "5000ms"
REQUESTS, ROUNDS = 3000, 9


def cpu(work):
    began = time.process_time()
    work()
    return (time.process_time() - began) / REQUESTS


async def cpu_of_tasks(ask, concurrent):
    async def one():
        for _ in range(REQUESTS // concurrent):
            await ask()
    began = time.process_time()
    await asyncio.gather(*(one() for _ in range(concurrent)))
    return (time.process_time() - began) / REQUESTS


def told(name, pairs):
    ours, theirs = (statistics.median(side) * 1e6 for side in zip(*pairs))
    ratio = statistics.median(our / their for our, their in pairs)
    print(f"| {name} | {ours:.1f} µs | {theirs:.1f} µs | {ratio:.2f} |")


async def tasks(port):
    client = redis.asyncio.Redis(port=port)
    async with swlimit.AsyncLimiter(client, 10**9, "1m", "5s", mode="direct", timeout=5.0) as limiter:
        for concurrent in (1, 10, 60):
            pairs = [(await cpu_of_tasks(lambda: limiter.allow(b"k"), concurrent),
                      await cpu_of_tasks(lambda: client.execute_command(*WORDS), concurrent)) for _ in range(ROUNDS)]
            told(f"asyncio, direct, {concurrent} at a time", pairs[1:])
    await client.aclose()


def threads(port):
    client = redis.Redis(port=port)

    def ours():
        for _ in range(REQUESTS):
            limiter.allow(b"k")

    def theirs():
        for _ in range(REQUESTS):
            client.execute_command(*WORDS)

    with swlimit.Limiter(client, 10**9, "1m", "5s", mode="direct", timeout=5.0) as limiter:
        told("threads, direct", [(cpu(ours), cpu(theirs)) for _ in range(ROUNDS)][1:])
    with swlimit.Limiter(client, 1, "1h", timeout=5.0) as limiter:
        while limiter.allow(b"d").source != "cache":
            time.sleep(0.01)

        def denied():
            for _ in range(REQUESTS):
                limiter.allow(b"d")
        told("threads, a known denial", [(cpu(denied), cpu(theirs)) for _ in range(ROUNDS)][1:])
        assert limiter.statistics.cache > REQUESTS * ROUNDS
    limiter = swlimit.Limiter(None, 10**9, "1m", "5s")
    told("mode local", [(cpu(ours), cpu(theirs)) for _ in range(ROUNDS)][1:])


def main():
    print(f"redis-py {redis.__version__}, Python {sys.version.split()[0]}\n")
    print("| a decision | swlimit | redis-py's command | ratio |\n|---|---:|---:|---:|")
    with Server(Binaries.installed()) as server:
        asyncio.run(tasks(server.port))
        threads(server.port)


if __name__ == "__main__":
    main()
