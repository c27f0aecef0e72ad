"""Keys of the script are the module's once it is loaded, whichever of a fleet's clients notices first."""

import logging
import random
import re
import threading
import time

import pytest
import redis

import swlimit
from support.cluster import Cluster
from support.relay import Relay
from support.resp import Connection
from support.server import MODULE
from support.waiting import eventually
from swlimit._core.quota import Quota
from swlimit._protocol.commands import Allow
from swlimit._protocol.exchange import Exchange
from swlimit._protocol.script_fallback import Dialect, TakenOver

from .test_holds import SHORTEST, end_of

WRONGTYPE = "WRONGTYPE"


class Client:
    """Limiters of every kind on one client."""

    def __init__(self, kind, made, **options):
        options = {"timeout": 20.0} | options
        self.kind = kind
        self.rate = kind.limiter(made, 100, "1h", "5m", mode="direct", **options)
        self.budget = kind.budget_limiter(made, 1000, "year", **options)
        self.holds = kind.hold_limiter(made, 3, SHORTEST, **options)

    def requests(self, name):
        return [self.rate.request(f"{{{name}}}rate", 2), self.budget.request(f"{{{name}}}budget", 5),
                self.holds.request(f"{{{name}}}hold")]

    @property
    def backend(self):
        return self.rate.servers()[0].backend

    def close(self):
        for one in (self.rate, self.budget, self.holds):
            one.close()


@pytest.fixture
def clients(kind):
    made = []

    def clients(port, make=None, **options):
        made.append(Client(kind, kind.client(make or kind.redis, host="127.0.0.1", port=port), **options))
        return made[-1]

    yield clients
    for one in made:
        one.close()


def test_the_module_is_loaded_while_clients_run(kind, clients, start, caplog):
    """Counts, periods and holds go on, for those who ask the module first and for those who ask the script first."""
    caplog.set_level(logging.INFO, "swlimit")
    server = start(module=None)
    old = clients(server.port)
    assert old.rate.allow("rate", 7) and old.budget.allow("budget", 9) and old.rate.block("blocked", "1h")
    guard, admission = old.holds.hold("hold"), kind.admit(old.requests("u"))
    assert guard and admission and old.backend == "script"
    server.cli("MODULE", "LOAD", MODULE)
    new = clients(server.port)
    assert new.rate.peek("rate").remaining == 93 and new.budget.allow("budget").remaining == 990
    assert new.backend == "module" and old.backend == "script"
    assert [holder.id for holder in new.holds.holders("hold")] == [guard.id]
    assert [one.remaining for one in kind.admit(new.requests("u")).each] == [96, 990, 1]
    assert new.rate.statistics.taken_over == new.holds.statistics.taken_over == 7
    assert 'the module is loaded now; took over key "rate", which the script wrote' in caplog.messages
    assert old.rate.allow("rate").remaining == 92 and old.backend == "module"
    assert not old.rate.allow("blocked") and old.rate.statistics.taken_over == 1
    before = end_of(server, guard)
    eventually(lambda: end_of(server, guard) > before + 500)
    assert kind.call(admission.settle, 1, 2) == [-1, -3] and guard.is_live
    kind.call(guard.release)
    assert not new.holds.holders("hold")


class OldModule(Relay):
    """Leads to a module that lacks what newer ones have."""

    def __init__(self, target):
        super().__init__(target)
        self.asked_for, self.looks, self.trip = [], 0, 0.0

    def asked(self, data):
        self.asked_for += re.findall(rb"SWLIMIT\.\w+|EVALSHA", data)
        self.looks += data.count(b"*1\r\n$12\r\nSWLIMIT.PEEK\r\n")
        return re.sub(rb"(?<=SWLIMIT\.)(HOLD|RELEASE|BUDGET|ADMIT|BLOCK)", lambda name: b"X" * len(name[0]), data)

    def answered(self, data):
        time.sleep(self.trip)
        return data


@pytest.mark.parametrize("is_known", [False, True])
def test_a_module_that_is_too_old(kind, clients, server, is_known):
    """What it lacks is refused. The script decides nothing there, whichever command comes first."""
    with OldModule(server.port) as relay:
        one = clients(relay.port)
        if is_known:
            assert one.rate.allow("rate").remaining == 99
        calls = {"HOLD": lambda: one.holds.hold("hold"), "BUDGET": lambda: one.budget.allow("budget"),
                 "ADMIT": lambda: kind.admit(one.requests("u")), "BLOCK": lambda: one.rate.block("rate", "1s")}
        for _ in range(2):
            for name, call in calls.items():
                with pytest.raises(swlimit.ModuleMissing, match=rf"too old for SWLIMIT\.{name}: load a newer one"):
                    call()
                assert one.rate.peek("rate").source == "server" and one.backend == "module"
        del relay.asked_for[:]
        for call in calls.values():
            with pytest.raises(swlimit.ModuleMissing):
                call()
        assert relay.asked_for == [f"SWLIMIT.{name}".encode() for name in calls]


def test_a_module_that_is_too_old_and_far_away(clients, server):
    """What a look has shown is known, though its reply came too late for who looked."""
    with OldModule(server.port) as relay:
        one = clients(relay.port, timeout=1.2, on_failure="error")
        assert one.rate.allow("rate").source == "server"
        relay.trip = 0.75
        with pytest.raises(swlimit.UnavailableError):
            one.holds.hold("hold")
        time.sleep(1)
        relay.trip = 0.0
        eventually(lambda: one.holds.servers()[0].state, "up")
        with pytest.raises(swlimit.ModuleMissing, match="too old"):
            one.holds.hold("hold")
        assert relay.looks == 1


def test_renewals_notice_it_by_themselves(kind, clients, start):
    """A holder that asks nothing else keeps its hold, and nobody's release is lost."""
    server = start(module=None)
    old = clients(server.port)
    guard = old.holds.hold("hold")
    server.cli("MODULE", "LOAD", MODULE)
    new = clients(server.port)
    taken = new.holds.hold("hold")
    before = end_of(server, guard)
    eventually(lambda: end_of(server, guard) > before + 500)
    kind.call(guard.release)
    assert [holder.id for holder in new.holds.holders("hold")] == [taken.id]


def test_a_fleet_that_notices_in_any_order(kind, clients, start):
    """Half asks the script first, from many threads or tasks at once: nothing is counted twice, or lost."""
    server, draw = start(module=None), random.Random(7)
    fleet = [clients(server.port) for _ in range(2)]
    used = dict.fromkeys((f"k:{number}" for number in range(20)), 0)

    def ask(one, key):
        assert one.rate.allow(key).source == "server"
        used[key] += 1

    def many(members):
        threads = [threading.Thread(target=ask, args=(draw.choice(members), key)) for key in used for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    many(fleet)
    server.cli("MODULE", "LOAD", MODULE)
    fleet += [clients(server.port) for _ in range(2)]
    many(fleet)
    many(fleet)
    assert {key: 100 - fleet[2].rate.peek(key).remaining for key in used} == dict.fromkeys(used, 6)
    assert sum(one.rate.statistics.taken_over for one in fleet) == len(used)


def test_a_server_that_comes_back_with_the_module(kind, clients, start):
    server = start(module=None)
    old = clients(server.port, on_failure="error")
    assert old.rate.allow("rate", 7) and old.budget.allow("budget", 9)
    guard = old.holds.hold("hold", ttl="1h")
    server.cli("SAVE")
    server.stop()
    start(port=server.port, folder=server.folder)

    def remaining():
        try:
            return old.rate.peek("rate").remaining
        except swlimit.UnavailableError:
            return None

    eventually(remaining, 93)
    assert old.budget.allow("budget").remaining == 990
    assert [holder.id for holder in old.holds.holders("hold")] == [guard.id] and guard.is_live
    assert old.rate.statistics.taken_over == 3


def test_a_cluster(kind, clients, start):
    cluster = Cluster(start, module=None)
    old = clients(cluster.servers[0].port, kind.cluster)
    held = [kind.admit(old.requests(number)) for number in range(9)]
    assert all(held) and all(old.rate.allow(f"k:{number}") for number in range(9))
    for server in cluster.servers:
        server.cli("MODULE", "LOAD", MODULE)
    new = clients(cluster.servers[0].port, kind.cluster)
    for number in range(9):
        first, second = (old, new) if number % 2 else (new, old)
        assert first.rate.allow(f"k:{number}").remaining == 98 and second.rate.allow(f"k:{number}").remaining == 97
        held += [kind.admit(one.requests(number)) for one in (first, second)]
        assert [[one.remaining for one in admission.each] for admission in held[-2:]] == [[96, 990, 1], [94, 985, 0]]
    assert new.rate.statistics.taken_over > 0


def test_what_is_refused(kind, clients, start):
    """The error is the take-over's, and the key stays as it was."""
    server = start(module=None)
    old = clients(server.port)
    keys = ["many", "full", "forbidden"]
    for key in keys:
        assert old.rate.allow(key)
    server.cli("MODULE", "LOAD", MODULE)
    new = clients(server.port, on_failure="error")
    with Connection(server.port) as admin:
        admin.call("SET", "foreign", "x")
        before = [admin.call("DUMP", key) for key in keys]
        admin.call("CONFIG", "SET", "swlimit.max-subintervals", 10)
        with pytest.raises(swlimit.RefusedError, match="above swlimit.max-subintervals"):
            new.rate.allow("many")
        admin.call("CONFIG", "SET", "swlimit.max-subintervals", 4096)
        admin.call("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(swlimit.UnavailableError, match="maxmemory"):
            new.rate.peek("full")
        admin.call("CONFIG", "SET", "maxmemory", 0)
        admin.call("ACL", "SETUSER", "default", "-pexpiretime")
        with pytest.raises(swlimit.RefusedError, match="permission|can't run"):
            new.rate.allow("forbidden")
        admin.call("ACL", "SETUSER", "default", "+pexpiretime")
        assert [admin.call("DUMP", key) for key in keys] == before
        for one in (old, new):
            with pytest.raises(swlimit.RefusedError, match=WRONGTYPE):
                one.rate.allow("foreign")
        assert admin.call("GET", "foreign") == b"x"
    assert [new.rate.allow(key).remaining for key in keys] == [98] * 3


@pytest.mark.parametrize("taken", [[0], [1, 0], [1, 1, 0], [1, 1, 1, 1]])
def test_a_key_that_the_script_makes_again(taken):
    """Clients of the script may make a key again that was taken over and emptied: it is taken over again."""
    exchange = Exchange(Allow(b"k", Quota.of(1, "1m")), Dialect("auto", TakenOver()))
    refusal = redis.ResponseError(f"{WRONGTYPE} Operation against a key")
    for reply in taken:
        exchange.encode()
        takeover, = exchange.again(refusal)
        takeover.answered(reply)
    exchange.encode()
    assert exchange.again(refusal) is None and exchange.answer is refusal
    assert exchange.dialect.taken_over.count == sum(taken)


def test_never(kind, clients, start):
    """Who wants the script only is not moved: the module's keys are another's to it, and nothing is taken over."""
    server = start()
    new, never = clients(server.port), clients(server.port, module="never")
    assert new.rate.allow("k") and never.rate.allow("mine")
    with pytest.raises(swlimit.RefusedError, match=WRONGTYPE):
        never.rate.allow("k")
    assert new.rate.allow("k").remaining == 98 and never.backend == "script"


def test_a_key_of_another_type_without_the_module(kind, clients, start):
    server = start(module=None)
    old = clients(server.port)
    server.cli("SET", "foreign", "x")
    for _ in range(2):
        with pytest.raises(swlimit.RefusedError, match=WRONGTYPE):
            old.rate.allow("foreign")
    assert old.rate.allow("k") and old.backend == "script"
