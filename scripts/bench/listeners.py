"""What effects cost: commands on a server to which nobody listens, beside one with a replication backlog."""

import time

from support.contents import REPLICATING, info
from support.replication import replica_of, synchronised
from support.server import Server
from support.waiting import eventually

from . import beside
from .contenders import LIMIT, WINDOW, Contender, deciding, denied, granted, names, several
from .load import start_server

NOBODY, BACKLOG = "nobody listens", "a backlog"


def alone(stack):
    """A server that has found that nobody listens."""
    server = stack.enter_context(start_server())
    eventually(lambda: info(server)[REPLICATING], "no")
    return server


def listened(stack):
    """A server whose replica has gone, so that it keeps a backlog."""
    server = stack.enter_context(start_server())
    with Server(options=replica_of(server)) as replica:
        synchronised(replica)
    return server


def contenders():
    """Grants of each kind."""
    month = int(time.time() * 1000) + 30 * 86_400_000
    budgets = [("SWLIMIT.BUDGET", name, LIMIT, month) for name in names("bud")]
    admissions = [("SWLIMIT.ADMIT", 1, name, "RATE", LIMIT, WINDOW, 60, 1) for name in names("adm")]
    return [
        deciding("SWLIMIT.ALLOW", "g60", 60, granted, "allow", "`ALLOW` granted, N = 60"),
        deciding("SWLIMIT.ALLOW", "d60", 60, denied, "denied", "`ALLOW` denied, N = 60",
                 prepare=([("SWLIMIT.BLOCK", name, "1h") for name in names("d60")],)),
        *several(),
        Contender("budget", "`BUDGET` granted", budgets, granted),
        Contender("admit", "`ADMIT` of a rate", admissions, granted),
    ]


def measure(rounds, turns, commands):
    """Nanoseconds per command, and who was measured."""
    measured = contenders()
    return beside.measure("listeners", {NOBODY: alone, BACKLOG: listened}, measured, rounds, turns, commands), measured


def table(spent, measured):
    """As a Markdown table."""
    return beside.table(spent, measured, "command", BACKLOG, NOBODY)
