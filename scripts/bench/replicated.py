"""How many bytes a command sends to each replica, and to the append-only file."""

import time

from support.contents import info
from support.replication import replica_of, synchronised
from support.resp import Connection
from support.server import Server

TIMES = 50
KEY = "k" * 13
QUOTA = (99, 60, 5)
INCR = "`INCR`"


def cases():
    """Commands, each a function of its number; the first call makes the key."""
    month = int(time.time() * 1000) + 30 * 86_400_000
    return {
        INCR: lambda _: ("INCR", "i" * 13),
        "`SET k v EX`": lambda _: ("SET", "s" * 13, "v", "EX", 60),
        "`ALLOW`, granted": lambda _: ("SWLIMIT.ALLOW", KEY, *QUOTA),
        "`ALLOW`, granted, `COST 5`": lambda _: ("SWLIMIT.ALLOW", "c" * 13, 999, *QUOTA[1:], "COST", 5),
        "`ALLOW`, denied": lambda _: ("SWLIMIT.ALLOW", KEY, 0, *QUOTA[1:]),
        "`HOLD`, an id of 16 bytes": lambda number: ("SWLIMIT.HOLD", "h" * 13, 1_000_000, "1m", f"{number:016}"),
        "`RELEASE`": lambda number: ("SWLIMIT.RELEASE", "h" * 13, f"{number:016}"),
        "`BUDGET`, granted": lambda _: ("SWLIMIT.BUDGET", "b" * 13, 1_000_000, month),
    }


def measure():
    """Bytes a command, by case."""
    with Server() as primary, Server(options=replica_of(primary)) as replica, Connection(primary.port) as client:
        synchronised(replica)

        def sent():
            return info(client, "replication")["master_repl_offset"]

        sizes = {}
        for case, words in cases().items():
            client.call(*words(0))
            before = sent()
            client.calls([words(number) for number in range(1, TIMES + 1)])
            sizes[case] = (sent() - before) / TIMES
        return sizes


def table(sizes):
    """As a Markdown table."""
    rows = ["| command | bytes | ÷ `INCR` |", "|---|---:|---:|"]
    return rows + [f"| {case} | {size:.0f} | {size / sizes[INCR]:.1f} |" for case, size in sizes.items()]
