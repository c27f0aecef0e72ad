"""Each outage that an operator meets has its line in the log, its metric, its sentence in /healthcheck, and its alert.

A real Prometheus decides about the alerts of the packages, with their minutes as seconds.
"""

import re
import signal
import socket
import threading
from contextlib import contextmanager, suppress

import grpc
import pytest

from support.prometheus import ALERTS, prometheus
from support.relay import Relay
from support.waiting import eventually

pytestmark = pytest.mark.long

LIMITS = """
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 1000000, on_failure: local}}
"""
USER = "+@all ~* &* >secret on"


class Rig:
    """A swlimitd that somebody asks all the time, over a relay to its server."""

    def __init__(self, server, relay, daemon):
        self.server, self.relay, self.daemon = server, relay, daemon
        self.over = threading.Event()

    def url(self, password="secret"):
        return f"redis://limits:{password}@127.0.0.1:{self.relay.port}"

    def ask(self):
        while not self.over.wait(0.05):
            with suppress(grpc.RpcError, OSError):
                self.daemon.codes("k=x")

    def restart(self, **settings):
        self.daemon.stop()
        (self.daemon.folder / "log").write_text("")
        self.daemon.write_settings(**settings)
        self.daemon.start()


@contextmanager
def killed(rig):
    rig.server.kill()
    yield
    rig.server.start()


@contextmanager
def hung(rig):
    rig.server.process.send_signal(signal.SIGSTOP)
    yield
    rig.server.process.send_signal(signal.SIGCONT)


@contextmanager
def out_of_memory(rig):
    rig.server.cli("CONFIG", "SET", "maxmemory", "1")
    yield


@contextmanager
def rotated_password(rig):
    rig.server.cli("ACL", "SETUSER", "limits", ">other", "<secret")
    rig.server.cli("CLIENT", "KILL", "USER", "limits")
    yield


@contextmanager
def wrong_password_from_the_start(rig):
    """Nobody asks anything: the daemon has to find out by itself."""
    rig.over.set()
    rig.restart(server=rig.url("wrong"))
    yield


@contextmanager
def no_rights(rig):
    rig.server.cli("ACL", "SETUSER", "limits", "-swlimit.allow")
    rig.restart()
    yield


@contextmanager
def read_only(rig):
    rig.server.cli("REPLICAOF", "127.0.0.1", "1")
    yield
    rig.server.cli("REPLICAOF", "NO", "ONE")


@contextmanager
def slow(rig):
    rig.relay.delay = 0.5
    yield
    rig.relay.delay = 0.0


@contextmanager
def flapping(rig):
    over = threading.Event()

    def flap():
        while not over.wait(1.5):
            rig.server.process.send_signal(signal.SIGSTOP)
            over.wait(1.5)
            rig.server.process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=flap)
    thread.start()
    yield
    over.set()
    thread.join()
    rig.server.process.send_signal(signal.SIGCONT)


@contextmanager
def evicting(rig):
    rig.server.cli("CONFIG", "SET", "maxmemory-policy", "volatile-lru", "maxmemory", "100mb")
    rig.restart()
    yield


@contextmanager
def evicted(rig):
    """The server evicts keys while swlimitd runs."""
    used = int(re.search(r"^used_memory:(\d+)", rig.server.cli("INFO", "memory"), re.MULTILINE)[1])
    rig.server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", str(used + 2_000_000))
    rig.restart()
    eventually(lambda: rig.daemon.metrics("swlimit_client_server_evicted_keys"))
    rig.server.cli("DEBUG", "POPULATE", "100000", "other", "100")
    rig.server.cli("SET", "more", "x" * 100_000)
    yield


@contextmanager
def too_many_clients(rig):
    # Without the relay, which ends both ways at once.
    rig.restart(server=rig.url().replace(str(rig.relay.port), str(rig.server.port)))
    eventually(lambda: rig.daemon.metrics("swlimit_client_server_round_trip_seconds"))
    with rig.server.client(single_connection_client=True) as operator:
        idle = [socket.create_connection(("127.0.0.1", rig.server.port)) for _ in range(25)]
        operator.config_set("maxclients", 20)
        operator.execute_command("CLIENT", "KILL", "USER", "limits")
        yield
    for connection in idle:
        connection.close()


@contextmanager
def all_dead(rig):
    rig.daemon.process.kill()
    rig.daemon.process.wait()
    yield


UNAVAILABLE = r"WARN .*server \S+ is unavailable \("
# What is broken: the log's line, a metric's name and its labels but the server, the sentence, and the alerts.
OUTAGES = {
    killed: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("disconnected",), r"unavailable \(disconnected\)",
             ["SwlimitdServerUnavailable", "SwlimitdDecidesWithoutServer"]),
    hung: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("no_answer",), r"unavailable \(no_answer\)",
           ["SwlimitdServerUnavailable", "SwlimitdDecidesWithoutServer"]),
    out_of_memory: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("OOM",), r"unavailable \(OOM\)",
                    ["SwlimitdServerUnavailable"]),
    rotated_password: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("auth",), r"unavailable \(auth\)",
                       ["SwlimitdServerUnavailable"]),
    wrong_password_from_the_start: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("auth",),
                                    r"unavailable \(auth\)",
                                    ["SwlimitdServerUnavailable", "SwlimitdServerCannotDecide"]),
    no_rights: (r"WARN .*lacks these rights.*swlimit\.allow", "swlimitd_server_can_decide", (),
                r"lacks swlimit\.allow: limits with a window are errors",
                ["SwlimitdServerCannotDecide", "SwlimitdRequestsFail"]),
    read_only: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("READONLY",), r"unavailable \(READONLY\)",
                ["SwlimitdServerUnavailable"]),
    slow: (r"WARN .*server \S+ is slow: ", "swlimit_client_slow_total", (), "is slow|no_answer",
           ["SwlimitdDecidesWithoutServer"]),
    flapping: (UNAVAILABLE, "swlimit_client_opened_total", (), r"unavailable \(no_answer\)",
               ["SwlimitdDecidesWithoutServer"]),
    evicting: (r"WARN .*evicts keys, and limits with them.*volatile-lru", "swlimit_client_server_evicts", (),
               r"evicts keys \(volatile-lru\)", ["SwlimitdServerEvicts"]),
    evicted: (r"WARN .*evicts keys, and limits with them.*allkeys-lru", "swlimit_client_server_evicted_keys", (),
              r"evicts keys \(allkeys-lru\)", ["SwlimitdServerEvicts", "SwlimitdKeysEvicted"]),
    too_many_clients: (UNAVAILABLE, "swlimitd_server_unavailable_seconds", ("too_many_clients",),
                       r"unavailable \(too_many_clients\)", ["SwlimitdServerUnavailable"]),
    all_dead: (None, None, (), None, ["SwlimitdAbsent", "SwlimitdDown"]),
}


@pytest.fixture
def rig(start, start_daemon):
    server = start(options={"maxmemory-policy": "noeviction"})
    server.cli("ACL", "SETUSER", "limits", *USER.split())
    with Relay(server.port) as relay:
        daemon = start_daemon(LIMITS, relay, timeout="250ms")
        rig = Rig(server, relay, daemon)
        rig.restart(server=rig.url())
        asking = threading.Thread(target=rig.ask)
        asking.start()
        yield rig
        rig.over.set()
        asking.join()


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
def test_an_outage_is_seen(rig, outage, tmp_path):
    line, metric, labels, sentence, alerts = OUTAGES[outage]
    daemon = rig.daemon
    eventually(lambda: daemon.metrics("swlimitd_decisions_total").get(("d", "k", "granted", "server"), 0) > 5)
    assert daemon.get("/healthcheck") == (200, "OK\n")
    quick = tmp_path / "alerts.yaml"
    quick.write_text(re.sub(r"\b(\d+)([mh])\b", lambda found: f"{int(found[1]) * 3 * (20 if found[2] == 'h' else 1)}s",
                            ALERTS.read_text()))
    with prometheus(daemon, tmp_path, quick) as ask:
        eventually(lambda: ask("swlimitd_build_info") and ask("up == 1"), seconds=60)

        def firing():
            return {one["metric"]["alertname"] for one in ask('ALERTS{alertstate="firing"}')}

        eventually(lambda: not firing() & set(alerts), seconds=60, log=firing)
        with outage(rig):
            if line:
                eventually(lambda: re.search(line, daemon.log), log=lambda: daemon.log)
                eventually(lambda: any(of[len(of) - len(labels):] == labels for of in daemon.metrics(metric)),
                           log=lambda: f"{daemon.metrics(metric)} {daemon.log}")
                eventually(lambda: re.search(sentence, daemon.get("/healthcheck")[1]),
                           log=lambda: daemon.get("/healthcheck")[1])
                assert daemon.get("/healthcheck")[0] == 200
            eventually(lambda: set(alerts) <= firing(), seconds=200, log=lambda: f"{firing()} {daemon.log[-3000:]}")
