"""What health checks, `--check --server` and metrics say of a server that is there and yet does not do."""

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.server import MODULE, free_port
from support.waiting import eventually

JSON = {"Content-Type": "application/json"}
LIMITS = """
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 10, mode: %s, on_failure: %s}}
"""


def limits(mode="cached", on_failure="local"):
    return LIMITS % (mode, on_failure)


def user(server, *rights, password="secret"):
    """The URL of a user with these rights."""
    server.cli("ACL", "SETUSER", "some", "reset", "on", f">{password}", "~*", "&*", *rights)
    return f"redis://some:secret@127.0.0.1:{server.port}"


def starting(start_daemon, text, **settings):
    """A daemon that is started with these settings only."""
    daemon = start_daemon("domain: d")
    daemon.stop()
    daemon.write_limits(text)
    daemon.write_settings(**settings)
    return daemon


def health(daemon):
    return daemon.get("/healthcheck")


def grpc_health(daemon):
    with daemon.channel() as channel:
        asked = health_pb2.HealthCheckRequest(service="ratelimit")
        return health_pb2.HealthCheckResponse.ServingStatus.Name(
            health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10).status)


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-random"])
def test_a_server_that_evicts_keys(start_daemon, start, policy):
    server = start(options={"maxmemory": "100mb", "maxmemory-policy": policy})
    daemon = start_daemon(limits(), server)
    said = f"127.0.0.1:{server.port} evicts keys ({policy}), and limits with them: use noeviction"
    eventually(lambda: health(daemon), (200, f"OK, but {said}\n"))
    status, printed = daemon.run("--check", "--server")
    assert (status, f"(maxmemory-policy {policy}): use noeviction" in printed) == (0, True), printed
    assert daemon.codes("k=x")[0] == "OK"
    eventually(lambda: daemon.metrics("swlimit_client_server_evicts"), {(f"127.0.0.1:{server.port}",): 1})
    assert daemon.metrics("swlimit_client_server_evicted_keys") == {(f"127.0.0.1:{server.port}",): 0}
    assert daemon.log.count("evicts keys") == 2, daemon.log  # of the client, and of the one that checks


@pytest.mark.parametrize("options", [{"maxmemory": "100mb", "maxmemory-policy": "noeviction"},
                                     {"maxmemory": "0", "maxmemory-policy": "volatile-lru"}])
def test_a_server_that_evicts_nothing(start_daemon, start, options):
    daemon = start_daemon(limits(), start(options=options))
    assert daemon.codes("k=x")[0] == "OK"
    eventually(lambda: daemon.metrics("swlimitd_server_can_decide"), {(): 1})
    assert health(daemon) == (200, "OK\n")
    status, printed = daemon.run("--check", "--server")
    assert (status, "evicts" in printed) == (0, False), printed
    assert set(daemon.metrics("swlimit_client_server_evicts").values()) == {0}


def test_a_password_that_is_wrong_from_the_start(start_daemon, server):
    """Before anybody asks anything."""
    url = user(server, "+@all", password="other")
    daemon = starting(start_daemon, limits(), server=url)
    daemon.start()
    address = f"127.0.0.1:{server.port}"
    eventually(lambda: health(daemon), (200, f"OK, but {address} is unavailable (auth): on_failure decides\n"))
    assert daemon.metrics("swlimit_client_server_unavailable") == {(address,): 1}
    assert set(daemon.metrics("swlimitd_server_unavailable_seconds")) == {(address, "auth")}
    assert daemon.metrics("swlimitd_server_can_decide") == {(): 0}
    status, printed = daemon.run("--check", "--server")
    assert (status, "WRONGPASS" in printed) == (1, True), printed
    user(server, "+@all")
    eventually(lambda: health(daemon), (200, "OK\n"))
    assert daemon.metrics("swlimit_client_server_unavailable") == {(address,): 0}


def test_a_password_that_changes(start_daemon, server):
    daemon = starting(start_daemon, limits(), server=user(server, "+@all"))
    daemon.start()
    assert daemon.codes("k=x")[0] == "OK"
    assert health(daemon) == (200, "OK\n")
    server.cli("ACL", "SETUSER", "some", "<secret", ">other")
    server.cli("CLIENT", "KILL", "USER", "some")

    def said():
        daemon.codes("k=x")
        return health(daemon)[1]

    eventually(lambda: "is unavailable (auth): on_failure decides" in said())


@pytest.mark.parametrize("mode, missing, without, decides", [
    ("cached", "swlimit.allow", "limits with a window are errors", False),
    ("cached", "pttl", "denials are remembered for max_untracked_age only", True),
    ("leased", "time", "mode leased decides as cached; by the script, this machine's clock decides", True),
    ("leased", "info", "mode leased decides as cached, and evictions are not noticed", True),
])
def test_a_right_that_is_missing(start_daemon, server, mode, missing, without, decides):
    daemon = starting(start_daemon, limits(mode, "error"), server=user(server, "+@all", f"-{missing}"))
    status, printed = daemon.run("--check", "--server")
    assert (status, printed) == (
        1, f"swlimitd: redis://127.0.0.1:{server.port} denies its user these rights: {missing}\n"
           f"  without {missing}: {without}\n")
    daemon.start()
    eventually(lambda: health(daemon), (200, f"OK, but the user lacks {missing}: {without}\n"))
    assert daemon.metrics("swlimitd_server_can_decide") == {(): float(decides)}
    assert daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]})[0] == (
        200 if decides else 500)
    user(server, "+@all")
    eventually(lambda: daemon.metrics("swlimitd_server_can_decide"), {(): 1})


def test_rights_that_only_leases_need_are_asked_where_a_rule_leases(start_daemon, server):
    """Else their alert would never end for a user with the rights of the page."""
    url = user(server, "+@all", "-time", "-info")
    lacking = {"cached": set(), "leased": {("time",), ("info",)}}
    for mode, rights in lacking.items():
        daemon = starting(start_daemon, limits(mode), server=url)
        assert (daemon.run("--check", "--server")[0] == 0) == (not rights)
        daemon.start()
        assert daemon.codes("k=x")[0] == "OK"
        eventually(lambda: {right for right, lacks in daemon.metrics("swlimit_client_lacks").items() if lacks}, rights)
        daemon.stop()
        assert ("and swlimit does without" in daemon.log) == bool(rights), daemon.log


def test_ready_once_the_server_can_decide(start_daemon, start):
    port = free_port()
    daemon = starting(start_daemon, limits(), server=f"redis://127.0.0.1:{port}", wait_for_server=True)
    daemon.start()
    assert daemon.get("/ready") == (503, "waiting for the server\n")
    assert health(daemon)[0] == 200 and grpc_health(daemon) == "NOT_SERVING"
    server = start(port=port)
    eventually(lambda: daemon.get("/ready"), (200, "OK\n"))
    assert grpc_health(daemon) == "SERVING"
    # It stays so: on_failure decides.
    server.kill()
    eventually(lambda: daemon.codes("k=x") and "unavailable" in health(daemon)[1])
    assert daemon.get("/ready") == (200, "OK\n") and grpc_health(daemon) == "SERVING"


def test_ready_from_the_start(start_daemon):
    daemon = starting(start_daemon, limits(), server=f"redis://127.0.0.1:{free_port()}")
    daemon.start()
    assert daemon.get("/ready") == (200, "OK\n") and grpc_health(daemon) == "SERVING"


def test_a_port_for_operators(start_daemon, server):
    port = free_port()
    daemon = start_daemon(limits(), server)
    daemon.stop()
    decisions = daemon.http_port
    daemon.write_settings(http=daemon.settings["http"] | {"monitoring_address": f"127.0.0.1:{port}"})
    daemon.start()
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}
    paths = {"/metrics": None, "/": None, "/page/state": None, "/rlconfig": None, "/explain": asked}

    def statuses(at, paths):
        daemon.http_port = at
        return {path: daemon.http(path, body, headers=JSON)[0] for path, body in paths.items()}

    assert statuses(port, paths) == dict.fromkeys(paths, 200)
    assert statuses(decisions, paths) == dict.fromkeys(paths, 404)
    both = {"/healthcheck": None, "/ready": None, "/v1/top": None}
    assert statuses(port, both) == statuses(decisions, both) == dict.fromkeys(both, 200)
    proxies = {"/auth/": None, "/json": asked}
    assert statuses(decisions, proxies) == dict.fromkeys(proxies, 200)
    assert statuses(port, proxies) == dict.fromkeys(proxies, 404)


@pytest.mark.parametrize("on_failure, expected", [
    ("allow", ["OK", "OK", "OK"]), ("deny", ["OVER_LIMIT"] * 3), ("local", ["OK", "OVER_LIMIT", "OVER_LIMIT"]),
])
@pytest.mark.parametrize("mode", ["direct", "cached", "leased"])
def test_what_the_server_refuses_is_decided_by_policy(start_daemon, server, mode, on_failure, expected):
    url = user(server, "+@all", "-swlimit.allow")
    daemon = starting(start_daemon, limits(mode, on_failure), server=url, on_refused="on_failure")
    daemon.start()
    assert [daemon.codes("k=x")[0] for _ in range(3)] == expected
    assert daemon.log.count("the rate limit server refuses commands; on_failure decides") == 1, daemon.log
    assert daemon.metrics("swlimitd_decisions_total").keys() >= {
        ("d", "k", "granted" if code == "OK" else "denied", "failure") for code in expected}
    # The server is not taken for one that does not answer.
    assert set(daemon.metrics("swlimit_client_server_unavailable").values()) == {0}


def test_without_a_word_what_the_server_refuses_is_an_error(start_daemon, server):
    daemon = starting(start_daemon, limits("cached", "allow"), server=user(server, "+@all", "-swlimit.allow"))
    daemon.start()
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}
    assert daemon.json(asked)[0] == 500


def test_a_module_that_is_missing_is_decided_by_policy(start_daemon, start):
    bare = start(module=None)
    daemon = start_daemon(limits("cached", "allow"), bare, module="always", on_refused="on_failure")
    assert daemon.codes("k=x") == ("OK", "OK")
    eventually(lambda: "--loadmodule" in health(daemon)[1])
    assert bare.cli("MODULE", "LOAD", str(MODULE)) == "OK"
    eventually(lambda: health(daemon), (200, "OK\n"))
