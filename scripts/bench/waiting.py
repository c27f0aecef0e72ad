"""How late clients are granted that wait for their turn: after the first ms at which the window lets them.

A window of single milliseconds is given to many clients that wait on one key. When each was granted is in the
append-only file; when it could have been, PEEK tells, asked on a second key that is played the same grants. When each
client had its answer is this process's own clock, which is the server's too.
"""

import selectors
import time
from bisect import bisect_left

from support import aof
from support.resp import Connection, encode

from .load import start_server

WAITERS, LIMIT, WINDOW, RESOLUTION = 1_000, 50, "500ms", "1ms"
PERCENTILES = (50, 99, 100)


def measure(rounds):
    """Milliseconds from the first ms at which each client fitted to its grant, and to its answer, each sorted."""
    granted, answered = [], []
    for number in range(rounds):
        print(f"waiting: round {number + 1} of {rounds}", flush=True)
        with start_server(appendonly="yes", appendfsync="no") as server, Connection(server.port) as admin:
            arrived = wait(server, admin)
            instants = [int(words[words.index("AT") + 1]) for words in aof.commands(server)
                        if words[0] == "SWLIMIT.RECORD"]
            fitted = first_instants(admin, instants)
        granted += [at - first for at, first in zip(instants, fitted)]
        answered += [at - first for at, first in zip(arrived, fitted)]
    return sorted(granted), sorted(answered)


def wait(server, admin):
    """Let all wait, then begin; when each had its answer, in ms, in the order of the queue."""
    admin.call("SWLIMIT.BLOCK", "k", "1h")
    command, selector = encode("SWLIMIT.ACQUIRE", "k", LIMIT, WINDOW, RESOLUTION, "2h"), selectors.DefaultSelector()
    connections = []
    for number in range(WAITERS):
        connection = Connection(server.port)
        connections.append(connection)
        connection.send(command)
        while admin.call("INFO", "swlimit").count(b"swlimit_waiting:%d\r" % (number + 1)) == 0:
            pass
        selector.register(connection.socket, selectors.EVENT_READ, number)
    admin.call("SWLIMIT.UNBLOCK", "k")
    arrived = {}
    while len(arrived) < WAITERS:
        for key, _ in selector.select():
            arrived[key.data] = time.time() * 1000
            selector.unregister(key.fileobj)
    for connection in connections:
        assert connection.reply()[0] == 1
        connection.close()
    return [arrived[number] for number in range(WAITERS)]


def first_instants(admin, instants):
    """When each could have been granted at the earliest, after those before it were granted when they were."""
    shadow, found = ("shadow", LIMIT, WINDOW, RESOLUTION), [instants[0]]
    for before in instants[:-1]:
        admin.call("SWLIMIT.RECORD", *shadow, "AT", before, "UNTIL", 0)
        found.append(before + admin.call("SWLIMIT.PEEK", *shadow, "AT", before)[3])
    return found


def table(granted, answered):
    """What came out, as a Markdown table."""
    rows = ["| late by | p50 | p99 | at most |", "|---|---:|---:|---:|"]
    for label, late in (("the grant", granted), ("the client's answer", answered)):
        cells = [f"{late[min(int(len(late) * percentile / 100), len(late) - 1)]:.1f} ms" for percentile in PERCENTILES]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    within = bisect_left(answered, 5) / len(answered)
    return [*rows, "", f"{100 * within:.1f} % of the answers came within 5 ms."]
