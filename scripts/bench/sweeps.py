"""How long a HOLD takes that sweeps many holds that have ended, as its client waits."""

import time
from statistics import median

from support.resp import Connection
from support.server import Server

ENDED = (100_000, 300_000)
PLAIN = 200
BEGAN, TTL = 1_700_000_000_000, 3_600_000  # ms


def measure(rounds):
    """Seconds of a plain HOLD and of one that sweeps, by the number of holds that have ended."""
    with Server(module_args=["max-holds", 1_000_000]) as server, Connection(server.port, timeout=300) as client:
        return {ended: [once(client, ended) for _ in range(rounds)] for ended in ENDED}


def once(client, ended):
    client.call("FLUSHALL")
    fill = (("SWLIMIT.HOLD", "k", 10**9, "1h", f"id:{number}", "AT", BEGAN + number % 1000) for number in range(ended))
    for _ in client.stream(fill, 2000):
        pass
    plain = [timed(client, "SWLIMIT.HOLD", "plain", 10**9, "1h", f"id:{number}") for number in range(PLAIN)]
    return median(plain), timed(client, "SWLIMIT.HOLD", "k", 10**9, "1h", "new", "AT", BEGAN + 2 * TTL)


def timed(client, *words):
    began = time.perf_counter()
    client.call(*words)
    return time.perf_counter() - began


def table(seen):
    """As a Markdown table."""
    rows = ["| ended holds | ms | ÷ a plain `HOLD` |", "|---:|---:|---:|"]
    for ended, pairs in seen.items():
        swept = median(sweep for _, sweep in pairs) * 1000
        rows.append(f"| {ended:,} | {swept:.1f} | {median(sweep / plain for plain, sweep in pairs):.0f} |")
    return rows
