"""What a server holds, and what it says it has counted. `server` may also be a connection to one."""

import re
import time
from contextlib import contextmanager

from .resp import Connection, Failed
from .waiting import eventually


def info(server, section="swlimit"):
    """The fields of an INFO section, with numbers as integers."""
    with Connection(server.port) as connection:
        lines = connection.call("INFO", section).decode().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(text) if re.fullmatch(r"-?\d+", text) else text for name, text in fields.items()}


def statistics(server):
    """INFO swlimit, without the prefix of its fields, and without what the server notices by itself."""
    return {name.removeprefix("swlimit_"): value for name, value in info(server).items() if name != REPLICATING}


REPLICATING = "swlimit_replicating"


def spent(server):
    """The CPU time of the server's main thread, in seconds."""
    found = info(server, "cpu")
    return sum(float(found[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


def idle(server, seconds):
    """What it spends on doing nothing for so long."""
    before = spent(server)
    time.sleep(seconds)
    return spent(server) - before


def digest(server):
    """One number for everything the server holds."""
    with Connection(server.port) as connection:
        return connection.call("DEBUG", "DIGEST").decode()


def expiries(server):
    """When each key expires, in ms; -1 where it does not."""
    with Connection(server.port) as connection:
        names = sorted(connection.call("KEYS", "*"))
        return dict(zip(names, connection.calls([("PEXPIRETIME", name) for name in names])))


def same_data(*servers, seconds=20):
    """Wait until all these servers hold the same data, by their own digests of it, and return that digest."""
    eventually(lambda: len({digest(server) for server in servers}), 1, seconds)
    found = digest(servers[0])
    assert found.strip("0"), "there is no data"
    return found


@contextmanager
def unchanged(server):
    """Nothing that the server holds, and nothing that it counted, changes inside of this block."""
    before = digest(server), statistics(server)
    yield
    assert (digest(server), statistics(server)) == before


def held(server):
    """How many keys of the module's types there are in all databases, and the bytes that they say they take."""
    keys = size = 0
    with Connection(server.port) as connection:
        for database in info(server, "keyspace"):
            connection.call("SELECT", database.removeprefix("db"))
            names = [name for type_name in ("sw-window", "sw-holder", "sw-budget")
                     for name in connection.call("SCAN", 0, "TYPE", type_name, "COUNT", 1_000_000)[1]]
            shown = connection.stream(("SWLIMIT.INFO", name) for name in names)
            sizes = [reply[reply.index(b"memory") + 1] for reply in shown if not isinstance(reply, Failed)]
            keys += len(sizes)
            size += sum(sizes)
    return keys, size


def info_of(server, key, field):
    """What SWLIMIT.INFO says of a key, a number; 0 of a key that is not there."""
    reply = server.cli("SWLIMIT.INFO", key).split("\n")
    return int(reply[reply.index(field) + 1]) if field in reply else 0


def counted(server):
    """How many keys INFO swlimit counts, and how many bytes."""
    found = statistics(server)
    return found["keys"] + found["hold_keys"] + found["budget_keys"], found["memory"]


def agrees(server):
    """INFO counts exactly the keys there are, and the bytes they say they take; how many keys that are."""
    keys = held(server)
    assert counted(server) == keys
    return keys[0]
