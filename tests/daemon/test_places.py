"""Counting servers behind sentinels and TLS, and those that cannot be reached: the log says which, and why."""

import itertools
import json
import re
import socket

import pytest
import trustme

from support.daemon import descriptor
from support.sentinel import watched
from support.server import free_port
from support.tls import encrypted
from support.waiting import eventually

LIMITS = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2, on_failure: deny}}]}"
SERVED, FAILED = "server", "failure"


@pytest.fixture
def at(start_daemon):
    """A daemon that counts on the server of a URL."""
    def at(url, **settings):
        daemon = start_daemon(LIMITS)
        daemon.stop()
        daemon.write_settings(server=url, **settings)
        return daemon.start()

    return at


def decided_by(daemon):
    """Who decides a request that counts nothing."""
    before = daemon.metrics("swlimitd_decisions_total")
    daemon.codes(descriptor("k=probe", hits=0))
    after = daemon.metrics("swlimitd_decisions_total")
    return next((source for (*_, source), count in after.items() if count > before.get((*_, source), 0)), None)


def uses_all(daemon, key):
    eventually(lambda: decided_by(daemon), SERVED, log=lambda: daemon.log)
    assert [daemon.codes(f"k={key}")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]


def test_sentinels(at, start, binaries, tmp_path):
    """They have a password of their own, and a replica takes the master's place."""
    sentinel, master, replica = watched(start, binaries, tmp_path, "ours", ("down-after-milliseconds", 500),
                                        ("failover-timeout", 2000))
    sentinel.cli("ACL", "SETUSER", "asking", "on", ">secret", "~*", "&*", "+@all")
    sentinel.cli("ACL", "SETUSER", "default", "off")
    url = f"redis-sentinel://127.0.0.1:{sentinel.port}/ours"
    daemon = at(url, sentinel={"user": "asking", "password": "secret"})
    uses_all(daemon, "a")
    key = "{d}|k=a|1d"
    assert master.cli("EXISTS", key) == "1"
    eventually(lambda: replica.cli("EXISTS", key), "1")
    master.kill()
    uses_all(daemon, "b")
    assert replica.cli("EXISTS", "{d}|k=b|1d") == "1"
    assert daemon.codes("k=a")[0] == "OVER_LIMIT"
    # Without the password they tell nothing.
    daemon.stop()
    daemon.write_settings(sentinel={"user": "asking", "password": "wrong"})
    daemon.start()
    assert decided_by(daemon) == FAILED


def test_a_primary_that_does_not_know_that_it_was_replaced(at, start, binaries, tmp_path):
    """It goes on granting, and is never told: only the sentinels know."""
    sentinel, master, replica = watched(start, binaries, tmp_path, "ours", ("failover-timeout", 60_000),
                                        of_master={"rename-command": ("SLAVEOF", "")})
    daemon = at(f"redis-sentinel://127.0.0.1:{sentinel.port}/ours")
    uses_all(daemon, "a")
    assert sentinel.cli("SENTINEL", "FAILOVER", "ours") == "OK"
    eventually(lambda: replica.client().info("replication")["role"], "master")
    fresh = itertools.count()

    def counted_by_replica():
        key = f"k={next(fresh)}"
        daemon.codes(key)
        return replica.cli("EXISTS", f"{{d}}|{key}|1d")

    eventually(counted_by_replica, "1")
    assert master.client().info("replication")["role"] == "master"
    uses_all(daemon, "b")
    key = "{d}|k=b|1d"
    assert [server.cli("EXISTS", key) for server in (master, replica)] == ["0", "1"]
    assert daemon.metrics("swlimit_client_failovers_total")[()] == 1
    assert re.search(rf"another server is the rate limit primary now .*to=.*:{replica.port}", daemon.log)


def test_tls_with_a_certificate_of_the_client(at, start, tmp_path):
    server = encrypted(start, tmp_path, asks_clients=True)
    files = {"authority": server.authority, "certificate": server.certificate, "key": server.key}
    files = {name: str(path) for name, path in files.items()}
    url = f"rediss://127.0.0.1:{server.port}"
    uses_all(at(url, server_tls=files), "a")
    daemon = at(url, server_tls={"authority": files["authority"]})
    eventually(lambda: decided_by(daemon) == FAILED and away(daemon), {(f"127.0.0.1:{server.port}", "certificate")})


def away(daemon):
    """The servers that are away, and why."""
    return set(daemon.metrics("swlimitd_server_unavailable_seconds"))


def foreign(start, folder):
    """The URL and settings of a server whose certificate nobody trusts."""
    server = encrypted(start, folder)
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    return f"rediss://127.0.0.1:{server.port}", {"server_tls": {"authority": str(folder / "other.pem")}}, None


def locked(start, _):
    server = start()
    server.cli("CONFIG", "SET", "requirepass", "secret")
    return f"redis://:wrong-secret@127.0.0.1:{server.port}", {}, None


def silent(*_):
    listening = socket.create_server(("127.0.0.1", 0))  # the system accepts for it
    return f"redis://127.0.0.1:{listening.getsockname()[1]}", {"timeout": "200ms"}, listening


UNREACHABLE = {
    "refused": lambda *_: (f"redis://127.0.0.1:{free_port()}", {}, None),
    "unresolved": lambda *_: ("redis://counting.invalid:6379", {}, None),
    "certificate": foreign,
    "auth": locked,
    "no_answer": silent,
}


@pytest.mark.parametrize("reason", UNREACHABLE)
def test_of_whom_it_does_not_reach_it_says_why(at, start, tmp_path, reason):
    url, settings, _kept = UNREACHABLE[reason](start, tmp_path)
    address = url.rpartition("/")[2].rpartition("@")[2]
    daemon = at(url, **settings)
    eventually(lambda: decided_by(daemon) == FAILED and away(daemon), {(address, reason)}, log=lambda: daemon.log)
    assert daemon.metrics("swlimit_client_server_unavailable") == {(address,): 1}
    server, = json.loads(daemon.get("/page/state")[1])["servers"]
    assert (server["address"], server["state"], server["reason"]) == (address, "unavailable", reason)
    # The client's request, and the check at the start, say each the first failure, and that the breaker opens.
    lines = [line for line in daemon.log.splitlines() if "is unavailable" in line]
    assert 1 <= len(lines) <= 4 and all(address in line for line in lines), daemon.log
    is_said = any(server["message"] in line for line in lines)
    assert is_said or server["message"] == "a probe was not answered", (server, daemon.log)
    assert "secret" not in daemon.log
