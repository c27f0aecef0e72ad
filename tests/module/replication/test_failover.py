"""Replication: replicas hold what their primary holds, and one that takes over forgets nothing it has acknowledged."""

import random
import time

import pytest

from support.clock import clock_of
from support.contents import agrees, same_data
from support.load import LIMIT, Load, nothing_lost, only_the_rest, to
from support.replication import PROMPT, replica_of, synchronised
from support.waiting import eventually

pytestmark = pytest.mark.as_run

SINGLE = [f"single:{number}" for number in range(20)]
PAIRS = [(f"left:{number}", f"right:{number}") for number in range(10)]
TIGHT = ("tight:a", "tight:b")
MINUTES = 60
FEW = ("max-subintervals", 4)  # far fewer than the tests use


def mixed(client, seed, commands=300):
    """Every command that changes something, on keys of all sorts, with instants other than the servers' clocks."""
    chance = random.Random(seed)
    now = int(time.time() * 1000)
    quotas = [("60", "5"), ("1h", "1m"), ("1h", "1s"), ("1d", "1d"), ("500s", "250ms")]
    pipeline = client.pipeline(transaction=False)
    for _ in range(commands):
        key, other = (f"mixed:{number}" for number in chance.sample(range(30), 2))
        quota = chance.choice(quotas) if chance.random() < 0.1 else quotas[int(key[6:]) % len(quotas)]
        at = chance.choice([(), (), ("AT", now - chance.randint(0, 200_000)), ("AT", now + chance.randint(0, 20_000))])
        pipeline.execute_command(*chance.choice([
            ("SWLIMIT.ALLOW", key, 50, *quota, "COST", chance.randint(1, 9), *at),
            ("SWLIMIT.ALLOW", key, 50, *quota, "COST", chance.randint(1, 99), "PARTIAL", "STRICT", *at),
            ("SWLIMIT.RECORD", key, 50, *quota, "COST", chance.randint(1, 9), *at),
            ("SWLIMIT.REFUND", key, chance.randint(1, 20), *at),
            ("SWLIMIT.RECORD", key, 50, *quota, "COST", chance.randint(1, 9), "BLOCK", "10m", *at),
            chance.choice([("SWLIMIT.BLOCK", key, f"{chance.randint(400, 800)}s", *at), ("SWLIMIT.UNBLOCK", key, *at)]),
            ("SWLIMIT.MALLOW", 2, key, other, 90, *quota, 2, 90, "1h", "1m", 3, *at),
        ]))
    pipeline.execute()


def fail_over(start, skewed, skew, seed, units):
    """Kill a primary under load whose replica's clock is off by `skew` seconds, promote that, compare, and go on."""
    primary = start(options=PROMPT, env=skewed(0))
    replica = start(options=replica_of(primary), env=skewed(skew), module_args=FEW)
    synchronised(replica)
    assert abs(clock_of(replica) - clock_of(primary) - skew) < 2

    limits = dict.fromkeys(TIGHT, 200)
    with Load(to(primary), [*SINGLE, *TIGHT], PAIRS, limits, batch=16, wait=True, seed=seed) as load:
        load.reach(units)
        primary.kill()
        eventually(lambda: load.failures)
    client = replica.client()
    client.replicaof("NO", "ONE")
    unacknowledged = nothing_lost(load, lambda key: client)
    client.config_set("swlimit.max-subintervals", 4096)
    only_the_rest(client, limits)  # all counts are within the last hour by either clock
    client.close()
    for server in (replica, primary):
        server.close()
    return load.acknowledged.total(), unacknowledged


@pytest.mark.parametrize("skew", [5 * MINUTES, -5 * MINUTES], ids=["ahead", "behind"])
def test_a_promoted_replica_holds_every_grant_it_acknowledged(start, skewed, report, skew):
    """A primary is killed under load, and its replica promoted: it holds every grant that WAIT has confirmed, and no
    limit is passed afterwards, with a clock that is minutes off and a config that would refuse the windows used."""
    units, unacknowledged = fail_over(start, skewed, skew, 1, 3000)
    report(f"{units} units acknowledged, 0 lost; {unacknowledged} unacknowledged ones were kept")


def test_a_failover_that_is_asked_for_loses_nothing(start, report):
    """An upgrade asks for one: under load the primary hands over, and its replica holds every grant, although nobody
    waited for replicas."""
    primary = start(options=PROMPT)
    replica = start(options=replica_of(primary))
    synchronised(replica)
    limits = dict.fromkeys(TIGHT, 200)
    with Load(to(primary), [*SINGLE, *TIGHT], PAIRS, limits, batch=16) as load:
        load.reach(1000)
        eventually(lambda: primary.cli("FAILOVER"), "OK")
        eventually(lambda: load.failures)
    client = replica.client()
    assert client.info("replication")["role"] == "master"
    unacknowledged = nothing_lost(load, lambda key: client)
    only_the_rest(client, limits)
    report(f"{load.acknowledged.total()} units acknowledged, 0 lost; {unacknowledged} unacknowledged ones were kept")


@pytest.mark.long
@pytest.mark.parametrize("skew", [0, 20 * MINUTES, -20 * MINUTES], ids=["same", "ahead", "behind"])
def test_many_promoted_replicas_hold_every_grant(start, skewed, report, skew):
    """The same again and again."""
    times, acknowledged = 25, 0
    for seed in range(times):
        acknowledged += fail_over(start, skewed, skew, seed, 300 + 900 * (seed % 4))[0]
    report(f"{times} promotions, {acknowledged} units acknowledged, 0 lost")


def test_replicas_of_replicas_hold_the_same_whatever_their_clocks_and_configs(start, skewed, report):
    """Every kind of change under load reaches a replica and a replica of that, whose clocks are minutes off in both
    directions and whose configs would refuse the windows; the digests of all three are equal, before and after a full
    resynchronisation. Promoted, the last of the chain still holds them."""
    primary = start(options=PROMPT)
    middle = start(options=replica_of(primary), env=skewed(5 * MINUTES), module_args=FEW)
    synchronised(middle)
    last = start(options=replica_of(middle), env=skewed(-5 * MINUTES), module_args=FEW)
    synchronised(last)

    commands = 0
    with Load(to(primary), SINGLE, PAIRS, threads=4, batch=16) as load:
        for seed in range(10):
            mixed(primary.client(), seed)
            commands += 300
        load.reach(500)
    digest = same_data(primary, middle, last)
    assert nothing_lost(load, lambda key: last.client()) == 0

    late = start(options=replica_of(last), env=skewed(10 * MINUTES), module_args=FEW)
    synchronised(late)
    assert same_data(primary, late) == digest
    last.client().replicaof("NO", "ONE")
    assert same_data(primary, last) == digest
    report(f"{commands} mixed commands and {load.acknowledged.total()} units of load: 4 equal digests")


def test_an_interrupted_replica_resumes_where_it_was(start, report):
    """The link to a replica breaks again and again under load: each time the replica resumes from the backlog, without
    a full copy, and holds the same data in the end."""
    primary = start(options=PROMPT | {"repl-backlog-size": "64mb"})
    replica = start(options=replica_of(primary))
    synchronised(replica)
    client = primary.client()
    breaks = 3
    with Load(to(primary), SINGLE, PAIRS, threads=4) as load:
        for done in range(breaks):
            load.reach(300)
            assert client.execute_command("CLIENT", "KILL", "TYPE", "replica") >= 1
            eventually(lambda: client.info("stats")["sync_partial_ok"], done + 1)
            synchronised(replica)
        load.reach(300)
    same_data(primary, replica)
    assert nothing_lost(load, lambda key: replica.client()) == 0
    stats = client.info("stats")
    assert (stats["sync_full"], stats["sync_partial_ok"], stats["sync_partial_err"]) in [(1, breaks, 0), (1, breaks, 1)]
    report(f"{breaks} broken links, {stats['sync_partial_ok']} partial resynchronisations, "
           f"{load.acknowledged.total()} units, 0 lost")


def test_replication_goes_on_without_disks(start, skewed, report):
    """With `repl-diskless-sync yes` and `repl-diskless-load swapdb`, a full copy goes from socket to memory under load.
    A copy that is broken off in the middle of a window leaves a replica alive with the data it had, and the next one
    succeeds."""
    primary = start(options=PROMPT | {"repl-diskless-sync": "yes"})
    client = primary.client()
    for seed in range(20):
        mixed(client, seed)
    replica = start(options=replica_of(primary, **{"repl-diskless-load": "swapdb"}), env=skewed(-5 * MINUTES),
                    module_args=FEW)
    synchronised(replica)
    assert "receiving streamed RDB" in replica.log
    old = same_data(primary, replica)
    inside = replica.client()

    inside.replicaof("NO", "ONE")  # after which it has a history of its own, and needs a full copy
    bulk = client.pipeline(transaction=False)
    for number in range(5000):
        bulk.execute_command("SWLIMIT.RECORD", f"bulk:{number}", LIMIT, "1h", "1m", "COST", 1 + number)
    bulk.execute()
    client.config_set("rdb-key-save-delay", 1000)  # microseconds: the copy takes seconds
    inside.replicaof("127.0.0.1", primary.port)
    eventually(lambda: replica.log.count("receiving streamed RDB"), 2)
    client.config_set("rdb-key-save-delay", 0)
    client.config_set("repl-diskless-sync-delay", 3)
    assert client.execute_command("CLIENT", "KILL", "TYPE", "replica") >= 1
    eventually(lambda: "Failed trying to load the" in replica.log, log=lambda: replica.log)
    assert same_data(replica, seconds=1) == old
    client.config_set("repl-diskless-sync-delay", 0)
    synchronised(replica)
    with Load(to(primary), SINGLE, PAIRS, threads=4, batch=16) as load:
        load.reach(500)
    assert same_data(primary, replica) != old
    assert nothing_lost(load, lambda key: inside) == 0
    assert agrees(replica) == agrees(primary) > 5000
    assert replica.alive
    report(f"2 copies from socket to memory of up to {client.dbsize()} keys, one broken off: equal digests")
