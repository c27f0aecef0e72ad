"""Clusters of three masters and three replicas: routing, slots that move under load, and masters that die."""

import itertools

import pytest
import redis
from redis.crc import key_slot

from support.cluster import Cluster
from support.commands import mallow
from support.contents import same_data
from support.hold_load import HoldLoad, all_end, kept
from support.load import LIMIT, Load, nothing_lost, only_the_rest, total
from support.waiting import eventually

pytestmark = pytest.mark.as_run

NOW = 1_800_000_000_123


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


@pytest.fixture(scope="module")
def shared_cluster(starting):
    with starting() as start:
        yield Cluster(start)


@pytest.fixture
def cluster(shared_cluster):
    """A whole and empty cluster, with the configuration that it started with."""
    shared_cluster.settle()
    for server in shared_cluster.masters():
        server.client().flushall()
    yield shared_cluster
    for server in shared_cluster.servers:
        assert server.alive, server.log
        server.client().config_set("swlimit.max-subintervals", 4096)


def names(first, last, count, prefix):
    """So many names whose slots are all in a range."""
    inside = (name for number in itertools.count()
              if first <= key_slot((name := f"{prefix}:{number}").encode()) <= last)
    return list(itertools.islice(inside, count))


def keys_in(first, last):
    """Single keys, and pairs of keys with the same hash tag, whose slots are all in a range."""
    pairs = [(f"{{{tag}}}:left", f"{{{tag}}}:right") for tag in names(first, last, 8, "tag")]
    return names(first, last, 16, "single"), pairs


def test_clients_route_every_command(cluster, report):
    """A cluster-aware client finds the node of every command, MALLOW with hash tags included, from what the server
    says about the commands; replicas answer PEEK."""
    client = cluster.connect()
    for number in range(100):
        tag = f"{{user:{number}}}"
        assert client.execute_command("SWLIMIT.ALLOW", tag, 10, 60, 5, "AT", NOW)[:3] == [1, 10, 9]
        assert client.execute_command("SWLIMIT.RECORD", tag, 10, 60, 5, "COST", 2, "AT", NOW)[:3] == [2, 10, 7]
        assert client.execute_command("SWLIMIT.REFUND", tag, 1, "AT", NOW) == 1
        assert client.execute_command("SWLIMIT.MALLOW", 2, tag, f"{tag}:all", 10, 60, 5, 3, 10, 60, 5, 1,
                                      "AT", NOW)[0] == 1
        assert client.execute_command("SWLIMIT.PEEK", tag, 10, 60, 5, "AT", NOW)[:3] == [1, 10, 5]
        assert total(client, tag) == 5
    sizes = [master.client().dbsize() for master in cluster.masters()]
    assert sum(sizes) == 200 and min(sizes) > 20

    master = cluster.masters()[0]
    replica = cluster.replica(master)
    same_data(master, replica)
    for key in master.client().scan_iter("*:all"):
        reader = replica.client(single_connection_client=True)
        reader.execute_command("READONLY")
        assert reader.execute_command("SWLIMIT.PEEK", key, 10, 60, 5, "AT", NOW)[:3] == [1, 10, 9]
        with pytest.raises(redis.exceptions.MovedError):
            reader.execute_command("SWLIMIT.ALLOW", key, 10, 60, 5, "AT", NOW)
    report(f"600 commands on 200 keys on {sizes}")


def test_mallow_is_routed_by_all_its_keys(cluster):
    """Keys of another node are sent there (MOVED), by the first of them; the node that has that one refuses keys of
    several slots (CROSSSLOT), wherever they stand. A cluster-aware client refuses them itself."""
    tag = "{user}"
    own = next(node for node in cluster.masters() if any(first <= key_slot(b"user") <= last for first, last in
                                                         cluster.slots(node)))
    limit = (10, 60, 5, 1)
    same, spread = mallow((f"{tag}:a", *limit), (f"{tag}:b", *limit)), mallow((f"{tag}:a", *limit), ("a", *limit))
    several = [spread, mallow(("a", *limit), ("b", *limit)), mallow(("b", *limit), ("a", *limit))]
    for node in cluster.servers:
        refusals = []
        with node.client() as client:
            for words in several:
                refusal = redis.exceptions.ClusterCrossSlotError, redis.exceptions.MovedError
                with pytest.raises(refusal) as refused:
                    client.execute_command(*words)
                refusals.append(refused.type)
            if node is own:
                assert refusals[0] is redis.exceptions.ClusterCrossSlotError
            else:
                with pytest.raises(redis.exceptions.MovedError, match=str(own.port)):
                    client.execute_command(*same)
    client = cluster.connect()
    with pytest.raises(redis.exceptions.RedisClusterException):
        client.execute_command(*spread)
    assert client.execute_command(*same)[0] == 1
    assert [total(own.client(), f"{tag}:{name}") for name in "ab"] == [1, 1]


@pytest.mark.parametrize("name", ["", "HAS"], ids=["forbidden", "renamed"])
def test_several_keys_where_the_server_cannot_be_asked_for_their_slot(start, name):
    """Whether the slot is being moved is not known, so nothing is counted. A single key needs no question."""
    node = start(options={"cluster-enabled": "yes", "rename-command": ("EXISTS", name)})
    client = node.client(single_connection_client=True)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), True)
    limit = (10, 60, 5, 1)
    with pytest.raises(redis.ResponseError, match="cannot check the keys' slot: EXISTS must not be renamed"):
        client.execute_command(*mallow(("{user}:a", *limit), ("{user}:b", *limit)))
    assert client.dbsize() == 0
    assert client.execute_command(*mallow(("{user}:a", *limit)))[0] == 1


def moved_under_load(cluster, source, target, keys, seed, move):
    """Move the slots of keys under load with `move()`; what was granted meanwhile is at the target, to the unit."""
    with ClusterLoad(cluster, *keys, seed=seed, threads=4) as load:
        load.reach(200)
        before = load.progress()
        move()
        during = load.progress() - before
        load.reach(200)
    assert during > 0, "nothing was granted while the slots moved"
    target_client = target.client()
    assert nothing_lost(load, lambda key: target_client) == 0
    assert source.client().dbsize() == 0
    same_data(target, cluster.replica(target))
    return load, during


def reshard(cluster, report, seed):
    source, target = cluster.masters()[:2]
    first, count = cluster.slots(source)[0][0], 60  # resharding takes the first slots first

    def move():
        output = source.cli(flags=[
            "--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", cluster.id(source), "--cluster-to",
            cluster.id(target), "--cluster-slots", str(count), "--cluster-yes"])
        assert f"Moving slot {first + count - 1} " in output, output[-2000:]

    load, during = moved_under_load(cluster, source, target, keys_in(first, first + count - 1), seed, move)
    report(f"{count} slots with {len(load.keys)} keys resharded, {during} units granted meanwhile, "
           f"{load.acknowledged.total()} in all: 0 lost, 0 too many; {dict(load.failures) or 'no'} failed requests")


def migrate(source, target_id, first, last):
    """Let Valkey move slots by itself, and wait until it says it has."""
    client = source.client()
    assert client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", target_id) == b"OK"

    def done():
        newest = client.execute_command("CLUSTER", "GETSLOTMIGRATIONS")[0]
        newest = dict(zip(newest[::2], newest[1::2]))
        assert newest[b"state"] not in (b"failed", b"canceled"), newest
        return newest[b"state"] == b"success"
    eventually(done, seconds=30)


def needs_atomic_migration(cluster):
    version = cluster.servers[0].client().info("server").get("valkey_version", "0")
    if int(version.split(".")[0]) < 9:
        pytest.skip("moving slots atomically is new in Valkey 9")


def migrate_atomically(cluster, report, seed):
    source, target = cluster.masters()[:2]
    first, last = cluster.slots(source)[-1]
    first = max(first, last - 299)
    load, during = moved_under_load(cluster, source, target, keys_in(first, last), seed,
                                    lambda: migrate(source, cluster.id(target), first, last))
    report(f"{last - first + 1} slots with {len(load.keys)} keys migrated atomically, {during} units granted "
           f"meanwhile, {load.acknowledged.total()} in all: 0 lost, 0 too many; "
           f"{dict(load.failures) or 'no'} failed requests")


def test_slots_are_resharded_under_load(cluster, report):
    """`redis-cli --cluster reshard` moves slots whose keys are in use: every granted unit arrives, none twice."""
    reshard(cluster, report, 1)


def test_slots_are_migrated_atomically_under_load(cluster, report):
    """The same with Valkey 9's CLUSTER MIGRATESLOTS."""
    needs_atomic_migration(cluster)
    migrate_atomically(cluster, report, 2)


def test_migrated_windows_are_obeyed_whatever_the_config_of_the_target(cluster, report):
    """CLUSTER MIGRATESLOTS to a node, and its replica, whose max-subintervals would refuse the windows: they arrive."""
    needs_atomic_migration(cluster)
    source, target = cluster.masters()[:2]
    first, last = cluster.slots(source)[-1]
    first = max(first, last - 99)
    keys = names(first, last, 20, "wide")
    client = source.client()
    for number, key in enumerate(keys):
        for ago in range(0, 3_600_000, 600_000):
            client.execute_command("SWLIMIT.RECORD", key, LIMIT, "1h", "1s", "COST", 1 + number, "AT", NOW - ago)
    digest = same_data(source)
    for server in (target, cluster.replica(target)):
        server.client().config_set("swlimit.max-subintervals", 4)
    with pytest.raises(redis.exceptions.ResponseError, match="max-subintervals"):
        target.client().execute_command("SWLIMIT.ALLOW", *names(*cluster.slots(target)[-1], 1, "own"), 1, "1h", "1s")
    migrate(source, cluster.id(target), first, last)
    assert same_data(target, cluster.replica(target)) == digest
    assert [total(target.client(), key) for key in keys] == [6 * (1 + number) for number in range(len(keys))]
    report(f"{len(keys)} windows of 3600 subintervals arrived where 4 are allowed")


def blocked_until(client, key):
    fields = client.execute_command("SWLIMIT.INFO", key)
    return fields[fields.index(b"blocked") + 1]


@pytest.mark.parametrize("how", ["resharded", "atomically"])
def test_blocks_move_with_their_slots_and_survive_a_failover(cluster, report, how):
    """Blocks set by hand on keys nobody has used, and those that denials began, are at the target and its replica, and
    still there when that one takes over."""
    if how == "atomically":
        needs_atomic_migration(cluster)
    source, target = cluster.masters()[:2]
    first, last = cluster.slots(source)[0]
    last = min(first + 19, last)
    alone, begun = names(first, last, 10, "alone"), names(first, last, 10, "begun")
    client = source.client()
    until = {key: client.execute_command("SWLIMIT.BLOCK", key, "1h") for key in alone}
    for key in begun:
        assert client.execute_command("SWLIMIT.RECORD", key, 1, "2h", "1m", "COST", 2, "BLOCK", "1h")[0] == 0
        until[key] = blocked_until(client, key)
    digest = same_data(source)
    if how == "atomically":
        migrate(source, cluster.id(target), first, last)
    else:
        source.cli(flags=["--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", cluster.id(source),
                          "--cluster-to", cluster.id(target), "--cluster-slots", str(last - first + 1),
                          "--cluster-yes"])
    heir = cluster.replica(target)
    assert client.dbsize() == 0
    if how == "atomically":  # MIGRATE tells how long a key has left, which its way takes a little of
        assert same_data(target, heir) == digest
    same_data(target, heir)
    heir.client().execute_command("CLUSTER", "FAILOVER")
    eventually(lambda: heir in cluster.masters(), seconds=30)
    for node in (heir, target):
        eventually(lambda: cluster.role(node).get("master_link_status", "up"), "up")
    client = heir.client()
    for key, instant in until.items():
        assert blocked_until(client, key) == instant
        granted, _, remaining, retry, _ = client.execute_command("SWLIMIT.ALLOW", key, 9, "2h", "1m", "BLOCK", "2h")
        assert (granted, remaining) == (0, 0) and 0 < retry < 3_600_000
    report(f"{len(until)} blocks {how}: each at the target and its heir, to the ms")


def again_and_again(cluster, report, times, what):
    for seed in range(times):
        cluster.settle()
        for server in cluster.masters():
            server.client().flushall()
        what(cluster, report, seed)


@pytest.mark.long
def test_slots_are_resharded_over_and_over(cluster, report):
    """The same several times, each with other slots."""
    again_and_again(cluster, report, 10, reshard)


@pytest.mark.long
def test_slots_are_migrated_atomically_over_and_over(cluster, report):
    """The same with CLUSTER MIGRATESLOTS."""
    needs_atomic_migration(cluster)
    again_and_again(cluster, report, 10, migrate_atomically)


def die(cluster, report, seed):
    """Kill the master of keys under load; its replica takes over. Then bring it back, as a replica."""
    cluster.settle()
    victim = cluster.masters()[0]
    heir = cluster.replica(victim)
    first, last = cluster.slots(victim)[-1]
    single, pairs = keys_in(first, last)
    tight = names(first, last, 2, "tight")
    limits = dict.fromkeys(tight, 60)
    with ClusterLoad(cluster, [*single, *tight], pairs, limits=limits, wait=True, seed=seed, threads=4) as load:
        load.reach(500)
        victim.kill()
        eventually(lambda: heir in cluster.masters(), seconds=30, log=lambda: heir.log[-2000:])
        cluster.settle(without=[victim])
        victim.start()  # it is the heir's replica now, and WAIT has somebody to wait for again
        cluster.settle()
        load.reach(300)
    assert load.failures, "nobody noticed"
    client = heir.client()
    unacknowledged = nothing_lost(load, lambda key: client)
    only_the_rest(client, limits)
    same_data(heir, victim)
    report(f"{load.acknowledged.total()} units acknowledged around the death of a master: 0 lost; "
           f"{unacknowledged} unacknowledged ones were kept")


def test_a_replica_takes_over_without_forgetting_limits(cluster, report):
    """A master is killed under load: its replica takes over with every grant that WAIT confirmed, limits go on where
    they were, and the master comes back as a replica with the same data."""
    die(cluster, report, 1)


@pytest.mark.long
def test_holders_while_slots_move_and_masters_die(cluster, report):
    """Slots are resharded, then a master dies, under holders: never more of them live than the limit, those that WAIT
    confirmed go on holding, and nothing is held for longer than its ttl."""
    source, target = cluster.masters()[:2]
    first = cluster.slots(source)[0][0]
    keys = names(first, first + 9, 3, "seats")
    with HoldLoad(cluster.connect, keys, ttl=15.0, wait=True, threads=4) as load:
        load.reach(100)
        source.cli(flags=["--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", cluster.id(source),
                          "--cluster-to", cluster.id(target), "--cluster-slots", "10", "--cluster-yes"])
        load.reach(100)
        heir = cluster.replica(target)
        target.kill()
        eventually(lambda: heir in cluster.masters(), seconds=30, log=lambda: heir.log[-2000:])
        relied_on = kept(load, lambda key: heir.client())
        target.start()
        cluster.settle()
        load.reach(100)
    client = heir.client(socket_timeout=60)
    all_end(load, lambda key: client)
    report(f"{load.granted} holds while slots moved and a master died, {relied_on} relied on at its death")


@pytest.mark.long
def test_masters_die_again_and_again(cluster, report):
    """The same several times, back and forth."""
    again_and_again(cluster, report, 6, die)
