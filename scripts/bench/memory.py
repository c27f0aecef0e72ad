"""Memory per key: how much `used_memory` grows by, names, hash tables and expiry included, divided by the keys.

The number of keys matters, because the server's hash tables double: 100 000 keys fill tables of 131 072 places. All
names have 16 bytes, but the libraries add prefixes and suffixes of their own to them.
"""

import time
from dataclasses import dataclass

from . import peers
from .contenders import LIMIT, MINUTE, WINDOW, names
from .load import Load, start_server

KEYS = 100_000
FEWER = {60: 10_000, 4096: 200}  # number of counts -> keys, where names and tables hardly matter any more
SCORE = 1_700_000_000_000


@dataclass
class Layout:
    """Something that is kept for each of so many keys, by commands that come in lists whose replies have one shape."""

    key: str
    label: str
    keys: int
    fill: callable  # (server, keys) -> lists of commands


def layouts():
    """All that is compared."""
    return [
        Layout("incr", "`INCR`, `EXPIRE`", KEYS, expiring_counters),
        Layout("two-counters", "two counters with `EXPIRE`: the second window on", KEYS,
               lambda server, keys: [*expiring_counters(server, keys), *expiring_counters(server, keys, "j")]),
        *(window(f"one-{subintervals}", subintervals, 1) for subintervals in (1, 60, 4096)),
        *(window(f"counts-{subintervals}", subintervals, subintervals) for subintervals in (20, 60, 4096)),
        *(log(requests) for requests in (1, 20, 60, 4096)),
        *(library(peer) for peer in peers.installed()),
    ]


def expiring_counters(_server, keys, prefix="i"):
    """`INCR` and `EXPIRE`."""
    every = names(prefix, keys)
    return [[("INCR", name) for name in every], [("EXPIRE", name, WINDOW) for name in every]]


def window(key, subintervals, held):
    """A window of so many subintervals of a minute, the youngest ones holding a count of one unit each."""
    def fill(server, keys):
        with server.client() as client:
            now = client.time()[0] * 1000
        every = names("w", keys)
        return [[("SWLIMIT.ALLOW", name, LIMIT, f"{subintervals}m", "1m", "AT", now - MINUTE * age) for name in every]
                for age in range(held - 1, -1, -1)]
    return Layout(key, f"`ALLOW`, {held} count{'s' * (held > 1)}, N = {subintervals}", FEWER.get(held, KEYS), fill)


def log(requests):
    """So many requests in a sorted set: the instant as score, instant and a serial number as member."""
    def fill(_server, keys):
        every = names("z", keys)
        added = [[("ZADD", name, instant, f"{instant}-{number % 100}") for number, name in enumerate(every)]
                 for instant in range(SCORE, SCORE + requests)]
        return [*added, [("EXPIRE", name, WINDOW) for name in every]]
    return Layout(f"log-{requests}", f"sorted-set log, {requests} request{'s' * (requests > 1)}",
                  FEWER.get(requests, KEYS), fill)


def library(peer):
    """What a library keeps after one request."""
    def fill(server, keys):
        return [peer.commands(server, names("p", keys), LIMIT, WINDOW, 1)]
    return Layout(peer.name, f"{peers.label(peer)} after one request, under the names it makes", KEYS, fill)


def measure():
    """Bytes per key of each layout: `{key: bytes}`, and the layouts."""
    everything = layouts()
    used = {}
    with start_server() as server, server.client() as client:
        for layout in everything:
            print(f"memory: {layout.label}", flush=True)
            fill = layout.fill(server, layout.keys)
            client.flushall()
            before = settled(client)
            with Load(server) as load:
                for commands in fill:
                    load.run_all(commands)
            used[layout.key] = (settled(client) - before) / layout.keys
    return used, everything


def settled(client):
    """`used_memory`, once the server has let go of former clients' buffers and former hash tables."""
    used = client.info("memory")["used_memory"]
    while True:
        time.sleep(0.3)
        last, used = used, client.info("memory")["used_memory"]
        if used >= last:
            return used


def table(used, everything):
    """What came out, as a Markdown table."""
    rows = ["| what is kept | bytes per key | ÷ `INCR`, `EXPIRE` |", "|---|---:|---:|"]
    return rows + [f"| {layout.label} | {used[layout.key]:,.0f} | {used[layout.key] / used['incr']:.2f} |"
                   for layout in everything]
