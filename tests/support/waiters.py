"""Clients that wait for their turn."""

import select
from contextlib import contextmanager

from .contents import info, statistics
from .resp import Connection, encode
from .waiting import eventually

BLOCKED = "1h"    # a key that is blocked that long is waited for until something happens
PATIENT = "2h"


class Waiter:
    """A client that has sent a command that waits, and reads the reply when it is asked for it."""

    def __init__(self, port, *words, first=(), command="SWLIMIT.ACQUIRE"):
        self.connection = Connection(port, timeout=20)
        for words_before in first:
            self.connection.call(*words_before)
        self.id = self.connection.call("CLIENT", "ID")
        self.connection.send(encode(command, *words))

    def answer(self):
        """The reply; waits for it."""
        return self.connection.reply()

    @property
    def is_answered(self):
        """Whether something has come."""
        return bool(select.select([self.connection.socket], [], [], 0)[0])

    def close(self):
        self.connection.close()


def waiting(server):
    """How many clients wait."""
    return statistics(server)["waiting"]


@contextmanager
def waiters(server):
    """Let clients wait, one after the other, each in its place in the queue: `wait(*words)`, also on other servers.

    `more` is by how many more clients wait then.

    When the block ends, nobody waits any more on a server that is still alive, and the servers know of nobody either.
    """
    waiting_here = []

    def wait(*words, on=server, more=1, **options):
        already = waiting(on)
        waiting_here.append((on, Waiter(on.port, *words, **options)))
        eventually(lambda: waiting(on), already + more)
        return waiting_here[-1][1]

    yield wait
    for _, waiter in waiting_here:
        waiter.close()
    for each in {on for on, _ in waiting_here} | {server}:
        if each.alive:
            eventually(lambda: waiting(each), 0)
            assert info(each, "clients")["blocked_clients"] == 0
