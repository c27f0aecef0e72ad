"""Servers that lose the script, the module, or their data under holders: never more of them live than the limit except
what a failover loses, and no place is lost for longer than its ttl."""

import itertools
import random
import time

import pytest
import redis

from support.hold_load import HoldLoad, all_end, crash, kept, one_more_fits
from support.load import to
from support.replication import PROMPT, replica_of, synchronised
from support.script import SCRIPT, TAKEOVER, scripted, sha
from support.server import MODULE
from support.waiting import eventually

SHA = sha()
KEYS = [f"seats:{number}" for number in range(4)]
LIMIT, TTL = 4, 2.0


class ScriptClient:
    """Sends commands as swlimit's clients do: to the script or to the module, whichever the server has and the key
    belongs to. With `looks`, it asks the module now and then, not only at first."""

    def __init__(self, client, looks=False):
        self.client, self.looks, self.by_script = client, looks, False

    def execute_command(self, *words):
        if "WAIT" not in words[1:]:
            return self.ask(words)
        *words, _, patience = words  # a client waits by asking again
        deadline = time.monotonic() + int(patience.removesuffix("s"))
        while not (reply := self.ask(words))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        return reply

    def ask(self, words):
        if not words[0].startswith("SWLIMIT."):
            return self.client.execute_command(*words)
        self.by_script = self.by_script and not (self.looks and random.random() < 0.05)
        for _ in range(5):
            try:
                return self.client.execute_command(*(scripted(words, SHA) if self.by_script else words))
            except redis.exceptions.NoScriptError:
                self.client.script_load(SCRIPT.read_bytes())
            except redis.exceptions.ResponseError as error:
                if "unknown command" in str(error):
                    self.by_script = True
                elif not str(error).startswith("WRONGTYPE"):
                    raise
                elif self.by_script:
                    self.by_script = False
                else:
                    self.take_over(words[1])
        raise AssertionError(f"no reply to {words}")

    def take_over(self, key):
        self.client.execute_command("EVALSHA", self.client.script_load(TAKEOVER.read_bytes()), 1, key)

    def close(self):
        self.client.close()


def asking(server):
    """How workers connect: half of them look for the module."""
    connect, turns = to(server), itertools.cycle([True, False])
    return lambda: ScriptClient(connect(), next(turns))


def holding(server, **options):
    return HoldLoad(asking(server), KEYS, **{"limit": LIMIT, "ttl": TTL} | options)


def nothing_is_lost(server):
    """No place is taken for longer than the ttl, and then all are free."""
    client = ScriptClient(server.client(socket_timeout=60))
    for key in KEYS:
        held = client.execute_command("SWLIMIT.HOLDERS", key, 10_000)
        assert len(held) <= LIMIT and all(left <= 1000 * TTL for _, _, _, left, _ in held), held
    all_end(HoldLoad(asking(server), KEYS, LIMIT, TTL), lambda key: client)


def test_scripts_are_flushed_and_the_module_is_loaded_under_load(start, report):
    """Workers find the script gone three times, then half of them find the module, and take the keys over."""
    server = start(module=None)
    with holding(server) as load:
        for _ in range(3):
            load.reach(60)
            server.cli("SCRIPT", "FLUSH")
        load.reach(60)
        server.cli("MODULE", "LOAD", MODULE)
        load.reach(60)
        eventually(lambda: {server.cli("TYPE", key) for key in KEYS}, {"sw-holder"})
    nothing_is_lost(server)
    report(f"{load.granted} holds, none too many")


@pytest.mark.parametrize("skew", [0, pytest.param(-3600, marks=pytest.mark.long)], ids=["same", "behind"])
def test_a_promoted_replica_knows_the_holders(start, skewed, report, skew):
    """Every hold that WAIT has confirmed is held, and tokens go on growing, also on a clock that is behind."""
    primary = start(module=None, options=PROMPT, env=skewed(0))
    replica = start(module=None, options=replica_of(primary), env=skewed(skew))
    synchronised(replica)
    with holding(primary, ttl=20.0, wait=True) as load:
        load.reach(100)
        primary.kill()
        eventually(lambda: load.failures)
    client = ScriptClient(replica.client(socket_timeout=60))
    client.execute_command("REPLICAOF", "NO", "ONE")
    relied_on = kept(load, lambda key: client)
    one_more_fits(load, client)
    report(f"{load.granted} holds confirmed, {relied_on} relied on when the replica took over: none lost")


@pytest.mark.long
def test_crashes_under_load(start, report):
    """kill -9 with `appendfsync always`: who has an answer goes on holding."""
    server = start(module=None, options={"appendonly": "yes", "appendfsync": "always"})
    with holding(server) as load:
        crash(load, server)
    client = ScriptClient(server.client(socket_timeout=60))
    relied_on = kept(load, lambda key: client)
    nothing_is_lost(server)
    report(f"{load.granted} holds over 3 crashes, {relied_on} relied on at the end: none lost, none too many")


@pytest.mark.long
def test_evicted_holds_are_forgotten(start):
    """With `noeviction` nothing is lost. Else a key that is evicted lets as many in again; tokens go on growing."""
    server = start(module=None)
    for policy in ("noeviction", "allkeys-random"):
        with holding(server) as load:
            load.reach(200)
        server.cli("CONFIG", "SET", "maxmemory-policy", policy)
        server.cli("CONFIG", "SET", "maxmemory", 1)
        client = ScriptClient(server.client(socket_timeout=60))
        if policy == "noeviction":
            kept(load, lambda key: client)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.execute_command("SWLIMIT.HOLD", "other", 1, 60, "id")
        else:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.execute_command("SET", "other", "x")
            assert server.cli("DBSIZE") == "0"
        server.cli("CONFIG", "SET", "maxmemory", 0)
        for key in KEYS:
            token = client.execute_command("SWLIMIT.HOLD", key, 100, "1s", "next")[5]
            assert token > load.tokens[key]
    nothing_is_lost(server)


@pytest.mark.parametrize("persistence", [{"save": "3600 1"}, {"appendonly": "yes"}], ids=["RDB", "AOF"])
def test_a_server_does_not_start_without_the_module_whose_holds_it_keeps(start, persistence):
    """Rather than forget them: with the module it has them all."""
    server = start(options=persistence)
    server.cli("SWLIMIT.HOLD", KEYS[0], LIMIT, "1h", "own")
    server.stop()
    server.module = None
    with pytest.raises(RuntimeError, match="ended at once"):
        server.start()
    server.module = MODULE
    with server.start().client() as client:
        assert [id for id, *_ in client.execute_command("SWLIMIT.HOLDERS", KEYS[0])] == [b"own"]


@pytest.mark.long
def test_a_replica_without_the_module_forgets_the_holders(start, report):
    """Failed over to, it lets as many in again, once: those who held before end within their ttl."""
    primary = start(options=PROMPT)
    replica = start(module=None, options=replica_of(primary))
    synchronised(replica)
    with holding(primary) as load:
        load.reach(200)
        primary.kill()
        eventually(lambda: load.failures)
    replica.cli("REPLICAOF", "NO", "ONE")
    known = sum(len(load.relied_on(key)) for key in KEYS)
    with holding(replica) as after:
        after.reach(200)
    nothing_is_lost(replica)
    report(f"{known} holders of {LIMIT * len(KEYS)} places were forgotten")
