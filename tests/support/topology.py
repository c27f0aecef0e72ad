"""What the tests of load, crashes, replication and clusters share: skewed clocks, load that keeps accounts, figures."""

import os
import random
import subprocess
import threading
import time
from collections import Counter

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

LIMIT = 2**50
QUOTA = ("1h", "1m")


def eventually(condition, what, seconds=20, log=lambda: ""):
    """Poll until `condition()` is true and return what it returned; connections that fail count as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except (redis.exceptions.RedisError, OSError) as error:
            found, last = None, error
        else:
            last = found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what} ({last!r})\n{log()}"
        time.sleep(0.02)


def to(server):
    """How to connect to a server so that nothing is ever sent twice: redis-py would try again by itself, and wait."""
    return lambda: server.client(retry=Retry(NoBackoff(), 0), socket_timeout=10)


class Figures:
    """What the tests have counted, printed when all have run."""

    def __init__(self):
        self.lines = []

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("figures")
        for line in self.lines:
            terminalreporter.write_line(line)


@pytest.fixture
def report(request, record_property):
    """Say what was tried, how often, and what was lost: in the terminal's summary and in a JUnit report."""
    plugins = request.config.pluginmanager
    figures = plugins.get_plugin("swlimit-figures")
    if figures is None:
        figures = Figures()
        plugins.register(figures, "swlimit-figures")

    def report(text):
        figures.lines.append(f"{request.node.name}: {text}")
        record_property("figure", text)

    return report


CLOCK_SOURCE = r"""
/* Preloaded into a server: its wall clock is off by CLOCK_SKEW seconds, its monotonic clock is not. Asks the kernel
   itself, because allocators ask for the time before anything can be looked up. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t skew(void) {
    const char *seconds = getenv("CLOCK_SKEW");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(scope="session")
def skewed(tmp_path_factory):
    """The environment of a server whose clock is so many seconds off.

    libfaketime is not used: it hangs servers that are linked with a shared jemalloc, which most here are.
    """
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK_SOURCE)
    words = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", folder / "clock.so", folder / "clock.c"]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler to make a skewed clock with: {getattr(error, 'stderr', None) or error}")
    return lambda seconds: {"LD_PRELOAD": str(folder / "clock.so"), "CLOCK_SKEW": str(seconds)}


def clock_of(server):
    """A server's wall clock, in seconds."""
    with server.client() as client:
        seconds, micros = client.time()
    return seconds + micros / 1e6


PROMPT = {"repl-diskless-sync-delay": 0}  # for primaries: do not wait for further replicas before copying


def replica_of(primary, **options):
    """The options of a server that replicates `primary`."""
    return {"replicaof": ("127.0.0.1", primary.port)} | PROMPT | options


def synchronised(replica, seconds=30):
    """Wait until a replica follows its primary."""
    def up():
        with replica.client() as client:
            return client.info("replication")["master_link_status"] == "up"
    eventually(up, "the replica follows its primary", seconds, lambda: replica.log[-2000:])


def same_data(*servers, seconds=20):
    """Wait until all these servers hold the same data, by their own digests of it, and return that digest."""
    def digests():
        found = set()
        for server in servers:
            with server.client() as client:
                found.add(client.execute_command("DEBUG", "DIGEST"))
        return found if len(found) == 1 else None
    digest, = eventually(digests, "equal digests", seconds)
    assert digest.strip(b"0"), "there is no data"
    return digest


def total(client, key):
    """The units that a key holds; 0 if there is none."""
    try:
        fields = client.execute_command("SWLIMIT.INFO", key)
    except redis.exceptions.ResponseError as error:
        assert "no such key" in str(error), error
        return 0
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


class Load:
    """Threads that take units of many keys until told to stop, and keep account of what they were granted.

    Each asks with ALLOW for one to three units of any of `single`, and with MALLOW for one of both of any of `pairs`;
    in a pipeline of `batch` commands, which `wait` ends with a WAIT for one replica. Per key, `acknowledged` are the
    units whose reply (and whose WAIT) arrived; `asked` those that may have been granted. Use as a context manager:
    leaving it stops the threads. A failed connection ends its thread unless `endure`, which tries again.
    """

    def __init__(self, connect, single, pairs=(), limits=None, threads=8, batch=4, wait=False, endure=False, seed=1):
        self.connect = connect
        self.single = list(single)
        self.pairs = list(pairs)
        self.limits = limits or {}
        self.batch, self.wait, self.endure, self.seed = batch, wait, endure, seed
        self.stopping = threading.Event()
        self.accounts = [(Counter(), Counter()) for _ in range(threads)]
        self.failures = Counter()
        self.errors = []
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def keys(self):
        return [*self.single, *(key for pair in self.pairs for key in pair)]

    @property
    def running(self):
        return sum(thread.is_alive() for thread in self.threads)

    @property
    def acknowledged(self):
        return sum((acknowledged for acknowledged, _ in list(self.accounts)), Counter())

    @property
    def asked(self):
        return sum((asked for _, asked in list(self.accounts)), Counter())

    def progress(self):
        """How many units have been acknowledged; cheap enough to be polled."""
        return sum(sum(list(acknowledged.values())) for acknowledged, _ in self.accounts)

    def reach(self, units, seconds=30):
        """Wait until this many more units have been acknowledged."""
        goal = self.progress() + units

        def reached():
            assert not self.errors, self.errors
            return self.progress() >= goal
        eventually(reached, f"{units} more units acknowledged", seconds, lambda: f"{self.failures}")

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors

    def _run(self, number):
        chance = random.Random(self.seed * 1000 + number)
        client = None
        while not self.stopping.is_set():
            try:
                client = client or self.connect()
                self._take(client, chance, *self.accounts[number])
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

    def _take(self, client, chance, acknowledged, asked):
        commands, takes = [], []
        for _ in range(self.batch):
            if self.pairs and chance.random() < 0.3:
                pair = chance.choice(self.pairs)
                limits = [word for key in pair for word in (key, self.limits.get(key, LIMIT), *QUOTA, 1)]
                commands.append(("SWLIMIT.MALLOW", 2, *limits))
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


class Cluster:
    """Three masters, each with a replica, on loopback. Use as a context manager."""

    MASTERS = 3

    def __init__(self, start, options=None, module_args=()):
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": 2000,
            "cluster-config-file": "nodes.conf",
            "repl-diskless-sync-delay": 0,
            "repl-diskless-load": "swapdb",
        } | (options or {})
        self.servers = [start(options=options, module_args=module_args) for _ in range(2 * self.MASTERS)]
        masters, replicas = self.servers[:self.MASTERS], self.servers[self.MASTERS:]
        bounds = [16384 * number // self.MASTERS for number in range(self.MASTERS + 1)]
        for number, server in enumerate(masters):
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        with masters[0].client() as client:
            for server in self.servers[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        for server in self.servers:
            eventually(lambda: len(self.nodes(server)) == len(self.servers), "every node knows the others")
        for master, replica in zip(masters, replicas):
            with replica.client() as client:
                eventually(lambda: client.execute_command("CLUSTER", "REPLICATE", self.id(master)), "a replica")
        self.settle()

    def settle(self, without=()):
        """Wait until all nodes agree that the cluster is whole, and every replica follows its master."""
        def settled(server):
            with server.client() as client:
                state = client.execute_command("CLUSTER INFO")["cluster_state"]
                roles = [node["flags"] for node in self.nodes(server).values() if "fail" not in node["flags"]]
                link = client.info("replication").get("master_link_status", "up")
                return (state == "ok" and link == "up" and len(roles) == len(self.servers) - len(without)
                        and sum("master" in role for role in roles) == self.MASTERS)
        for server in self.servers:
            if server not in without:
                eventually(lambda: settled(server), "the cluster is whole", 30, lambda: server.log[-2000:])

    @staticmethod
    def nodes(server):
        with server.client() as client:
            return client.execute_command("CLUSTER NODES")

    @staticmethod
    def id(server):
        with server.client() as client:
            return client.execute_command("CLUSTER", "MYID").decode()

    def role(self, server):
        """What a node is now, and whose replica, as its `INFO replication` says."""
        with server.client() as client:
            return client.info("replication")

    def masters(self):
        """The servers that are masters now."""
        return [server for server in self.servers if server.alive and self.role(server)["role"] == "master"]

    def replica(self, master):
        """The server that replicates a master."""
        for server in self.servers:
            if server.alive and self.role(server).get("master_port") == master.port:
                return server
        raise LookupError(master.port)

    def slots(self, server):
        """The ranges of slots that a server says it has."""
        for node in self.nodes(server).values():
            if "myself" in node["flags"]:
                return [(int(part[0]), int(part[-1])) for part in node["slots"]]
        raise LookupError(server)

    def connect(self):
        """A client that knows clusters, and sends nothing twice."""
        return redis.RedisCluster(host="127.0.0.1", port=self.masters()[0].port, socket_timeout=5,
                                  retry=Retry(NoBackoff(), 0))


class ClusterLoad(Load):
    """Load on a cluster, command by command; WAIT goes to the node that has answered."""

    def __init__(self, cluster, single, pairs=(), **options):
        super().__init__(cluster.connect, single, pairs, batch=1, endure=True, **options)

    def _execute(self, client, commands):
        command, = commands
        key = command[2] if command[0] == "SWLIMIT.MALLOW" else command[1]
        replies = [client.execute_command(*command)]
        if self.wait:
            replies.append(client.execute_command("WAIT", 1, 500, target_nodes=client.get_node_from_key(key)))
        return replies
