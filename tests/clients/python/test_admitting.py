"""One decision of rates, budgets and holds, and its settlement."""

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis
import redis.asyncio

import swlimit
from support.relay import Relay
from support.server import ROOT
from support.waiting import eventually

from .scripted import speaking

SOURCE = ROOT / "src/clients/python"


class Plan:
    """What a request to a language model takes: one of so many at once, one of so many a minute, and tokens a month."""

    def __init__(self, kind, client, ttl="30s", **options):
        options = {"timeout": 2.0} | options
        self.kind = kind
        self.streams = kind.hold_limiter(client, 2, ttl, **{"on_failure": "local"} | options)
        self.requests = kind.limiter(client, 5, "1m", "1s", **options)
        self.tokens = kind.budget_limiter(client, 1000, "month", **options)

    def admit(self, tokens=300, **options):
        return self.kind.admit(self.parts(tokens), **options)

    def parts(self, tokens=300):
        return [self.requests.request("{u}:requests", name="requests"), self.streams.request("{u}:streams"),
                self.tokens.request("{u}:tokens", tokens, name="tokens")]

    def within(self, body, tokens=300, **options):
        """Run `body(admission)` in the block of `spending`."""
        if self.kind.name == "threads":
            with swlimit.spending(self.parts(tokens), **options) as admission:
                body(admission)
            return

        async def main():
            async with swlimit.spending(self.parts(tokens), **options) as admission:
                body(admission)
        self.kind.wait(main())

    def left(self):
        """Requests and tokens that remain, and holds that are live."""
        with speaking(self.server) as connection:
            live = connection.call("SWLIMIT.HOLDERS", "{u}:streams")
            tokens = connection.call("SWLIMIT.BUDGET", "{u}:tokens", 1000, 2_000_000_000_000, "COST", 1001)
            requests = connection.call("SWLIMIT.PEEK", "{u}:requests", 5, "1m", "1s")
        return requests[2], tokens[2], len(live)

    def close(self):
        for one in (self.streams, self.requests, self.tokens):
            one.close()


@pytest.fixture
def plans(kind, server):
    made = []

    def plans(port=None, **options):
        client = None if port == 0 else kind.client(kind.redis if port is None else kind.lazy, port=port or server.port)
        made.append(Plan(kind, client, **options))
        made[-1].client = client
        made[-1].server = server
        return made[-1]

    yield plans
    for one in made:
        one.close()


def test_admitted_and_settled(plans, kind):
    plan = plans()
    admission = plan.admit()
    rate, hold, budget = admission.each
    assert admission.granted and (rate.remaining, hold.remaining, budget.remaining) == (4, 1, 700)
    assert admission.hold.is_live and admission.hold.token == hold.token
    assert plan.left() == (4, 700, 1)
    assert kind.call(admission.settle, 1, 120) == [0, -180]
    assert kind.call(admission.settle, 1, 120) is None
    assert not admission.hold.is_live and plan.left() == (4, 880, 0)
    beyond = plan.admit()
    assert kind.call(beyond.settle, 0, 400) == [-1, 100]
    assert plan.left() == (4, 480, 0)
    assert plan.requests.statistics.server == plan.tokens.statistics.server == 2


def test_denied_together(plans, kind):
    plan = plans()
    first = plan.admit(900)
    denied = plan.admit(101)
    assert not denied and denied.hold is None and [bool(one) for one in denied.each] == [True, True, False]
    assert denied.retry_after == denied.each[2].retry_after > 0
    assert plan.left() == (4, 100, 1)
    for settle in (denied.settle, denied.settle_soon):
        with pytest.raises(ValueError, match="nothing was granted"):
            kind.call(settle, 1, 1)
    second = plan.admit(1)
    assert second.granted and not plan.admit(1)
    kind.call(first.hold.release)
    assert plan.left() == (3, 99, 1), "what is not settled stays counted as it was asked for"


RESERVED = "{u}:requests:reserved"


def test_a_reservation_that_has_ended_settles_what_was_used_beyond(plans, kind, server):
    plan = plans()
    first, second = plan.admit(), plan.admit()
    with speaking(server) as connection:
        assert connection.call("SWLIMIT.RELEASE", RESERVED, first.hold.id, second.hold.id) == 2
    assert kind.call(first.settle, 1, 350) is None
    assert plan.left()[:2] == (3, 350)
    kind.call(second.settle_soon, 2, 310)
    eventually(lambda: plan.left()[:2], (2, 340))


def test_places_are_released_before_the_usage_is_known(plans, kind):
    plan = plans()
    first, second = plan.admit(), plan.admit()
    assert plan.admit(1).denied_by.key == b"{u}:streams"
    kind.call(first.release)
    assert not first.hold.is_live and plan.left()[2] == 1
    third = plan.admit(1)
    assert third and kind.call(first.settle, 1, 120) == [0, -180]
    kind.call(second.hold.release_soon)
    kind.call(third.release_soon)
    eventually(lambda: plan.left()[2], 0)
    assert kind.call(second.settle, 1, 400) == [0, 100] and kind.call(third.settle, 1, 5) == [0, 4]
    assert plan.left() == (2, 1000 - 120 - 400 - 5, 0)


def test_several_holds_each_with_its_own_loss(plans, kind, server):
    plan = plans(ttl="3s")
    other = kind.hold_limiter(plan.client, 1, "3s", timeout=2.0)
    admission = kind.admit([*plan.parts(), other.request("{u}:gpu")])
    streams, gpu = admission.holds
    assert streams is admission.hold and gpu.key == b"{u}:gpu" and gpu.token == admission.each[3].token
    with speaking(server) as connection:
        assert connection.call("SWLIMIT.RELEASE", "{u}:gpu", gpu.id) == 1
    eventually(gpu.lost.is_set)
    assert not gpu.is_live and streams.is_live and not streams.lost.is_set()
    assert kind.admit([other.request("{u}:gpu")])
    assert kind.call(admission.settle, 1, 1) == [0, -299] and not streams.is_live
    other.close()


def test_an_age_after_which_nothing_is_renewed(plans, kind, server):
    """The end was never said: the hold ends by its ttl, here a second after one that is renewed."""
    plan = plans(ttl="3s")
    old, young = plan.admit(max_age="500ms"), plan.admit(max_age="10m")
    eventually(old.hold.lost.is_set)
    assert not old.hold.is_live and young.hold.is_live
    eventually(plan.left, (3, 400, 1))
    with speaking(server) as connection:
        assert [row[0] for row in connection.call("SWLIMIT.HOLDERS", RESERVED)] == [young.hold.id]
    assert kind.call(old.settle, 1, 350) is None and plan.left() == (3, 350, 1)


@pytest.mark.parametrize("port", [0, 1])
def test_an_age_without_a_server(plans, port):
    plan = plans(port, local_share=1)
    first, second = plan.admit(1, max_age=0.05), plan.admit(1, max_age="10m")
    eventually(lambda: plan.admit(1).granted)
    assert not first.hold.is_live and first.hold.lost.is_set() and second.hold.is_live


def test_without_holds_an_age_reserves(plans, kind, server):
    plan = plans()
    requests = [part for part in plan.parts() if part.name]
    admission = kind.admit(requests, max_age="10m")
    with speaking(server) as connection:
        live, = connection.call("SWLIMIT.HOLDERS", RESERVED)
    assert admission.hold is None and live[0]
    again = kind.admit(requests, max_age="10m", id=live[0])
    assert again.granted and plan.left()[:2] == (4, 700)
    assert kind.call(admission.settle, 0, 1) == [-1, -299]
    assert kind.call(admission.settle, 0, 1) is None and plan.left()[:2] == (5, 999)


def test_a_reservation_is_for_what_is_settled(plans, kind, server):
    plan = plans()
    requests, place, tokens = plan.parts()
    counted = [requests, tokens]
    with speaking(server) as connection:
        def reserved():
            return [len(connection.call("SWLIMIT.HOLDERS", key)) for key in (RESERVED, "{u}:streams:reserved")]
        for parts, options in ([[place], {"max_age": "10m"}], [counted, {}]):
            admission = kind.admit(parts, **options)
            assert admission and reserved() == [0, 0]
            kind.call(admission.settle)
        assert plan.left()[2] == 0
        admission = kind.admit([place])
        kind.call(admission.settle_soon)
        eventually(lambda: plan.left()[2], 0)
        plan.parts = lambda tokens: counted
        plan.within(lambda admission: reserved() == [1, 0] or pytest.fail("nothing is reserved"))
        assert reserved() == [0, 0]


def test_usage_that_is_only_known_afterwards(plans, kind):
    """Asked for as one unit: what was used is counted beyond the limit, and the next is denied."""
    plan = plans()
    admission = plan.admit(1)
    assert kind.call(lambda: admission.settle(tokens=1500)) == [0, 1499]
    assert plan.left()[1] == 0 and not plan.admit(1)


def test_settled_by_name(plans, kind):
    plan = plans()
    admission = plan.admit()
    for wrong, error in [(lambda: admission.settle(1, tokens=3), TypeError),
                         (lambda: admission.settle(token=3), ValueError),
                         (lambda: admission.settle(tokens=-1), ValueError),
                         (lambda: admission.settle_soon(1, 2, 3), ValueError),
                         (lambda: admission.saw(tokens=1.5), ValueError)]:
        with pytest.raises(error):
            kind.call(wrong)
    assert kind.call(lambda: admission.settle(tokens=3)) == [0, -297]
    assert plan.left() == (4, 997, 0)


def test_settled_soon(plans, kind, server):
    """Without waiting, and once, also when replies are lost."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, timeout=0.5, on_failure="deny")
        admission = eventually(plan.admit)
        relay.swallows = True
        kind.call(lambda: admission.settle_soon(tokens=100))
        assert kind.call(admission.settle, 1, 1) is None and not admission.hold.is_live
        kind.call(admission.settle_soon, 1, 1)
        time.sleep(0.2)
        relay.swallows = False
        eventually(plan.left, (4, 900, 0))


def test_settled_soon_by_what_was_seen(plans, kind):
    plan = plans()
    first, second = plan.admit(), plan.admit()
    first.saw(tokens=20)
    for one in (first, second):
        kind.call(one.settle_soon)
    eventually(plan.left, (3, 1000 - 20 - 300, 0))


def test_settled_soon_without_a_hold(plans, kind):
    plan = plans()
    admission = kind.admit([part for part in plan.parts() if part.name])
    kind.call(admission.settle_soon, 0, 340)
    eventually(plan.left, (5, 660, 0))


@pytest.mark.parametrize("policy", ["local", "allow"])
def test_settled_soon_without_the_server(plans, kind, policy):
    plan = plans(1, on_failure=policy, local_share=1)
    admission = plan.admit(999)
    kind.call(lambda: admission.settle_soon(tokens=10))
    assert not admission.hold.is_live
    assert plan.admit(990).granted and plan.admit(1).granted == (policy == "allow")


def test_spending(plans):
    """Settled at the end of the block: the last number of each name, or what was asked for."""
    plan = plans()

    def used(admission):
        admission.saw(tokens=10)
        admission.saw(requests=0)
        admission.saw(tokens=120)
        assert plan.left() == (4, 700, 1)

    plan.within(used)
    assert plan.left() == (5, 880, 0)
    plan.within(lambda admission: None)
    assert plan.left() == (4, 580, 0)
    with pytest.raises(swlimit.DeniedError, match="{u}:tokens"):
        plan.within(lambda admission: pytest.fail("entered without a grant"), 581)


@pytest.mark.parametrize("error, on_error, seen, left", [
    (KeyError, "keep", None, (4, 700, 0)), (KeyError, "give_back", None, (5, 1000, 0)),
    (KeyError, "give_back", 20, (4, 980, 0)), (KeyError, "keep", 20, (4, 980, 0)),
    (asyncio.CancelledError, "give_back", None, (4, 700, 0)),
])
def test_an_error_in_the_block(plans, error, on_error, seen, left):
    """An end by cancelling is unknown: what was asked for stays counted."""
    plan = plans()

    def fail(admission):
        if seen is not None:
            admission.saw(tokens=seen)
        raise error

    with pytest.raises((error, concurrent.futures.CancelledError)):
        plan.within(fail, on_error=on_error)
    assert plan.left() == left


def test_waiting_for_a_place(plans, kind):
    plan = plans()
    first, second = plan.admit(), plan.admit()
    before = time.monotonic()
    assert not plan.admit(wait=0.2) and time.monotonic() - before >= 0.2
    assert plan.admit(2000, wait="10m").never
    asked = plan.requests.statistics.server
    assert plan.admit(401, wait="1ms").denied_by.name == "tokens", "the month ends after the wait"
    assert plan.requests.statistics.server == asked + 1
    thread = threading.Timer(0.2, kind.call, [first.settle, 1, 1])
    thread.start()
    third = plan.admit(wait="10m")
    assert third.hold.is_live and third.each[1].source == "server"
    assert not plan.admit(wait="10m", deadline=0.1) and second.hold.is_live
    thread.join()
    assert plan.left() == (2, 1000 - 1 - 600, 2)


@pytest.mark.parametrize("policy", ["deny", "error"])
def test_waiting_for_the_server(plans, kind, server, policy):
    """The requests of one wait have one id: what was granted to a lost one is granted, and counted once."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, timeout=0.3, on_failure=policy)
        others = [eventually(lambda: plan.streams.hold("{u}:streams")) for _ in range(2)]
        asked = plan.requests.statistics.server

        def interrupt():
            eventually(lambda: plan.requests.statistics.server > asked)
            relay.delay = 1.0
            kind.call(others[0].release_soon)
            time.sleep(1.0)
            relay.delay = 0.0

        thread = threading.Thread(target=interrupt)
        thread.start()
        admission = plan.admit(wait="1m")
        thread.join()
        assert admission.each[0].source == "server"
        assert plan.left() == (4, 700, 2)


@pytest.mark.parametrize("policy", ["local", "allow", "deny", "error"])
def test_the_caller_s_time_ends_while_it_waits(plans, kind, server, policy):
    """Who waits was denied by the server, which may still answer: that denial stands, whatever the policy."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, on_failure=policy)
        others = [eventually(lambda: plan.streams.hold("{u}:streams")) for _ in range(2)]
        assert all(other.source == "server" for other in others)
        asked = plan.requests.statistics.server

        def interrupt():
            eventually(lambda: plan.requests.statistics.server > asked)
            relay.swallows = True

        thread = threading.Thread(target=interrupt)
        thread.start()
        before = time.monotonic()
        admission = plan.admit(wait="10m", deadline=0.4)
        assert time.monotonic() - before < 1
        thread.join()
        relay.swallows = False
        assert not admission and {one.source for one in admission.each} == {"server"}
        assert plan.requests.statistics.failure == 0


def test_who_waits_is_denied_when_the_limiter_is_closed(plans, kind):
    plan = plans(on_failure="allow", local_share=1)
    others = [plan.streams.hold("{u}:streams") for _ in range(2)]
    timer = threading.Timer(0.2, plan.requests.close)
    timer.start()
    admission = plan.admit(wait="1m")
    timer.join()
    assert not admission and all(others)


@pytest.mark.parametrize("policy", ["deny", "error"])
def test_the_policy_takes_no_wait(plans, policy):
    plan = plans(1, on_failure=policy)
    if policy == "deny":
        assert plan.admit(wait="10m").each[0].source == "failure"
    else:
        with pytest.raises(swlimit.UnavailableError):
            plan.admit(wait="10m")


def test_who_denied_and_what_to_send(plans):
    plan = plans()
    admissions = [plan.admit(1) for _ in range(2)]
    assert admissions[0].denied_by is None and "retry-after-ms" not in admissions[0].headers()
    denied = plan.admit(1)
    assert denied.denied_by == (None, b"{u}:streams", denied.each[1]) and denied.retry_after > 20
    headers = denied.headers()
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("1", "1000"), "a place may be free at any moment"
    assert headers["RateLimit-Policy"].startswith('"requests";q=5;w=60, "tokens";q=1000;w=')
    both = plan.admit(999)
    assert both.denied_by.name == "tokens" and int(both.headers()["retry-after-ms"]) > 1000
    never = plan.admit(1001)
    assert never.denied_by.decision.never and never.retry_after is None and "Retry-After" not in never.headers()


def test_an_admission_that_is_dropped(plans, server):
    """Its holds end at once; what was asked for stays counted."""
    plan = plans()
    assert plan.admit()
    gc.collect()
    eventually(plan.left, (4, 700, 0))
    with speaking(server) as connection:
        eventually(lambda: connection.call("SWLIMIT.HOLDERS", RESERVED), [])


def test_closing_ends_the_reservation(plans, server):
    plan = plans()
    admission = plan.admit()
    plan.close()
    assert not admission.hold.is_live
    with speaking(server) as connection:
        assert not connection.call("SWLIMIT.HOLDERS", RESERVED)


def test_a_child_settles_nothing(server):
    client = redis.Redis(port=server.port)
    with swlimit.Limiter(client, 9, "1m", timeout=2.0) as rate, swlimit.spending([rate.request("k", 5)]) as admission:
        child = os.fork()
        if child == 0:
            try:
                admission.settle_soon(1)
                assert admission.settle(1) is None
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert admission.settle(1) == [-4]


HOLDER = """
import sys
import redis
import swlimit
client = redis.Redis(port=int(sys.argv[1]))
streams = swlimit.HoldLimiter(client, 1, "3s", timeout=5.0)
tokens = swlimit.BudgetLimiter(client, 1000, "month", timeout=5.0)
admission = swlimit.admit([streams.request("{u}:streams"), tokens.request("{u}:tokens", 300)], max_age="10m")
print("admitted" if admission else "denied", flush=True)
sys.stdin.read()
"""


def test_a_holder_that_is_killed(plans, kind):
    """Its place is free after its ttl, and its reservation stays counted."""
    plan = plans()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(plan.server.port)], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)}) as process:
        assert process.stdout.readline() == "admitted\n"
        one = kind.hold_limiter(plan.client, 1, timeout=2.0)
        assert not kind.admit([one.request("{u}:streams")])
        process.send_signal(signal.SIGKILL)
        assert kind.admit([one.request("{u}:streams")], wait="1m")
        assert plan.left()[1] == 700
        one.close()


def test_an_id_is_for_one_admission(plans):
    """Asked again with it, as after an error: nothing is counted twice."""
    plan = plans()
    admission = plan.admit(id=b"request-7")
    again = plan.admit(id=b"request-7")
    assert again.granted and again.hold.token == admission.hold.token
    assert plan.left() == (4, 700, 1)


def test_closing_gives_a_settlement_up(plans, kind, server):
    """A reservation that is not settled by then is renewed no more."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, timeout=0.5, on_failure="deny")
        eventually(lambda: plan.streams.hold("warm").source == "server")
        admission = eventually(plan.admit)
        renewer = plan.requests._state.of(RESERVED).renewer
        relay.swallows = True
        assert kind.call(admission.settle, 1, 100) is None
        plan.close()
        eventually(lambda: renewer.worker is None)


def test_without_a_hold(plans, kind):
    plan = plans()

    def admit(tokens):
        return kind.admit([plan.requests.request("{u}:requests"), plan.tokens.request("{u}:tokens", tokens)])

    admission = admit(300)
    assert admission.granted and admission.hold is None
    assert kind.call(admission.settle, 0, 100) == [-1, -200]
    assert kind.call(admission.settle, 0, 100) is None
    assert kind.call(admit(10).settle, 3, 30) == [2, 20]
    assert plan.left() == (2, 870, 0)


def test_what_is_wrong_is_refused(plans, kind):
    plan, other = plans(), plans()
    with pytest.raises(TypeError, match="one or more"):
        kind.admit([])
    with pytest.raises(TypeError, match="admit takes"):
        kind.admit(["k"])
    with pytest.raises(ValueError, match="one client"):
        kind.admit([plan.requests.request("a"), other.tokens.request("b")])
    with pytest.raises(ValueError, match="one name"):
        kind.admit([plan.streams.request("a", name="n"), plan.tokens.request("b", name="n")])
    with pytest.raises(ValueError, match="name must be"):
        plan.requests.request("a", name="")
    with pytest.raises(ValueError, match="on_error must be"):
        plan.admit(on_error="refund")
    with pytest.raises(ValueError, match="max_age must be"):
        plan.admit(max_age="soon")
    with pytest.raises(ValueError, match="named twice"):
        kind.admit([plan.requests.request("a"), plan.tokens.request("a")])
    with pytest.raises(ValueError, match="id must be"):
        plan.admit(id=b"")
    with pytest.raises(ValueError, match="units of 2 requests"):
        kind.call(plan.admit().settle, 1)


def test_contexts(server):
    client = redis.Redis(port=server.port)
    streams, rate = swlimit.HoldLimiter(client, 1, timeout=2.0), swlimit.Limiter(client, 9, "1m", timeout=2.0)
    requests = [streams.request("{k}s"), rate.request("{k}r", 2)]
    with swlimit.admit(requests) as admission:
        with pytest.raises(swlimit.DeniedError, match="{k}s"), swlimit.admit(requests):
            pytest.fail("entered without a grant")
        admission.settle(1)
    with swlimit.admit(requests) as admission:
        pass
    assert not streams.holders("{k}s") and rate.peek("{k}r").remaining == 6

    async def main():
        client = redis.asyncio.Redis(port=server.port)
        async with (swlimit.AsyncHoldLimiter(client, 1, timeout=5.0) as streams,
                    swlimit.AsyncLimiter(client, 9, "1m", timeout=5.0) as rate):
            requests = [streams.request("{k}s"), rate.request("{k}r", 3)]
            async with swlimit.admit(requests) as admission:
                assert await admission.settle(1) == [-2]
            before = (await rate.peek("{k}r")).remaining
            for rounds in range(40):
                task = asyncio.ensure_future(awaited(swlimit.admit(requests)))
                for _ in range(1 + rounds % 8):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled() and task.result():
                    await task.result().settle(0)
            ends = time.monotonic() + 20
            while (await rate.peek("{k}r")).remaining < before or await streams.holders("{k}s"):
                assert time.monotonic() < ends
            assert (await rate.peek("{k}r")).remaining == before
    asyncio.run(main())


async def awaited(something):
    return await something
