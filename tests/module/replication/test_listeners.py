"""Effects are sent from the moment on at which somebody listens, and nobody who comes misses one.

A server to which nobody listens builds no effects. A listener who comes gets a snapshot and what is sent from then on;
each test compares both sides, by digests and expiries to the millisecond, after load that went on all the while. The
server runs its cron once a second, so that a listener who is noticed by the next cron only would miss a second of
effects.
"""

import shutil

import pytest

from support.cli import feed
from support.commands import mallow
from support.contents import REPLICATING, digest, expiries, info
from support.load import Workers, to
from support.replication import PROMPT, follow, in_step, replica_of, synchronised
from support.waiting import eventually

pytestmark = pytest.mark.as_run

RARE_CRON = {"hz": 1, "dynamic-hz": "no", "repl-backlog-size": "100mb"}
QUOTA = "40s", "10ms"
"""A fine resolution: a copy that decided by its own clock would count in other subintervals."""
PLENTY = 2**40
WORK = 20
"""So many rounds of all commands."""
SCRIPT = """
    redis.call('SWLIMIT.ALLOW', KEYS[1], ARGV[1], ARGV[2], ARGV[3])
    return redis.call('SWLIMIT.BLOCK', KEYS[1], '1ms')
"""
FUNCTION = f"""#!lua name=limits
    redis.register_function('limited', function(KEYS, ARGV) {SCRIPT} end)
"""


class Everything(Workers):
    """Workers that change keys by every command that has effects: alone, in transactions, scripts and functions, and as
    waiting clients whose turn comes. It is all by the server's clock."""

    def __init__(self, server, endure=False):
        super().__init__(to(server), threads=4, endure=endure, seed=1)
        self.done = [0] * len(self.threads)

    def progress(self):
        return sum(self.done)

    def work(self, client, chance, number):
        key, other = (f"window:{chance.randrange(50)}" for _ in range(2))
        held, id = f"held:{chance.randrange(5)}", f"{chance.randrange(20)}"
        reserved, budget = f"reserved:{number}", f"budget:{chance.randrange(5)}"
        admitted = f"{number}:{self.done[number]}"
        words = PLENTY, *QUOTA
        pipeline = client.pipeline(transaction=chance.random() < 0.3)
        for command in [
            ("SWLIMIT.ALLOW", key, *words),
            ("SWLIMIT.ALLOW", key, *words, "COST", chance.randint(1, 9), "PARTIAL"),
            mallow((key, *words, 2), (other, *words, 3)) if key != other else ("SWLIMIT.RECORD", key, *words),
            ("SWLIMIT.RECORD", other, *words, "AGE", "50ms"),
            ("SWLIMIT.REFUND", other, 1),
            ("SWLIMIT.BUDGET", budget, PLENTY, 2_000_000_000_000, "COST", 2),
            ("SWLIMIT.HOLD", held, 30, f"{chance.randint(20, 60)}s", id, "COST", 2),
            ("SWLIMIT.RENEW", held, f"{chance.randint(20, 60)}s", id),
            ("SWLIMIT.RELEASE", held, str(chance.randrange(20))),
            ("SWLIMIT.ADMIT", 2, reserved, f"by:{reserved}", "HOLD", 9, "30s", admitted, 1, "RATE", *words, 5),
            ("SWLIMIT.SETTLE", 2, reserved, f"by:{reserved}", chance.choice([admitted, "0"]), chance.randint(1, 9)),
            ("EVAL", SCRIPT, 1, key, *words),
            ("FCALL", "limited", 1, other, *words),
            ("SWLIMIT.REFUND", "turns", 1),
        ]:
            pipeline.execute_command(*command)
        pipeline.execute()
        client.execute_command("SWLIMIT.ACQUIRE", "turns", 5, *QUOTA, "10ms")
        self.done[number] += 1


def replicating(server):
    return info(server)[REPLICATING]


@pytest.fixture
def primary(start):
    """A server to which nobody listens, and that has found so."""
    server = start(options=PROMPT | RARE_CRON)
    server.cli("FUNCTION", "LOAD", FUNCTION)
    eventually(lambda: replicating(server), "no")
    return server


def the_same(server, copy):
    """Both hold the same, and some of everything."""
    assert digest(copy) == digest(server)
    there = expiries(server)
    assert expiries(copy) == there
    assert {name.split(b":")[0] for name in there} == {b"window", b"held", b"reserved", b"by", b"budget", b"turns"}


WAYS = {
    "disk": ({"repl-diskless-sync": "no"}, {}),
    "diskless": ({"repl-diskless-sync": "yes"}, {}),
    "delayed": ({"repl-diskless-sync": "yes", "repl-diskless-sync-delay": 2}, {}),
    "into memory": ({"repl-diskless-sync": "yes"}, {"repl-diskless-load": "swapdb"}),
    "second channel of Valkey": ({"dual-channel-replication-enabled": "yes"},) * 2,
    "second channel of Redis": ({"repl-rdb-channel": "yes"},) * 2,
}


@pytest.mark.parametrize("way", [way if way.startswith("disk") else pytest.param(way, marks=pytest.mark.long)
                                 for way in WAYS])
def test_a_replica_comes(primary, start, way):
    """By each way of a full synchronization; then its link is cut, and it goes on from where it was."""
    of_primary, of_replica = WAYS[way]
    if not set(of_primary) <= set(primary.client().config_get()):
        pytest.skip("this server has no such way")
    for setting in of_primary.items():
        primary.cli("CONFIG", "SET", *setting)
    with Everything(primary) as load:
        load.reach(WORK)
        assert replicating(primary) == "no"
        replica = start(options=replica_of(primary, **of_replica))
        synchronised(replica)
        assert replicating(primary) == "yes"
        load.reach(WORK)
        resumed = info(primary, "stats")["sync_partial_ok"]  # a second channel counts, too
        primary.cli("CLIENT", "KILL", "TYPE", "replica")
        eventually(lambda: info(primary, "stats")["sync_partial_ok"] > resumed)
        load.reach(WORK)
    in_step(replica, primary)
    the_same(primary, replica)


@pytest.mark.long
def test_a_replica_leaves_and_comes_back(primary, start):
    """Without a backlog nobody listens, until the replica gets a new copy."""
    replica = start(options=replica_of(primary))
    synchronised(replica)
    primary.cli("CONFIG", "SET", "repl-backlog-ttl", 1)
    for _ in range(2):
        with Everything(primary) as load:
            load.reach(WORK)
            assert replicating(primary) == "yes"
            replica.stop()
            eventually(lambda: replicating(primary), "no")
            load.reach(WORK)
            replica.start()
            synchronised(replica)
            assert replicating(primary) == "yes"
            load.reach(WORK)
        in_step(replica, primary)
        the_same(primary, replica)
    assert info(primary, "stats")["sync_partial_ok"] == 0


def test_a_replica_goes_on_from_a_saved_file(primary, start, tmp_path):
    """The first replica waits for its copy, so that there is a backlog; a save in the foreground says where in it its
    file belongs, and a replica that begins with that file gets only the rest."""
    primary.cli("CONFIG", "SET", "repl-diskless-sync-delay", 3_600)
    with Everything(primary) as load:
        load.reach(WORK)
        start(options=replica_of(primary))
        eventually(lambda: info(primary, "replication")["connected_slaves"], 1)
        assert replicating(primary) == "no"
        assert primary.cli("SAVE") == "OK"
        assert replicating(primary) == "yes"
        shutil.copy(primary.folder / "dump.rdb", tmp_path)
        load.reach(WORK)
        replica = start(options=replica_of(primary), folder=tmp_path)
        synchronised(replica)
        load.reach(WORK)
    assert info(primary, "stats")["sync_partial_ok"] == 1, primary.log
    in_step(replica, primary)
    the_same(primary, replica)


def is_rewritten(server):
    """Wait until no rewrite is under way, nor to come."""
    eventually(lambda: [info(server, "persistence")[f"aof_rewrite_{state}"] for state in ("scheduled", "in_progress")],
               [0, 0])


SWITCHES = {
    "alone": ("CONFIG SET appendonly yes",),
    "in a transaction": ("MULTI", "CONFIG SET appendonly yes", "EXEC"),
    "while saving": ("BGSAVE", "CONFIG SET appendonly yes"),
}


@pytest.mark.parametrize("preamble, switch", [
    ("yes", "alone"),
    *(pytest.param(*case, marks=pytest.mark.long)
      for case in [("no", "alone"), ("yes", "in a transaction"), ("yes", "while saving")])])
def test_an_append_only_file_is_switched_on(primary, preamble, switch):
    """What the file holds is what the server held, and again after a rewrite; switched off, nobody listens."""
    primary.cli("CONFIG", "SET", "aof-use-rdb-preamble", preamble)
    for then in [(), ("BGREWRITEAOF",)]:
        with Everything(primary) as load:
            load.reach(WORK)
            assert replicating(primary) == "no"
            feed(primary, *SWITCHES[switch])
            is_rewritten(primary)
            assert replicating(primary) == "yes"
            load.reach(WORK)
            feed(primary, *then)
            load.reach(WORK)
        is_rewritten(primary)
        before = digest(primary), expiries(primary)
        assert primary.cli("DEBUG", "LOADAOF") == "OK"
        assert (digest(primary), expiries(primary)) == before
        primary.cli("CONFIG", "SET", "appendonly", "no")
        eventually(lambda: replicating(primary), "no")


def test_a_replica_is_promoted_and_followed(primary, start):
    """A replica takes over when it is asked to, others follow it at once, and the old primary follows it, too."""
    replica = start(options=replica_of(primary) | RARE_CRON)
    second = start(options=replica_of(replica) | RARE_CRON)
    synchronised(second)
    with Everything(primary, endure=True) as load:
        load.reach(WORK)
        # The primary knows a little later than the replica that they are in step.
        eventually(lambda: primary.cli("FAILOVER", "TO", "127.0.0.1", replica.port), "OK")
        eventually(lambda: info(replica, "replication")["role"], "master", log=lambda: primary.log)
        assert replicating(replica) == "yes"
    synchronised(primary)
    with Everything(replica) as load:
        load.reach(WORK)
    for copy in (primary, second):
        in_step(copy, replica)
        the_same(replica, copy)


def test_a_replica_is_made_a_primary(primary, start):
    """Nobody listened to it before it was a replica, nor has its cron run since: who follows it goes on from where he
    was."""
    other, second = start(options=PROMPT), start(options=PROMPT)
    follow(second, other)
    follow(primary, other)
    primary.cli("REPLICAOF", "NO", "ONE")
    primary.cli("FUNCTION", "LOAD", "REPLACE", FUNCTION)
    second.cli("REPLICAOF", "127.0.0.1", primary.port)
    with Everything(primary) as load:
        load.reach(WORK)
        synchronised(second)
        load.reach(WORK)
    assert info(primary, "stats")["sync_partial_ok"] == 1
    in_step(second, primary)
    the_same(primary, second)


def test_a_node_of_a_cluster_always_sends_effects(start):
    """Its slots may migrate."""
    server = start(options=RARE_CRON | {"cluster-enabled": "yes"})
    before = info(server, "server")["uptime_in_seconds"]
    eventually(lambda: info(server, "server")["uptime_in_seconds"] >= before + 3)
    assert replicating(server) == "yes"
