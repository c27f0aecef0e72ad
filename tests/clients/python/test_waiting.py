"""Waiting for one's turn: in the server's queue, or, where it has none, in the process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError

import pytest

from support.contents import info
from support.relay import Relay
from support.resp import Connection, encode
from support.waiting import eventually


def in_threads(*functions):
    """What these functions return, each in a thread of its own, begun one after the other."""
    results, threads = [None] * len(functions), []
    for number, function in enumerate(functions):
        def work(number=number, function=function):
            results[number] = function()
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return results


class WithoutAcquire(Relay):
    """Knows no ACQUIRE, as the module's first release."""

    refused = 0

    def asked(self, data):
        if b"SWLIMIT.ACQUIRE" not in data:
            return data
        self.refused += 1
        return encode("SWLIMIT.NO_ACQUIRE").replace(b"NO_ACQUIRE", b"UNKNOWN000")


@pytest.fixture(params=["queue of the server", "queue of the process"])
def waiting(request, kind, limiter, server):
    """Make limiters whose `acquire` waits here or there."""
    if request.param == "queue of the server":
        yield limiter
        assert int(info(server, "swlimit")["swlimit_waiting"]) == 0
        return
    with WithoutAcquire(server.port) as relay:
        client = kind.client(kind.redis, port=relay.port)
        yield lambda *quota, **options: limiter(*quota, client=client, **options)
        assert relay.refused


def in_line(limiter, server):
    """How many wait: at the server, or in this process, where one waits for the quota and the others for their turn."""
    queue = limiter._queues._queues.get(b"k")
    return int(info(server, "swlimit")["swlimit_waiting"]) + (len(queue) + queue.is_taken if queue is not None else 0)


def test_first_come_first_served(waiting, server):
    """Each comes when the one before is in line, or has been granted already."""
    limiter = waiting(1, "1s", "50ms")
    limiter.allow("k")
    order, threads = [], []

    def wait(name):
        assert limiter.acquire("k", timeout=60)
        order.append(name)

    for number, name in enumerate("abc", 1):
        threads.append(threading.Thread(target=wait, args=name))
        threads[-1].start()
        eventually(lambda number=number: len(order) + in_line(limiter, server) >= number)
    for thread in threads:
        thread.join()
    assert order == list("abc")


def test_quota_that_comes_back_early(limiter, server):
    limiter = limiter(1, "1h", "1m")
    limiter.allow("k")

    def give_back():
        eventually(lambda: int(info(server, "swlimit")["swlimit_waiting"]), 1)
        return limiter.refund("k")

    granted, given = in_threads(lambda: limiter.acquire("k", timeout=7200).granted, give_back)
    assert (granted, given) == (1, 1)


def test_connections_are_bounded_and_not_shared(limiter, server):
    """A few wait at the server, others here until one of those is done; who only asks is not held up."""
    limiter = limiter(1, "1h", "1m", max_waiting=2, mode="direct")
    limiter.allow("k")

    def look():
        eventually(lambda: int(info(server, "swlimit")["swlimit_waiting"]), 2)
        assert limiter.peek("k").source == "server"
        time.sleep(0.2)
        assert int(info(server, "swlimit")["swlimit_waiting"]) == 2
        for _ in range(4):
            eventually(lambda: limiter.refund("k"), 1)
        return True

    *granted, looked = in_threads(*[lambda: limiter.acquire("k", timeout=7200).granted] * 4, look)
    assert (granted, looked) == ([1] * 4, True)


def test_no_connection_is_free_in_time(limiter, server):
    limiter = limiter(1, "1h", "1m", max_waiting=1)
    limiter.allow("k")

    def second():
        eventually(lambda: int(info(server, "swlimit")["swlimit_waiting"]), 1)
        decision = limiter.acquire("k", timeout=0.2)
        limiter.refund("k")
        return decision

    first, second = in_threads(lambda: limiter.acquire("k", timeout=7200), second)
    assert first and not second
    assert limiter.statistics.failure == 0


def test_too_many_wait_at_the_server(limiter, server):
    server.cli("CONFIG", "SET", "swlimit.max-waiting", 0)
    limiter = limiter(1, "300ms", "10ms")
    assert [limiter.acquire("k", timeout=5).granted for _ in range(3)] == [1] * 3


def test_only_local(kind):
    limiter = kind.limiter(None, 1, "200ms", "10ms")
    assert [limiter.acquire("k", timeout=5).granted for _ in range(3)] == [1] * 3
    assert not limiter.acquire("k", timeout=0)


def test_waiters_of_one_key_do_not_starve_those_of_others(kind, limiter, server):
    """The only connection waits for another key; a key that comes free is noticed all the same."""
    limiter = limiter(1, "1h", max_waiting=1, mode="direct")
    holds = kind.hold_limiter(kind.client(kind.redis, port=server.port), 1, timeout=5.0, max_waiting=1)
    with Connection(server.port) as other:
        for key in "ab":
            assert limiter.allow(key)
            other.call("SWLIMIT.HOLD", f"h{key}", 1, "1h", "theirs")

        def wait_for(ask, give_back):
            with ThreadPoolExecutor() as pool:
                first = pool.submit(ask, "a")
                eventually(lambda: int(info(server)["swlimit_waiting"]), 1)
                second = pool.submit(ask, "b")
                with pytest.raises(TimeoutError):
                    second.result(0.3)
                give_back("b")
                assert second.result(20)
                assert not first.done()
                give_back("a")
                assert first.result(20)

        wait_for(lambda key: limiter.acquire(key, timeout="2h"),
                 lambda key: other.call("SWLIMIT.REFUND", key, 1))
        wait_for(lambda key: holds.hold(f"h{key}", wait="5m"),
                 lambda key: other.call("SWLIMIT.RELEASE", f"h{key}", "theirs"))
    holds.close()
