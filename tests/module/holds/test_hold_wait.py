"""HOLD … WAIT: who waits, in which order, and what ends a wait."""

import random
import threading
import time

import pytest

from support.contents import digest, statistics, unchanged
from support.holding_workload import answers
from support.resp import Connection, encode
from support.threaded import ThreadedServer
from support.waiters import waiters, waiting
from support.waiting import eventually

pytestmark = pytest.mark.as_run


def ask(server, *words):
    reply, = answers(server, [words])
    return reply


@pytest.fixture
def hold(server):
    """Let a client wait for a hold: `hold(id, limit)`."""
    with waiters(server) as wait:
        yield lambda id, limit=1, ttl="1h", timeout="1h", more=1, key="k", options=(): wait(
            key, limit, ttl, id, "WAIT", timeout, *options, command="SWLIMIT.HOLD", more=more)


def test_at_once_when_it_fits(server):
    assert ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a", "WAIT", "1h")[:5] == [1, 1, 0, 0, 3_600_000]
    assert ask(server, "SWLIMIT.HOLD", "k", 0, "1h", "b", "WAIT", "1h")[:4] == [0, 0, 0, -1]
    assert ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "b", "WAIT", 0)[0] == 0
    script = "return redis.call('SWLIMIT.HOLD', KEYS[1], 1, '1h', 'b', 'WAIT', '1h')"
    assert ask(server, "EVAL", script, 1, "k")[0] == 0


def test_a_release_lets_the_next_one_in(server, hold):
    before = statistics(server)["acquired"]
    tokens = [ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")[5]]
    waiting_now = [hold(id) for id in "bcd"]
    for held, waiter in zip("abc", waiting_now, strict=True):
        assert not any(each.is_answered for each in waiting_now[waiting_now.index(waiter):])
        assert ask(server, "SWLIMIT.RELEASE", "k", held) == 1
        reply = waiter.answer()
        assert reply[:5] == [1, 1, 0, 0, 3_600_000]
        tokens.append(reply[5])
    assert tokens == sorted(set(tokens))
    assert statistics(server)["acquired"] == before + 3


def test_an_end_lets_the_next_one_in(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "300ms", "a")
    began = time.monotonic()
    assert hold("b").answer()[0] == 1
    assert time.monotonic() - began < 10


def test_strictly_in_order_whatever_the_cost(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "a", "COST", 2)
    large = hold("large", 3, options=("COST", 3))
    small = hold("small", 3)
    denied = ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "x")  # it would fit, but others wait
    assert denied[:3] == [0, 3, 1] and denied[3] > 3_500_000
    admitted = ask(server, "SWLIMIT.ADMIT", 2, "k", "r", "HOLD", 3, "1h", "x", 1, "RATE", 5, "1h", "1h", 1)
    assert admitted[0] == 0 and admitted[1][:3] == [0, 3, 1]
    assert ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "a", "COST", 2)[0] == 2  # a renewal
    assert not large.is_answered and not small.is_answered
    ask(server, "SWLIMIT.RELEASE", "k", "a")
    assert large.answer()[:3] == [3, 3, 0]
    assert not small.is_answered
    ask(server, "SWLIMIT.RELEASE", "k", "large")
    assert small.answer()[:3] == [1, 3, 2]


def test_the_timeout_denies(server):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    before = statistics(server)["denied"]
    reply = ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "b", "WAIT", "200ms")
    assert reply[:3] == [0, 1, 0] and 3_500_000 < reply[3] <= 3_600_000 and reply[4:] == [0, 0]
    assert statistics(server)["denied"] == before + 1


def test_an_id_waits_once(server, hold):
    """The second one takes over the place, with its own words."""
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    first, other = hold("b"), hold("c")
    second = hold("b", ttl="2h", more=0)
    assert str(first.answer()) == "UNBLOCKED another client now waits for this id"
    assert waiting(server) == 2
    ask(server, "SWLIMIT.RELEASE", "k", "a")
    assert second.answer()[4] == 7_200_000
    assert not other.is_answered


def test_a_release_of_an_id_that_waits_ends_its_wait(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    waiter = hold("b")
    assert ask(server, "SWLIMIT.RELEASE", "k", "b") == 0
    assert waiter.answer()[:2] == [0, 1]
    assert waiting(server) == 0


def test_released_and_unblocked_at_once(server, hold):
    """CLIENT UNBLOCK … TIMEOUT before the server has answered the end of the wait: one reply, no more and no less."""
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    waiter = hold("b")
    with Connection(server.port) as connection:
        connection.calls([("MULTI",), ("SWLIMIT.RELEASE", "k", "b"), ("CLIENT", "UNBLOCK", waiter.id), ("EXEC",)])
    waiter.connection.send(encode("ECHO", "in step"))
    assert waiter.answer()[:2] == [0, 1]
    assert waiter.answer() == b"in step"


def test_taken_over_and_unblocked_at_once(server, hold, manner):
    """All in one pass of the server, which sleeps until everything has arrived."""
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    waiter = hold("b")
    with Connection(server.port) as sleeper, Connection(server.port) as second, Connection(server.port) as admin:
        sleeper.send(encode("DEBUG", "SLEEP", "0.3"))
        time.sleep(0.1)  # until it sleeps: what arrives with that command is a pass of its own
        second.send(encode("SWLIMIT.HOLD", "k", 1, "1h", "b", "WAIT", "1h"))
        admin.send(encode("CLIENT", "UNBLOCK", waiter.id))
        assert sleeper.reply() == b"OK"
        # I/O threads may make two passes of it: then the wait has ended before.
        assert admin.reply() in ((0, 1) if manner is ThreadedServer else (1,))
        waiter.connection.send(encode("ECHO", "in step"))
        assert waiter.answer()
        assert waiter.answer() == b"in step"


def test_rights_are_those_of_the_command_that_waits(server):
    server.cli("ACL", "SETUSER", "ann", "on", "nopass", "allkeys", "+@all")
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    with waiters(server) as wait:
        waiter = wait("k", 1, "1h", "b", "WAIT", "1h", first=[("AUTH", "ann", "")], command="SWLIMIT.HOLD")
        server.cli("ACL", "SETUSER", "ann", "-swlimit.hold")
        ask(server, "SWLIMIT.RELEASE", "k", "a")
        assert waiter.answer() == "NOPERM this user has no permissions to run the 'swlimit.hold' command"
    server.cli("ACL", "DELUSER", "ann")


def test_while_others_wait_a_denial_comes_before_the_bound(start):
    server = start(module_args=["max-holds", 1])
    ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "a")
    assert str(ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "x")) == "too many holds"
    with waiters(server) as wait:
        wait("k", 3, "1h", "b", "COST", 3, "WAIT", "1h", command="SWLIMIT.HOLD")
        assert ask(server, "SWLIMIT.HOLD", "k", 3, "1h", "x")[:3] == [0, 3, 2]
        admitted = ask(server, "SWLIMIT.ADMIT", 1, "k", "HOLD", 3, "1h", "x", 1)
        assert admitted[0] == 0


@pytest.mark.parametrize("command", [["DEL", "k"], ["FLUSHALL"], ["RENAME", "k", "l"], ["PEXPIRE", "k", 1],
                                     ["SET", "k", "x"]])
def test_whatever_changes_the_key_wakes(server, hold, command):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    waiter = hold("b")
    server.cli(*command)
    reply = waiter.answer()
    assert str(reply).startswith("WRONGTYPE") if command[0] == "SET" else reply[0] == 1


def test_clients_that_are_gone_hold_nothing(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    gone, there = hold("b"), hold("c")
    gone.close()
    eventually(lambda: waiting(server), 1)
    ask(server, "SWLIMIT.RELEASE", "k", "a")
    assert there.answer()[0] == 1
    assert [held[0] for held in ask(server, "SWLIMIT.HOLDERS", "k")] == ["c"]


def test_killed_within_the_transaction_that_lets_it_in(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    waiter = hold("b")
    with server.client() as client, client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("SWLIMIT.RELEASE", "k", "a")
        pipeline.execute_command("CLIENT", "KILL", "ID", waiter.id)
        pipeline.execute()
    eventually(lambda: ask(server, "SWLIMIT.HOLDERS", "k"), [])


def test_client_unblock(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    first, second = hold("b"), hold("c")
    assert server.cli("CLIENT", "UNBLOCK", first.id) == "1"
    assert first.answer()[:2] == [0, 1]
    assert server.cli("CLIENT", "UNBLOCK", second.id, "ERROR") == "1"
    assert str(second.answer()).startswith("UNBLOCKED ")


def test_too_many_wait(server, hold):
    ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "a")
    server.cli("CONFIG", "SET", "swlimit.max-waiting", 1)
    try:
        hold("b")
        with unchanged(server):
            assert str(ask(server, "SWLIMIT.HOLD", "k", 1, "1h", "c", "WAIT", "1h")) == "too many clients are waiting"
    finally:
        server.cli("CONFIG", "SET", "swlimit.max-waiting", 10_000)


def test_never_more_than_the_limit(start):
    """Many holders that come, go, die and renew, against the file of a server that is killed meanwhile."""
    server = start(options={"appendonly": "yes", "appendfsync": "always"})
    limit, workers, rounds = 3, 8, 30
    inside, most, failures, lock = set(), [], [], threading.Lock()

    def work(number):
        draw = random.Random(number)
        try:
            with Connection(server.port, timeout=30) as connection:
                for turn in range(rounds):
                    id = f"{number}:{turn}"
                    reply = connection.call("SWLIMIT.HOLD", "k", limit, "1h", id, "WAIT", "20s")
                    assert reply[0] == 1, reply
                    with lock:
                        inside.add(id)
                        most.append(len(inside))
                    if draw.random() < 0.2:
                        assert connection.call("SWLIMIT.RENEW", "k", "1h", id) == [1]
                    with lock:
                        inside.remove(id)
                    assert connection.call("SWLIMIT.RELEASE", "k", id) == 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(most) == workers * rounds and max(most) <= limit
    ask(server, "SWLIMIT.HOLD", "k", limit, "1h", "last")
    before = digest(server)
    server.kill()
    server.start()
    assert digest(server) == before
