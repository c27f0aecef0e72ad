"""Places under way at once: what holds cost beside other semaphores, what is left when holders are killed, and how late
those are who wait for a place."""

import resource
import selectors
import time
from dataclasses import dataclass, field
from itertools import cycle, islice
from multiprocessing import get_context

from support.resp import Connection, encode

from .contenders import LIMIT, WINDOW, names
from .cpu import ratio, settled, spread
from .load import PIPELINE, Load, start_server
from .semaphores import Holds, Semaphore, everything, ids

LIVE = {1: 1000, 100: 100, 10_000: 4}  # holds of a key that are live -> keys
HOLDERS, PLACES, TTL = 20, 10, 2  # processes that are killed, places of the key, seconds that a place is kept
WAITERS, KEYS = 1_000, 10_000
SECONDS = 10  # that many wait while nothing happens
PERCENTILES = (50, 99, 100)


@dataclass
class Result:
    """CPU of each pair in ns by (way, live holds) and round; bytes a hold by the same; what happened to killed holders;
    how late waiters were, in ms, sorted; what waiting costs."""

    spent: dict
    memory: dict
    killed: dict
    late: list
    waiting: dict
    labels: dict = field(default_factory=dict)


class Allows(Semaphore):
    """Two granted ALLOWs in place of a pair: the yardstick."""

    def take(self, name, id, *_):
        return ("SWLIMIT.ALLOW", name, LIMIT, WINDOW, 60)

    def give(self, name, id):
        return self.take(name, id)

    def is_taken(self, reply):
        return reply[0] == 1


def measure(rounds, pairs, holders, waiters, keys):
    ways = [*everything(), Allows("allows", "two granted `ALLOW`, N = 60")]
    result = Result(*cost(ways, rounds, pairs), killed(ways[:-1], holders), late(waiters), many_keys(keys))
    result.labels = {way.key: way.label for way in ways}
    return result


# -- CPU and memory ----------------------------------------------------------------------------------------------------

def cost(ways, rounds, pairs):
    """Nanoseconds a pair by round, and bytes a hold; each number of live holds on a server of its own."""
    spent, memory = {}, {}
    for live, number in LIVE.items():
        with start_server() as server, server.client() as client, Load(server) as load:
            keys = {way.key: names(way.key, number) for way in ways}
            for way in ways:
                before = client.info("memory")["used_memory"]
                fill(server, load, way, keys[way.key], live)
                if not isinstance(way, Allows):
                    memory[way.key, live] = (client.info("memory")["used_memory"] - before) / (live * number)
                once(server, load, way, keys[way.key], pairs)
                spent[way.key, live] = []
            for turn in range(rounds):
                print(f"holds: {live} live, round {turn + 1} of {rounds}", flush=True)
                at = turn % len(ways)
                for way in ways[at:] + ways[:at]:
                    spent[way.key, live].append(once(server, load, way, keys[way.key], pairs))
    return spent, memory


def fill(server, load, way, keys, live):
    """Let so many holds of each key live."""
    way.now = milliseconds()
    way.prepare(server, keys)
    taken = (way.take(name, id) for _ in range(live) for name, id in zip(keys, ids()))
    load.run_all(taken)


def once(server, load, way, keys, pairs):
    """Nanoseconds of each of so many pairs."""
    way.now = milliseconds()
    couples = [encode(*way.take(name, id)) + encode(*way.give(name, id))
               for name, id in zip(islice(cycle(keys), pairs), ids())]
    size = PIPELINE // 2
    stream = [(b"".join(couples[at:at + size]), len(couples[at:at + size])) for at in range(0, pairs, size)]
    before = settled(server)
    load.run(stream, replies=2)
    return (settled(server) - before) / pairs


def milliseconds():
    return int(time.time() * 1000)


# -- Holders that are killed -------------------------------------------------------------------------------------------

def killed(ways, holders):
    """By way: places that nobody can take any more, a ttl after all holders were killed; and places too many after one
    was given back twice, as by a retry after a lost reply."""
    return {way.key: (lost(way, holders), freed_twice(way)) for way in ways}


def lost(way, holders):
    print(f"holds: killing holders of {way.label}", flush=True)
    with start_server() as server:
        way.prepare(server, ["place"], PLACES)
        forked = get_context("fork")
        processes = [forked.Process(target=come_and_go, args=(way, server.port, number)) for number in range(holders)]
        for process in processes:
            process.start()
        time.sleep(2)
        for process in processes:
            process.kill()
            process.join()
        time.sleep(TTL + 0.1)
        return PLACES - fitting(way, server.port)


def come_and_go(way, port, number):
    """Take a place and give it back, again and again."""
    with Connection(port) as connection:
        for id in (f"{number}-{id}" for id in ids()):
            way.now = milliseconds()
            if way.is_taken(connection.call(*way.take("place", id, PLACES, TTL * 1000))):
                time.sleep(0.01)
                connection.call(*way.give("place", id))
            elif way.key == "counter":
                connection.call(*way.give("place", id))


def fitting(way, port):
    """How many places can be taken now."""
    way.now = milliseconds()
    with Connection(port) as connection:
        taken = (way.is_taken(connection.call(*way.take("place", f"late-{number}", PLACES)))
                 for number in range(2 * PLACES))
        return sum(taken)


def freed_twice(way):
    with start_server() as server, Connection(server.port) as connection:
        way.prepare(server, ["place"], PLACES)
        way.now = milliseconds()
        for number in range(2):
            connection.call(*way.take("place", f"early-{number}", PLACES))
        for _ in range(2):
            connection.call(*way.give("place", "early-0"))
        return fitting(way, server.port) - (PLACES - 1)


# -- Those who wait ----------------------------------------------------------------------------------------------------

def late(waiters):
    """How many ms after each RELEASE the next in the queue has read its answer, sorted."""
    print(f"holds: {waiters} waiters on one key", flush=True)
    with crowd(waiters) as (server, admin, connections):
        selector, hold = selectors.DefaultSelector(), Holds("holds", "")
        admin.call(*hold.take("k", "first", 1))
        for number, connection in enumerate(connections):
            connection.send(encode(*hold.take("k", f"{number}", 1), "WAIT", "1h"))
            until_waiting(admin, number + 1)
            selector.register(connection.socket, selectors.EVENT_READ, number)
        found, last = [], "first"
        for _ in connections:
            released = time.perf_counter()
            admin.call(*hold.give("k", last))
            while not (ready := selector.select()):
                pass
            found.append((time.perf_counter() - released) * 1000)
            (key, _), = ready
            assert hold.is_taken(connections[key.data].reply())
            selector.unregister(key.fileobj)
            last = f"{key.data}"
    return sorted(found)


def many_keys(keys):
    """CPU while so many clients wait, each on a key of its own, in µs a second; CPU of each that is let in, in µs; and
    seconds until the last one has its answer."""
    print(f"holds: {keys} waiters on as many keys", flush=True)
    hold, every = Holds("holds", ""), names("w", keys)
    with crowd(keys) as (server, admin, connections):
        list(admin.stream(hold.take(name, "first", 1) for name in every))
        for name, connection in zip(every, connections):
            connection.send(encode(*hold.take(name, "next", 1), "WAIT", "1h"))
        until_waiting(admin, keys)
        before = settled(server)
        time.sleep(SECONDS)
        idle = settled(server) - before
        before, began = settled(server), time.perf_counter()
        list(admin.stream(hold.give(name, "first") for name in every))
        for connection in connections:
            assert hold.is_taken(connection.reply())
        took = time.perf_counter() - began
        each = (settled(server) - before) / keys
    return {"idle": idle / 1000 / SECONDS, "each": each / 1000, "seconds": took}


class crowd:
    """A server with so many connections, and one more."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.server = start_server(maxclients=self.number + 100)
        self.server.__enter__()
        self.connections = [Connection(self.server.port) for _ in range(self.number + 1)]
        admin, *others = self.connections
        return self.server, admin, others

    def __exit__(self, *words):
        for connection in self.connections:
            connection.close()
        self.server.__exit__(*words)


def until_waiting(admin, number):
    while b"swlimit_waiting:%d\r" % number not in admin.call("INFO", "swlimit"):
        pass


# -- What came out -----------------------------------------------------------------------------------------------------

def table(result):
    """As Markdown tables."""
    return [*costs(result), "", *deaths(result), "", *waits(result)]


def costs(result):
    rows = ["| | live holds a key | ns a pair | ÷ two `ALLOW` | bytes a hold |", "|---|---:|---:|---:|---:|"]
    for (way, live), values in result.spent.items():
        low, middle, high = spread(values)
        least, usual, most = ratio(result.spent, (way, live), ("allows", live))
        kept = f"{result.memory[way, live]:.0f}" if (way, live) in result.memory else "–"
        rows.append(f"| {result.labels[way]} | {live:,} | {middle:.0f} ({low:.0f}–{high:.0f}) | "
                    f"{usual:.2f} ({least:.2f}–{most:.2f}) | {kept} |")
    return rows


def deaths(result):
    rows = ["| | places lost for ever | places too many |", "|---|---:|---:|"]
    return [*rows, *(f"| {result.labels[way]} | {lost} | {twice} |" for way, (lost, twice) in result.killed.items())]


def waits(result):
    late, waiting = result.late, result.waiting
    cells = [f"{late[min(int(len(late) * percentile / 100), len(late) - 1)]:.2f} ms" for percentile in PERCENTILES]
    return ["| answered after the `RELEASE` by | p50 | p99 | at most |", "|---|---:|---:|---:|",
            f"| the next of {len(late):,} on one key | {' | '.join(cells)} |", "",
            f"With a waiter on each of as many keys as waiters, the server took {waiting['idle']:.0f} µs of CPU a "
            f"second while nothing happened, and {waiting['each']:.1f} µs for each `RELEASE` with its grant; the last "
            f"answer came after {waiting['seconds']:.2f} s."]
