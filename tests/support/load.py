"""Load that keeps accounts: what was acknowledged is held afterwards, and nothing else."""

import random
import threading
from collections import Counter

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .commands import mallow
from .waiting import eventually

LIMIT = 2**50
QUOTA = ("1h", "1m")


def to(server):
    """How to connect to a server so that nothing is ever sent twice: redis-py would try again by itself, and wait."""
    return lambda: server.client(retry=Retry(NoBackoff(), 0), socket_timeout=10)


def total(client, key):
    """The units that a key holds; 0 if there is none."""
    if not client.exists(key):
        return 0
    fields = client.execute_command("SWLIMIT.INFO", key)
    fields = dict(zip(fields[::2], fields[1::2]))
    assert sum(units for _, units in fields[b"counts"]) == fields[b"total"]
    return fields[b"total"]


def fill(client, key, limit, quota=QUOTA):
    """Ask for single units until one is denied; the number granted."""
    granted = 0
    while True:
        replies = client.pipeline(transaction=False)
        for _ in range(50):
            replies.execute_command("SWLIMIT.ALLOW", key, limit, *quota)
        got = [reply[0] for reply in replies.execute()]
        granted += sum(got)
        if not got[-1]:
            assert sum(got) == got.index(0), "granted after a denial"
            return granted


def only_the_rest(client, limits):
    """No key holds more than its limit, and exactly what is left of it is granted."""
    for key, limit in limits.items():
        held = total(client, key)
        assert held <= limit
        assert fill(client, key, limit) == limit - held


class Workers:
    """Threads that work until told to stop, each with a client of its own that `connect` makes.

    Use as a context manager: leaving it stops the threads, which have made progress by then. A failed connection ends
    its thread unless `endure`, which tries again; any other failure fails the one that waits.
    """

    PATIENCE = 30
    """Seconds for `reach`."""

    def __init__(self, connect, threads, endure, seed):
        self.connect, self.endure, self.seed = connect, endure, seed
        self.stopping = threading.Event()
        self.failures = Counter()
        self.errors = []
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def progress(self):
        """How much has been done; cheap enough to be polled."""
        raise NotImplementedError

    def work(self, client, chance, number):
        """A step of the thread of this number; `chance` is its own."""
        raise NotImplementedError

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def running(self):
        return sum(thread.is_alive() for thread in self.threads)

    def reach(self, more, seconds=None):
        """Wait until this much more has been done."""
        goal = self.progress() + more

        def reached():
            assert not self.errors, self.errors
            return self.progress() >= goal
        eventually(reached, seconds=seconds or self.PATIENCE, log=lambda: f"not {more} more done; {self.failures}")

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors
        assert self.progress(), f"nothing was done; {self.failures}"

    def _run(self, number):
        chance = random.Random(self.seed * 1000 + number)
        client = None
        while not self.stopping.is_set():
            try:
                client = client or self.connect()
                self.work(client, chance, number)
            except (redis.exceptions.RedisError, OSError) as error:
                self.failures[type(error).__name__] += 1
                client = client and client.close()
                expected = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError,
                            redis.exceptions.ClusterError, redis.exceptions.ClusterDownError,
                            redis.exceptions.TryAgainError, redis.exceptions.ReadOnlyError, OSError)
                if not isinstance(error, expected):
                    self.errors.append(repr(error))
                    break
                if not self.endure:
                    break
                self.stopping.wait(0.02)
            except Exception as error:  # would vanish with the thread
                self.errors.append(repr(error))
                break
        if client:
            client.close()


class Load(Workers):
    """Workers that take units of many keys, and keep account of what they were granted.

    Each asks with ALLOW for one to three units of any of `single`, and with MALLOW for one of both of any of `pairs`;
    in a pipeline of `batch` commands, which `wait` ends with a WAIT for one replica. Per key, `acknowledged` are the
    units whose reply (and whose WAIT) arrived; `asked` those that may have been granted.
    """

    def __init__(self, connect, single, pairs=(), limits=None, threads=8, batch=4, wait=False, endure=False, seed=1):
        super().__init__(connect, threads, endure, seed)
        self.single = list(single)
        self.pairs = list(pairs)
        self.limits = limits or {}
        self.batch, self.wait = batch, wait
        self.accounts = [(Counter(), Counter()) for _ in range(threads)]

    @property
    def keys(self):
        return [*self.single, *(key for pair in self.pairs for key in pair)]

    @property
    def acknowledged(self):
        return sum((acknowledged for acknowledged, _ in list(self.accounts)), Counter())

    @property
    def asked(self):
        return sum((asked for _, asked in list(self.accounts)), Counter())

    def progress(self):
        """How many units have been acknowledged."""
        return sum(sum(list(acknowledged.values())) for acknowledged, _ in self.accounts)

    def work(self, client, chance, number):
        self._take(client, chance, *self.accounts[number])

    def _take(self, client, chance, acknowledged, asked):
        commands, takes = [], []
        for _ in range(self.batch):
            if self.pairs and chance.random() < 0.3:
                pair = chance.choice(self.pairs)
                commands.append(mallow(*((key, self.limits.get(key, LIMIT), *QUOTA, 1) for key in pair)))
                takes.append((pair, 1))
            else:
                key, cost = chance.choice(self.single), chance.randint(1, 3)
                commands.append(("SWLIMIT.ALLOW", key, self.limits.get(key, LIMIT), *QUOTA, "COST", cost))
                takes.append(((key,), cost))
        for keys, cost in takes:
            for key in keys:
                asked[key] += cost
        replies = self._execute(client, commands)
        if self.wait and replies.pop() < 1:
            return
        for (keys, cost), reply in zip(takes, replies, strict=True):
            if reply[0]:
                for key in keys:
                    acknowledged[key] += cost

    def _execute(self, client, commands):
        if self.wait:
            commands.append(("WAIT", 1, 500))
        if len(commands) == 1:
            return [client.execute_command(*commands[0])]
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute()


def nothing_lost(load, client_of):
    """Every acknowledged unit is held, none was invented, and pairs are whole; how many units are held unacknowledged.

    `client_of(key)` is a client that reaches the key.
    """
    acknowledged, asked = load.acknowledged, load.asked
    held = {key: total(client_of(key), key) for key in load.keys}
    lost = {key: (acknowledged[key], held[key]) for key in load.keys if held[key] < acknowledged[key]}
    assert not lost, f"acknowledged but not held: {lost}"
    invented = {key: (asked[key], held[key]) for key in load.keys if held[key] > asked[key]}
    assert not invented, f"held but never asked for: {invented}"
    torn = [(a, held[a], b, held[b]) for a, b in load.pairs if held[a] != held[b]]
    assert not torn, f"half of a MALLOW: {torn}"
    return sum(held.values()) - sum(acknowledged.values())
