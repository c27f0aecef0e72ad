"""Starting, changing and ending swlimitd."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.daemon import DAEMON, request, rls_pb2_grpc
from support.server import ROOT
from support.waiting import eventually

SOON = 10  # s: the 5 that are promised, of a machine that is busy
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Asking:
    """How often was asked."""

    def __init__(self, threads):
        self.over = threading.Event()
        self.made = [0] * threads

    def work(self, number, ask):
        while not self.over.is_set():
            ask()
            self.made[number] += 1

    def often(self, requests):
        """Wait until each thread has made this many requests more, or has died of one."""
        goals = [made + requests for made in self.made]
        eventually(lambda: all(made >= goal for made, goal in zip(self.made, goals)), log=lambda: str(self.made))


@contextmanager
def asking(*functions):
    """Call each of these functions over and over, in a thread of its own, while the block runs: an `Asking`.

    What one raises is raised again at the end of the block, and so it is when one has never been called in full.
    """
    load = Asking(len(functions))
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(load.work, number, function) for number, function in enumerate(functions)]
        try:
            yield load
        finally:
            load.over.set()
            for future in running:
                future.result()
    assert all(load.made), load.made


def limits(number):
    return f"domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n"


def in_force(daemon):
    """The limit in force."""
    return daemon.ask("k=x").statuses[0].current_limit.requests_per_unit


@pytest.mark.parametrize("settings, text, expected", [
    ({}, limits(3), (0, "swlimitd.yaml is valid: 1 limits")),
    ({}, limits("many"), (1, "limits.yaml:3:57: a whole number is expected here, 0 or more")),
    ({}, "domain: d\ndescriptor: []\n", (1, "limits.yaml:2:1: unknown field `descriptor`")),
    ({"limits": ["missing.yaml"]}, "", (1, "missing.yaml: No such file")),
    ({"overlays": ["limits.yaml"], "limits": []}, limits(3), (1, "limits.yaml: no other file has the domain")),
    ({"servers": "redis://"}, "", (1, "swlimitd.yaml:1:")),
    ({"timeout": "soon"}, "", (1, "'soon' is not a duration")),
    ({"grpc": {"address": "here"}}, "", (1, "'here' is not an address such as 127.0.0.1:8081")),
    ({"grpc": {"tls": {"certificate": "missing.pem", "key": "missing.pem"}}}, limits(3), (1, "missing.pem: No such")),
    ({"grpc": {"address": "unix:/s", "tls": {"certificate": "c", "key": "k"}}}, "", (1, "swlimitd.yaml: unix:/s is")),
    ({"server": "http://127.0.0.1"}, limits(3), (1, "swlimitd.yaml: ")),
])
def test_check(start_daemon, settings, text, expected):
    daemon = start_daemon(limits(1))
    daemon.write_limits(text)
    daemon.write_settings(**settings)
    status, printed = daemon.run("--check")
    assert (status, expected[1] in printed) == (expected[0], True), printed


@pytest.mark.parametrize("settings, expected", [
    ({"server": "http://127.0.0.1"}, "swlimitd.yaml: "),
    ({"grpc": {"address": "unix:/nowhere/socket"}}, "cannot listen at unix:/nowhere/socket"),
    ({"log": {"level": "what=ever=this"}}, "swlimitd.yaml: "),
])
def test_what_cannot_start_says_why(start_daemon, settings, expected):
    daemon = start_daemon(limits(1))
    daemon.write_settings(http={"address": "127.0.0.1:0"}, **({"grpc": {"address": "127.0.0.1:0"}} | settings))
    status, printed = daemon.run()
    assert (status, expected in printed) == (1, True), printed


def test_a_taken_address(start_daemon):
    status, printed = start_daemon(limits(1)).run()
    assert status == 1 and "Address already in use" in printed


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(limits(3))


def test_a_change_is_taken_up(daemon):
    daemon.ask("k=x")
    daemon.write_limits(limits(4))
    eventually(lambda: in_force(daemon), 4)
    assert daemon.metrics("swlimitd_configurations_total") == {("valid",): 2, ("invalid",): 0}


def test_a_file_that_is_added_or_renamed(start_daemon):
    daemon = start_daemon(limits(3))
    folder = daemon.folder / "more"
    folder.mkdir()
    (folder / ".hidden.yaml").write_text("no")
    (folder / "one.yaml").write_text(limits(4))
    daemon.write_settings(limits=["more"])
    eventually(lambda: in_force(daemon), 4)
    (folder / "two.yaml").write_text(limits(5).replace("key: k", "key: other"))
    eventually(lambda: "d.other: 5" in daemon.get("/rlconfig")[1])
    (folder / "next").write_text(limits(6))
    (folder / "next").rename(folder / "one.yaml")
    eventually(lambda: in_force(daemon), 6)


def test_a_mounted_config_map(start_daemon):
    """Kubernetes changes where a link leads to, and the files are links that lead through it."""
    daemon = start_daemon(limits(3))
    mount = daemon.folder / "mount"

    def publish(number):
        version = mount / f"..{number}"
        version.mkdir(parents=True)
        (version / "limits.yaml").write_text(limits(number))
        (mount / "..next").symlink_to(version.name)
        (mount / "..next").rename(mount / "..data")

    publish(4)
    (mount / "limits.yaml").symlink_to("..data/limits.yaml")
    daemon.write_settings(limits=["mount"])
    eventually(lambda: in_force(daemon), 4)
    publish(5)
    eventually(lambda: in_force(daemon), 5)


def test_an_invalid_change_is_refused_whole(daemon):
    daemon.write_limits(limits(4) + "  - {key: other, rate_limit: {unit: eon}}\n")
    eventually(lambda: "'eon' is not a unit of time" in daemon.log)
    assert re.search(r"ERROR.* invalid.*limits.yaml:4:\d+:", daemon.log)
    assert in_force(daemon) == 3
    assert daemon.metrics("swlimitd_configurations_total")["invalid",] >= 1
    daemon.write_limits(limits(5))
    eventually(lambda: in_force(daemon), 5)


def test_hangup_reads_again(daemon):
    daemon.send_signal(signal.SIGHUP)
    eventually(lambda: "reloaded, unchanged" in daemon.log)
    assert in_force(daemon) == 3


def test_what_needs_a_restart_is_said(daemon):
    daemon.write_settings(timeout="1s")
    eventually(lambda: "after a restart only" in daemon.log)


def test_counts_outlive_a_reload(start_daemon):
    """In this process, too: nobody is let through twice because somebody edits a file."""
    text = limits(1).replace("unit: day", "unit: day, mode: local")
    daemon = start_daemon(text)
    assert daemon.codes("k=x")[0] == "OK"
    daemon.write_limits(text + "  - {key: other}\n")
    eventually(lambda: daemon.metrics("swlimitd_configurations_total")["valid",], 2)
    assert daemon.codes("k=x")[0] == "OVER_LIMIT"


def test_nothing_is_lost_while_it_reloads(start_daemon, server):
    daemon = start_daemon(limits(10_000), server)

    def ask(stub):
        reply = stub.ShouldRateLimit(request("k=x"), timeout=10)
        assert [status.HasField("current_limit") for status in reply.statuses] == [True]

    with ExitStack() as channels:
        stubs = [rls_pb2_grpc.RateLimitServiceStub(channels.enter_context(daemon.channel())) for _ in range(4)]
        with asking(*(partial(ask, stub) for stub in stubs)) as load:
            for number in range(10_001, 10_006):
                daemon.write_limits(limits(number))
                eventually(lambda: in_force(daemon), number)
                load.often(5)


def health(stub, name="ratelimit"):
    return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status


@pytest.fixture(params=[False, True], ids=["all cores", "one core"])
def cores(request):
    """What starts meanwhile has one core, or all."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)} if request.param else usable)
    yield
    os.sched_setaffinity(0, usable)


@pytest.mark.usefixtures("cores")
def test_the_end_is_told_and_then_comes(start_daemon, server):
    text = limits(1000).replace("unit: day", "unit: day, mode: eventual, sync_interval: 1h")
    daemon = start_daemon(text, server)
    with daemon.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert [health(stub), health(stub, "")] == [SERVING, SERVING]
        watched = stub.Watch(health_pb2.HealthCheckRequest(service="ratelimit"), timeout=30)
        assert next(watched).status == SERVING
        for _ in range(5):
            daemon.ask("k=x")
        daemon.send_signal(signal.SIGTERM)
        assert next(watched).status == NOT_SERVING
        assert daemon.get("/healthcheck") == (503, "stopping\n")
        assert daemon.codes("k=x")[0] == "OK"  # who comes is still answered
    assert daemon.stop() < SOON
    # What was counted in the background has been sent.
    assert "6" in server.cli("SWLIMIT.INFO", "{d}|k=x|1d").split("\n")


def test_it_ends_within_5_seconds_whatever_others_do(start_daemon, start):
    server = start()
    text = limits(1000).replace("unit: day", "unit: day, mode: leased")
    daemon = start_daemon(text, server)
    with daemon.channel() as channel:
        daemon.ask("k=x")
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watched).status == SERVING  # a call that does not end
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert daemon.stop() < SOON
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_it_ends_within_5_seconds_while_a_name_does_not_resolve(start_daemon, tmp_path, monkeypatch):
    library = tmp_path / "resolver.so"
    source = ROOT / "tests/support/resolver.c"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    daemon = start_daemon(limits(3))
    daemon.stop()
    daemon.write_settings(server="redis://redis.example.com")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    daemon.start()
    with pytest.raises(grpc.RpcError) as error:
        daemon.ask("k=x")
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert daemon.stop() < SOON


def test_systemd_is_told(start_daemon, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon = start_daemon(limits(3))
        assert notified.recv(100).split() == [b"READY=1"]
        daemon.send_signal(signal.SIGTERM)
        assert notified.recv(100).split() == [b"STOPPING=1"]
        daemon.stop()


def test_connections_end_with_age(start_daemon):
    """So that clients connect again, and reach instances that have started since. Here one does not notice it."""
    daemon = start_daemon(limits(3))
    daemon.stop()
    daemon.write_settings(grpc=daemon.settings["grpc"] | {"max_connection_age": "1s", "max_connection_age_grace": "1s"})
    daemon.start()
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        while connection.recv(1000):  # until the daemon closes it
            pass
    assert daemon.codes("k=x") == ("OK", "OK")


def test_leases_are_given_back(start_daemon, server):
    daemon = start_daemon(limits(1000).replace("unit: day", "unit: day, mode: leased"), server)
    for _ in range(50):
        daemon.ask("k=x")
    daemon.stop()
    fields = server.cli("SWLIMIT.INFO", "{d}|k=x|1d").split("\n")
    assert fields[fields.index("total") + 1] == "50"


def test_a_unix_socket(start_daemon):
    daemon = start_daemon(limits(3))
    daemon.stop()
    socket = daemon.folder / "grpc.sock"
    daemon.write_settings(grpc={"address": f"unix:{socket}"})

    def codes():
        # Left to itself this client names the path as its authority, which is none.
        options = [("grpc.default_authority", "swlimitd")]
        return daemon.codes("k=x", channel=grpc.insecure_channel(f"unix:{socket}", options))

    daemon.start()
    assert codes() == ("OK", "OK")
    # Killed, it leaves the socket behind, and the next one takes it over.
    daemon.process.kill()
    daemon.process.wait()
    assert socket.exists()
    daemon.start()
    assert codes() == ("OK", "OK")
    status, printed = daemon.run()
    assert status == 1 and "Address already in use" in printed


def test_logs_for_machines(start_daemon):
    daemon = start_daemon(limits(3), log={"format": "json", "level": "info"})
    daemon.stop()
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    assert {line["fields"]["message"] for line in lines} >= {"listening", "stopping"}


def test_the_servers_address_from_the_environment(start_daemon, server, monkeypatch):
    monkeypatch.setenv("SWLIMITD_SERVER", f"redis://127.0.0.1:{server.port}")
    start_daemon(limits(3)).ask("k=x")
    assert server.cli("KEYS", "*") == "{d}|k=x|1d"


def test_an_overlay(start_daemon):
    daemon = start_daemon(limits(3))
    (daemon.folder / "over.yaml").write_text("{domain: d, descriptors: [{key: k, rate_limit: {window: 30d}}]}")
    daemon.write_settings(overlays=["over.yaml"])
    eventually(lambda: daemon.get("/rlconfig")[1], "d.k: 3 per 30d, resolution 60h\n")
    os.truncate(daemon.folder / "over.yaml", 0)
    eventually(lambda: "over.yaml: there is no domain" in daemon.log)


def test_more_connections_than_are_usual(start_daemon):
    """Systems let a process open fewer files than they could: as many as it asks for."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    daemon = start_daemon(limits(3), command=("prlimit", f"--nofile=64:{most}", DAEMON))
    connections = [socket.create_connection(("127.0.0.1", daemon.http_port), timeout=10) for _ in range(200)]
    assert daemon.codes("k=x") == ("OK", "OK")
    for connection in connections:
        connection.close()
