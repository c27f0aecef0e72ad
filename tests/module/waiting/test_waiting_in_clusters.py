"""Waiting on a node that can no longer grant: the slot has moved, or another node is the master now."""

import itertools

import pytest
from redis.crc import key_slot

from support.cli import ask
from support.cluster import Cluster
from support.resp import Connection, Failed
from support.waiters import BLOCKED, PATIENT, waiters
from support.waiting import eventually

DAY = ("1d", "1h")


@pytest.fixture(scope="module")
def shared_cluster(starting):
    with starting() as start:
        yield Cluster(start, options={"cluster-require-full-coverage": "no"})


@pytest.fixture
def cluster(shared_cluster):
    shared_cluster.settle()
    yield shared_cluster
    for server in shared_cluster.servers:
        assert server.alive, server.log
        server.cli("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


@pytest.fixture
def moving(cluster):
    """A node, another one, and a key of the first one's whose slot is to move; a new key each time."""
    source, target = cluster.masters()[:2]
    (first, last), *_ = cluster.slots(source)
    key = next(name for name in (f"key:{number}" for number in itertools.count())
               if first <= key_slot(name.encode()) <= last and key_slot(name.encode()) not in USED)
    USED.add(key_slot(key.encode()))
    return source, target, key


USED = set()


def as_allow(server, key):
    """What ALLOW gets here: an error."""
    with Connection(server.port) as connection:
        error = connection.call("SWLIMIT.ALLOW", key, 5, *DAY)
    assert isinstance(error, Failed)
    return error


def setslot(servers, slot, *words):
    for server in servers:
        assert server.cli("CLUSTER", "SETSLOT", slot, *words) == "OK"


def test_a_replica_takes_over(cluster, moving):
    """CLUSTER FAILOVER: on the old master everybody is sent away, and nothing is granted there any more.

    First of all tests: slots that others have moved by hand may cost the replica the election."""
    source, _, key = moving
    heir = cluster.replica(source)
    with waiters(source) as wait:
        source.cli("SWLIMIT.BLOCK", key, BLOCKED)
        queue = [wait(key, 5, *DAY, PATIENT) for _ in range(3)]
        assert heir.cli("CLUSTER", "FAILOVER") == "OK"
        eventually(lambda: heir in cluster.masters(), log=lambda: heir.log[-2000:])
        answers = [waiter.answer() for waiter in queue]
        assert all(answer.startswith("UNBLOCKED ") for answer in answers), answers
        again = wait(key, 5, *DAY, PATIENT, on=heir)
        heir.cli("SWLIMIT.UNBLOCK", key)
        assert again.answer()[:3] == [1, 5, 4]
    cluster.settle()


def test_a_slot_that_is_leaving(cluster, moving):
    """Its key has left already: ASK. Somebody who waits for a key that is still here is granted."""
    source, target, key = moving
    slot = key_slot(key.encode())
    stays = f"{{{key}}}"
    with waiters(source) as wait:
        for name in (key, stays):
            source.cli("SWLIMIT.RECORD", name, 5, *DAY)
            source.cli("SWLIMIT.BLOCK", name, BLOCKED)
        queue = [wait(key, 5, *DAY, PATIENT) for _ in range(3)]
        staying = wait(stays, 5, *DAY, PATIENT)
        setslot([target], slot, "IMPORTING", cluster.id(source))
        setslot([source], slot, "MIGRATING", cluster.id(target))
        assert source.cli("MIGRATE", "127.0.0.1", target.port, key, 0, 5000) == "OK"
        answers = [waiter.answer() for waiter in queue]
        assert answers == [as_allow(source, key)] * 3 == [Failed(f"ASK {slot} 127.0.0.1:{target.port}")] * 3
        assert ask(source, "SWLIMIT.UNBLOCK", stays) == [1]
        assert staying.answer()[:3] == [1, 5, 3]
        assert source.cli("MIGRATE", "127.0.0.1", target.port, stays, 0, 5000) == "OK"
        setslot([target, source], slot, "NODE", cluster.id(target))
        assert source.cli("EXISTS", key).startswith(f"MOVED {slot} ")
    with waiters(target) as wait:
        waiter = wait(key, 5, *DAY, PATIENT)
        target.cli("SWLIMIT.UNBLOCK", key)
        assert waiter.answer()[:3] == [1, 5, 3]


@pytest.mark.parametrize("coverage, error", [("no", "CLUSTERDOWN Hash slot not served"),
                                             ("yes", "CLUSTERDOWN ")])
def test_a_slot_that_nobody_serves(cluster, moving, coverage, error):
    """In a cluster that is down, some servers themselves send away everybody who waits, and say so."""
    source, target, key = moving
    with waiters(source) as wait:
        source.cli("SWLIMIT.BLOCK", key, "1s")
        queue = [wait(key, 5, *DAY, "30s") for _ in range(2)]
        source.cli("CONFIG", "SET", "cluster-require-full-coverage", coverage)
        slot = key_slot(key.encode())
        assert source.cli("CLUSTER", "DELSLOTS", slot) == "OK"
        assert all(waiter.answer().startswith(error) for waiter in queue)
    assert source.cli("CLUSTER", "ADDSLOTS", slot) == "OK"
    source.cli("CONFIG", "SET", "cluster-require-full-coverage", "no")


@pytest.mark.parametrize("end, endpoint", [("turn", "ip"), ("timeout", "ip"), ("unblocked", "ip"),
                                           ("turn", "hostname"), ("turn", "unknown-endpoint")])
def test_a_slot_that_has_moved(cluster, moving, end, endpoint):
    """The node that no longer has it sends everybody to the one that does, and counts nothing."""
    source, target, key = moving
    source.cli("CONFIG", "SET", "cluster-preferred-endpoint-type", endpoint)  # the fixture puts it back
    with waiters(source) as wait:
        source.cli("SWLIMIT.BLOCK", key, "1s")
        waiter = wait(key, 5, *DAY, "1100ms")
        if end != "turn":
            source.cli("SWLIMIT.BLOCK", key, BLOCKED)
        slot = key_slot(key.encode())
        with Connection(source.port) as connection:
            commands = [("DELSLOTS", slot), ("SETSLOT", slot, "NODE", cluster.id(target))]
            assert connection.calls([("CLUSTER", *words) for words in commands]) == [b"OK", b"OK"]
        setslot([target], slot, "NODE", cluster.id(target))
        target.cli("CLUSTER", "BUMPEPOCH")
        if end == "unblocked":
            source.cli("CLIENT", "UNBLOCK", waiter.id)
        host = {"ip": "127.0.0.1", "hostname": "?", "unknown-endpoint": ""}[endpoint]
        assert waiter.answer() == Failed(f"MOVED {slot} {host}:{target.port}") == as_allow(source, key)


def test_slots_that_move_atomically(cluster, moving):
    source, target, key = moving
    with source.client() as client:
        if int(client.info("server").get("valkey_version", "0").split(".")[0]) < 9:
            pytest.skip("moving slots atomically is new in Valkey 9")
    slot = key_slot(key.encode())
    with waiters(source) as wait:
        source.cli("SWLIMIT.BLOCK", key, BLOCKED)
        queue = [wait(key, 5, *DAY, PATIENT) for _ in range(3)]
        assert source.cli("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id(target)) == "OK"
        assert [waiter.answer() for waiter in queue] == [Failed(f"MOVED {slot} 127.0.0.1:{target.port}")] * 3
    with waiters(target) as wait:
        waiter = wait(key, 5, *DAY, PATIENT)
        target.cli("SWLIMIT.UNBLOCK", key)
        assert waiter.answer()[:3] == [1, 5, 4]
