"""Clients of valkey-glide, for threads and for asyncio: what they show less than others."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import glide
import glide_sync
import pytest

import swlimit
from support.cluster import Cluster
from support.relay import Relay
from support.waiting import eventually
from swlimit._transport.glide import _serve


@pytest.fixture
def library(kind):
    return glide if kind.prefix else glide_sync


@pytest.fixture
def opened(kind, library):
    """Makes clients, which are closed after the test."""
    made = []

    def opened(port, make="GlideClient", **options):
        configuration = getattr(library, f"{make}Configuration")
        made.append(kind.call(getattr(library, make).create, configuration(
            [library.NodeAddress("127.0.0.1", port)], **{"request_timeout": 5000} | options)))
        return made[-1]

    yield opened
    for client in made:
        kind.call(client.close)


@pytest.fixture
def limiters(kind, server, opened):
    """Makes limiters of 3 a minute, on a client of the server under test unless it says otherwise."""
    made = []

    def limiters(client=None, make=None, *words, **options):
        client = client or opened(server.port)
        made.append((make or kind.limiter)(client, *words or (3, "1m", "1s"), **{"timeout": 2.0} | options))
        return made[-1]

    yield limiters
    for one in made:
        one.close()


@pytest.mark.parametrize("module", ["always", "never"])
def test_every_kind_of_limit(kind, server, opened, limiters, module):
    """The script decides as the module does."""
    client, options = opened(server.port), {"module": module, "prefix": f"{module}:{kind.name}:"}
    rate = limiters(client, **options)
    decisions = [rate.allow("k", 2) for _ in range(2)]
    assert [(one.granted, one.remaining, one.source) for one in decisions] == [(2, 1, "server"), (0, 1, "server")]
    assert 50 < decisions[1].retry_after < 62
    assert (rate.refund("k", 1), rate.record("k", 1).remaining) == (1, 1)
    assert rate.reset("k") and rate.block("k", "1h") and rate.unblock("k")
    holds = limiters(client, kind.hold_limiter, 1, **options)
    held = holds.hold("h", wait=1)
    assert held.is_live and [one.id for one in holds.holders("h")] == [held.id]
    assert not holds.hold("h", wait=0.1)
    kind.call(held.release)
    budget = limiters(client, kind.budget_limiter, 5, "year", **options)
    assert [budget.allow("b", 2).remaining, budget.peek("b").remaining] == [3, 3]
    admission = kind.admit([rate.request("{u}r", 2), holds.request("{u}h"), budget.request("{u}b", 2)])
    assert [one.remaining for one in admission.each] == [1, 0, 3]
    assert kind.call(admission.settle, 1, 1) == [-1, -1]
    state, = rate.servers()
    assert (state.address, state.backend) == (
        f"127.0.0.1:{server.port}", {"always": "module", "never": "script"}[module])


def test_a_server_without_the_module(start, opened, limiters):
    limiter = limiters(opened(start(module=None).port))
    assert [limiter.allow("k").remaining for _ in range(3)] == [2, 1, 0]
    assert limiter.servers()[0].backend == "script"


def test_holds_are_renewed(kind, limiters):
    limiter = limiters(None, kind.hold_limiter, 1, ttl="3s")
    held = limiter.hold("renewed")
    time.sleep(3.5)
    assert held.is_live
    kind.call(held.release)
    assert limiter.hold("renewed")


def test_waiting_holds_up_nobody(server, limiters, opened):
    """The client's connection is the program's own: callers wait in this process."""
    limiter = limiters(opened(server.port), None, 1, "1s", "1ms")
    server.cli("CONFIG", "RESETSTAT")
    limiter.allow("waited")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(limiter.acquire, "waited", timeout=5) for _ in range(2)]
        time.sleep(0.05)
        assert limiter.allow("other").source == "server"
        assert [bool(one.result()) for one in waiting] == [True, True]
    calls = server.client().info("commandstats")
    assert "cmdstat_swlimit.acquire" not in calls and "cmdstat_client|tracking" not in calls


def test_a_known_denial_ends_soon(limiters):
    """Nothing announces what is given back: a denial is known for max_untracked_age."""
    limiter = limiters(max_untracked_age=0.3)
    limiter.allow("known", 3)
    assert [limiter.allow("known").source for _ in range(2)] == ["server", "cache"]
    time.sleep(0.35)
    assert limiter.allow("known").source == "server"


@pytest.fixture
def refused(kind, server, opened):
    """Makes clients that get an error whatever they ask."""
    def refused(reply):
        client = opened(server.port)
        ask = client.custom_command
        client.custom_command = lambda words: ask(["EVAL", "return redis.error_reply(ARGV[1])", "0", reply])
        return client
    return refused


def test_error_replies_are_in_the_server_s_words(server, limiters, refused):
    server.cli("SET", "text", "v")
    with pytest.raises(swlimit.RefusedError, match="^WRONGTYPE "):
        limiters(mode="direct", on_failure="error").allow("text")
    for reply, reason in [("OOM no room", "OOM"), ("READONLY a replica", "READONLY"), ("LOADING it", "LOADING"),
                          ("NOAUTH first", "auth"), ("CLUSTERDOWN now", "CLUSTERDOWN"), ("BUSY a script", "BUSY")]:
        with pytest.raises(swlimit.UnavailableError) as raised:
            limiters(refused(reply), mode="direct", on_failure="error").allow("k")
        assert raised.value.reason == reason
    with pytest.raises(swlimit.WrongClientError, match="use a GlideClusterClient"):
        limiters(refused("MOVED 1 127.0.0.1:1"), mode="direct").allow("k")


def test_an_unanswered_request_is_decided_by_the_policy(kind, server, opened, limiters):
    """Its late grant stays counted: nobody sees which server would get the refund. The next one is answered."""
    with Relay(server.port) as relay:
        limiter, late = limiters(opened(relay.port), mode="direct", on_failure="deny", timeout=0.2), f"late:{kind.name}"
        limiter.allow("warm")
        relay.delay = 0.6
        assert limiter.allow(late).source == "failure"
        relay.delay = 0.0
        time.sleep(1)
        assert server.cli("SWLIMIT.PEEK", late, "3", "1m", "1s").split()[2] == "2"
        eventually(lambda: limiter.allow("back").source, "server")


def test_a_reply_that_the_client_drops_is_no_answer(server, opened, limiters):
    with Relay(server.port) as relay:
        client = opened(relay.port, request_timeout=200)
        limiter = limiters(client, mode="direct", on_failure="error", timeout=0.15)
        limiter.allow("k")
        relay.swallows = True
        with pytest.raises(swlimit.UnavailableError) as raised:
            limiter.allow("k")
        assert raised.value.reason == "no_answer"


def test_a_command_that_is_cut_is_not_asked():
    """An interrupt may end a connection in the middle of one."""
    asked = []
    command = b"*3\r\n$3\r\nSET\r\n$12\r\nabcdefghijkl\r\n$1\r\n1\r\n"
    for sent in range(len(command) + 1):
        near, far = socket.socketpair()
        near.sendall(command[:sent])
        near.close()
        _serve(SimpleNamespace(custom_command=asked.append), far)
    assert asked == [[b"SET", b"abcdefghijkl", b"1"]]


def test_a_client_that_is_closed_leaves_the_policy(kind, server, opened, limiters):
    client = opened(server.port)
    limiter = limiters(client, mode="direct", on_failure="deny")
    assert limiter.allow("closed").source == "server"
    kind.call(client.close)
    assert limiter.allow("closed").source == "failure"


def test_what_it_cannot_do_is_said_when_the_limiter_is_made(kind, library, server, opened):
    client = opened(server.port, request_timeout=1000)
    kind.limiter(client, 3, "1m", timeout=0.999).close()
    sentence = "^timeout must be less than 1000 ms, after which the client drops replies, not"
    with pytest.raises(ValueError, match=sentence):
        kind.limiter(client, 3, "1m", timeout=1.0)
    with pytest.raises(ValueError, match=sentence):
        kind.hold_limiter(client, 3)
    with pytest.raises(TypeError, match="not a glide"):
        (swlimit.Limiter if kind.prefix else swlimit.AsyncLimiter)(client, 3, "1m")
    with pytest.raises(TypeError, match=r"make it with ReadFrom\.PRIMARY"):
        kind.limiter(opened(server.port, read_from=library.ReadFrom.PREFER_REPLICA), 3, "1m")


@pytest.fixture(scope="module")
def cluster(starting):
    with starting() as start:
        yield Cluster(start)


@pytest.mark.parametrize("module", ["always", "never"])
def test_a_cluster(kind, cluster, opened, limiters, module):
    """Each key at its own primary; a decision of several keys, too."""
    client, prefix = opened(cluster.masters()[0].port, "GlideClusterClient"), f"{module}:{kind.name}:"
    limiter = limiters(client, module=module, prefix=prefix)
    other = limiters(client, None, 5, "1m", module=module, prefix=f"{prefix}other:")
    for number in range(20):
        assert [limiter.allow(f"k:{number}").source for _ in range(2)] == ["server"] * 2
        assert limiter.peek(f"k:{number}").remaining == 1
    decisions = kind.allow_all(limiter.request("{t}1"), other.request("{t}2"))
    assert [one.remaining for one in decisions.members] == [2, 4]
    assert limiter.servers()[0].state == "up"
