"""Waits that end otherwise than by a grant: by others, by errors, by a server that must not write now."""

import pytest

from support.cli import ask
from support.contents import idle, info, same_data
from support.replication import PROMPT, in_step, replica_of, synchronised
from support.resp import Connection, Failed
from support.waiters import BLOCKED, PATIENT, waiters, waiting
from support.waiting import eventually

DAY = ("1d", "1h")
DENIED = {"denied": 1, "denied_units": 1}


@pytest.fixture
def queue(server, wait):
    """Three who wait for `k`, which is blocked; two fit when it no longer is."""
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    return [wait("k", 2, *DAY, PATIENT) for _ in range(3)]


def test_unblocked_as_by_a_timeout(server, counted, queue):
    assert server.cli("CLIENT", "UNBLOCK", queue[1].id) == "1"
    granted, limit, remaining, retry_after, reset_after = queue[1].answer()
    assert [granted, limit, remaining] == [0, 2, 0] and 3_500_000 < retry_after <= reset_after <= 3_600_000
    assert server.cli("CLIENT", "UNBLOCK", queue[1].id, "TIMEOUT") == "0", "it waits no longer"
    assert counted() == DENIED | {"blocked": 1, "waiting": 2}
    assert queue[1].connection.call("PING") == b"PONG"
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert [queue[0].answer()[0], queue[2].answer()[0]] == [1, 1]


def test_unblocked_by_an_error(server, counted, queue):
    assert server.cli("CLIENT", "UNBLOCK", queue[0].id, "ERROR") == "1"
    assert queue[0].answer() == Failed("UNBLOCKED client unblocked via CLIENT UNBLOCK")
    assert counted() == DENIED | {"blocked": 1, "waiting": 2}
    assert queue[0].connection.call("PING") == b"PONG"


@pytest.mark.parametrize("end", ["kill", "close"])
def test_gone(server, counted, queue, end):
    """Those behind go on, with units that those who are gone have not taken."""
    if end == "kill":
        assert server.cli("CLIENT", "KILL", "ID", queue[0].id) == "1"
    else:
        queue[0].close()
    eventually(lambda: waiting(server), 2)
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert [waiter.answer()[2] for waiter in queue[1:]] == [1, 0]
    assert counted() == DENIED | {"blocked": 1, "granted": 2, "granted_units": 2, "acquired": 2}


@pytest.mark.parametrize("end", [("KILL", "ID"), ("UNBLOCK",)], ids=" ".join)
def test_gone_in_the_moment_of_the_grant(server, queue, end):
    """Both commands arrive at once: the first in the queue is not granted any more, and nothing is lost by that."""
    with Connection(server.port) as connection:
        connection.calls([("SWLIMIT.UNBLOCK", "k"), ("CLIENT", *end, queue[0].id)])
        assert [waiter.answer()[2] for waiter in queue[1:]] == [1, 0]
    assert ask(server, "SWLIMIT.PEEK", "k", 2, *DAY)[2] == 0


def test_many_gone_in_the_moment_of_the_grant(start):
    """With threads that read, some are gone between the grant and the answer. However they go, those who remain are
    granted all there is, and what the key holds in the end is what clients were answered."""
    server = start(options={"io-threads": 4, "io-threads-do-reads": "yes"})
    limit, rounds = 5, 30
    with waiters(server) as wait, Connection(server.port) as admin:
        for number in range(rounds):
            admin.call("SWLIMIT.BLOCK", "k", BLOCKED)
            queue = [wait("k", limit, *DAY, PATIENT) for _ in range(2 * limit)]
            ended = queue[number % 3:limit:2]
            admin.calls([("SWLIMIT.UNBLOCK", "k"), *(("CLIENT", "KILL", "ID", waiter.id) for waiter in ended)])
            left = [waiter for waiter in queue if waiter not in ended]
            granted = [waiter.answer()[0] for waiter in left[:limit]]
            assert granted == [1] * limit
            for waiter in left[limit:]:
                waiter.close()
            eventually(lambda: waiting(server), 0)
            assert admin.call("SWLIMIT.REFUND", "k", 100) == limit
    assert server.alive, server.log


def configured_before_the_turn(server, *settings):
    """The block of `k` ends soon; before it does, the server is configured."""
    with Connection(server.port) as connection:
        done = connection.calls([("SWLIMIT.BLOCK", "k", "100ms"), *(("CONFIG", "SET", *each) for each in settings)])
    assert done[1:] == [b"OK"] * len(settings)


@pytest.mark.parametrize("setting, value, code", [
    ("maxmemory", 1, "OOM"), ("min-replicas-to-write", 1, "NOREPLICAS")])
def test_errors_at_the_turn(server, counted, queue, setting, value, code):
    """What ALLOW gets at that moment, everybody gets whose turn it is, and nothing is counted."""
    configured_before_the_turn(server, (setting, value))
    errors = [waiter.answer() for waiter in queue]
    assert errors == [Failed(server.cli("SWLIMIT.ALLOW", "k", 2, *DAY))] * 3 and errors[0].startswith(f"{code} ")
    assert counted() == {"denied": 3, "denied_units": 3, "blocked": 2}
    assert ask(server, "SWLIMIT.PEEK", "k", 2, *DAY)[2] == 2


def test_a_setting_that_forbids_it_meanwhile(server, queue):
    """A window of too many subintervals, by now: the error that ALLOW gets."""
    configured_before_the_turn(server, ("swlimit.max-subintervals", 4))
    assert queue[0].answer() == Failed(server.cli("SWLIMIT.ALLOW", "k", 2, *DAY))


@pytest.mark.parametrize("before, after", [(0, 1), (1, 0)], ids=["it is full now", "it was full"])
def test_what_is_known_of_the_memory_is_of_now(server, queue, before, after):
    """The server itself goes by what it found before the last client's command."""
    configured_before_the_turn(server, ("maxmemory", before), ("maxmemory", after))
    reply = queue[0].answer()
    assert reply.startswith("OOM ") if after else reply[:3] == [1, 2, 1]


def test_a_disk_that_fails(start):
    folder = "dump.rdb"
    server = start(options={"save": "3600 1", "dbfilename": folder})
    (server.folder / folder).mkdir()
    with waiters(server) as wait:
        server.cli("SWLIMIT.BLOCK", "k", "2s")
        waiter = wait("k", 2, *DAY, "20s")
        server.cli("BGSAVE")
        eventually(lambda: info(server, "persistence")["rdb_last_bgsave_status"], "err")
        expected = server.cli("SWLIMIT.ALLOW", "other", 2, *DAY)
        assert waiter.answer() == Failed(expected) and expected.startswith("MISCONF ")
    server.kill()  # it would try to save


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_paused(start, mode):
    """Nothing is granted while the server pauses writes; timeouts are. Afterwards the queue goes on, and the replica
    and the append-only file have it all."""
    primary = start(options=PROMPT | {"appendonly": "yes"})
    replica = start(options=replica_of(primary))
    synchronised(replica)
    with waiters(primary) as wait:
        primary.cli("SWLIMIT.BLOCK", "k", "1s")
        primary.cli("SWLIMIT.BLOCK", "other", "1s")
        queue = [wait("k", 2, *DAY, "30s") for _ in range(2)]
        impatient = wait("other", 2, *DAY, "1100ms")
        primary.cli("CLIENT", "PAUSE", 2500, mode)
        reply = impatient.answer()
        assert reply[:3] == [0, 2, 2] and reply[3] > 0, "it fits, but nothing may be written"
        assert not queue[0].is_answered
        assert [waiter.answer()[2] for waiter in queue] == [1, 0]
    in_step(replica, primary)
    same_data(primary, replica)
    assert primary.alive and "ASSERT" not in primary.log


def test_an_idle_pause_costs_nothing(start):
    server = start()
    with waiters(server) as wait:
        server.cli("SWLIMIT.BLOCK", "k", "200ms")
        wait("k", 2, *DAY, "10s")
        server.cli("CLIENT", "PAUSE", 1000, "WRITE")
        assert idle(server, 0.7) < 0.3, "the server turns round and round"
        server.cli("CLIENT", "UNPAUSE")


UNBLOCKED = Failed("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")


def test_becoming_a_replica(start):
    other, server = start(options=PROMPT), start(options=PROMPT)
    with waiters(server) as wait:
        server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
        queue = [wait("k", 2, *DAY, PATIENT) for _ in range(3)]
        server.cli("REPLICAOF", "127.0.0.1", other.port)
        assert [waiter.answer() for waiter in queue] == [UNBLOCKED] * 3
        synchronised(server)
        assert waiting(server) == 0
        with Connection(server.port) as connection:
            assert connection.call("SWLIMIT.ACQUIRE", "k", 2, *DAY, PATIENT).startswith("READONLY ")
            server.cli("REPLICAOF", "NO", "ONE")
            assert connection.call("SWLIMIT.ACQUIRE", "k", 2, *DAY, PATIENT)[0] == 1


def test_failing_over(start):
    """FAILOVER pauses writes, and makes a replica of the primary. Those who wait are sent away, and may wait again."""
    primary = start(options=PROMPT)
    replica = start(options=replica_of(primary))
    synchronised(replica)
    with waiters(primary) as wait:
        primary.cli("SWLIMIT.BLOCK", "k", BLOCKED)
        waiter = wait("k", 2, *DAY, PATIENT)
        # The primary takes a replica for online a moment after the replica itself does.
        eventually(lambda: primary.cli("FAILOVER", "TO", "127.0.0.1", replica.port), "OK")
        assert waiter.answer() == UNBLOCKED
        eventually(lambda: info(replica, "replication")["role"], "master")
        again = wait("k", 2, *DAY, PATIENT, on=replica)
        replica.cli("SWLIMIT.UNBLOCK", "k")
        assert again.answer()[:3] == [1, 2, 1]
        synchronised(primary)
        in_step(primary, replica)
    assert same_data(primary, replica)
