"""Where limits are read: folders, links that are swapped, and files that are wrong."""

import os
import re

import pytest

from support.server import MODULE
from support.waiting import eventually


def limits(number, domain="d"):
    return f"domain: {domain}\ndescriptors:\n  - {{key: k, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n"


def in_force(daemon):
    """The limit in force."""
    return daemon.ask("k=x").statuses[0].current_limit.requests_per_unit


def swap(link, target):
    """Let a link lead elsewhere in one step, as `mv -T` does."""
    following = link.with_name("following")
    following.symlink_to(target)
    following.rename(link)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_link_above_the_folder(start_daemon):
    """RUNTIME_ROOT is a link to a version, and the whole version is swapped."""
    daemon = start_daemon(limits(3))
    for number in (4, 5, 6):
        write(daemon.folder / f"versions/{number}/ratelimit/config/limits.yaml", limits(number))
    (daemon.folder / "current").symlink_to("versions/4")
    daemon.write_settings(limits=["current/ratelimit/config"])
    eventually(lambda: in_force(daemon), 4)
    for number in (5, 6):
        swap(daemon.folder / "current", f"versions/{number}")
        eventually(lambda number=number: in_force(daemon), number)
    # A file of the version that is linked now.
    write(daemon.folder / "versions/6/ratelimit/config/limits.yaml", limits(7))
    eventually(lambda: in_force(daemon), 7)


def test_a_link_to_a_link(start_daemon):
    daemon = start_daemon(limits(3))
    for number in (4, 5):
        write(daemon.folder / f"{number}/limits.yaml", limits(number))
    (daemon.folder / "inner").symlink_to("4")
    (daemon.folder / "outer").symlink_to(daemon.folder / "inner")
    daemon.write_settings(limits=["outer/limits.yaml"])
    eventually(lambda: in_force(daemon), 4)
    swap(daemon.folder / "inner", "5")
    eventually(lambda: in_force(daemon), 5)


def test_a_folder_is_walked(start_daemon):
    """Files of any name, in folders below, too; links to folders are not followed."""
    daemon = start_daemon(limits(3))
    folder = daemon.folder / "config"
    write(folder / "a.yaml", limits(4))
    write(folder / "below/deeper/b", limits(5, "e"))
    write(folder / ".hidden", "no")
    write(folder / ".git/config", "no")
    (folder / "again").symlink_to("below")
    daemon.write_settings(limits=["config"])
    eventually(lambda: daemon.get("/rlconfig")[1].count("\n"), 2)
    assert "e.k: 5 per 1d" in daemon.get("/rlconfig")[1]
    write(folder / "below/deeper/b", limits(6, "e"))
    eventually(lambda: "e.k: 6 per 1d" in daemon.get("/rlconfig")[1])
    write(folder / "below/new/c", limits(7, "f"))
    eventually(lambda: "f.k: 7 per 1d" in daemon.get("/rlconfig")[1])


@pytest.mark.parametrize("settings, status, expected", [
    ({"limits": ["config"]}, 0, "1 limits"),
    ({"limits": ["config"], "ignore_dot_files": False}, 1, "config/.hidden:1:"),
    ({"limits": ["config/empty"]}, 1, "config/empty: the folder has no file"),
    ({"limits": ["config"], "timeout": 50}, 1, "'50' has no unit: 50ms or 50s"),
    ({"limits": ["config"], "max_untracked_age": 100}, 1, "'100' has no unit"),
    ({"grpc": {"address": "127.0.0.1:7"}, "http": {"address": ["127.0.0.1:8", "127.0.0.1:7"]}}, 1, "127.0.0.1:7 is"),
    ({"http": {"address": []}}, 1, "there is no address"),
    ({"traces": {"endpoint": "not a url"}}, 1, "swlimitd.yaml: "),
    ({"server_tls": {"authority": "missing.pem"}}, 1, "missing.pem: No such file"),
    ({"server_tls": {"certificate": "c.pem"}}, 1, "need each other"),
    ({"rate_limit_headers": {"limit": "a header"}}, 1, "'a header' is not a header's name"),
])
def test_check(start_daemon, settings, status, expected):
    daemon = start_daemon(limits(1))
    write(daemon.folder / "config/limits.yaml", limits(1))
    write(daemon.folder / "config/.hidden", "{")
    (daemon.folder / "config/empty").mkdir()
    daemon.write_settings(**settings)
    ended, printed = daemon.run("--check")
    assert (ended, expected in printed) == (status, True), printed


def test_a_wrong_file_is_reported_once(start_daemon):
    daemon = start_daemon(limits(3))
    refused = lambda: daemon.metrics("swlimitd_configurations_total").get(("invalid",), 0)  # noqa: E731
    daemon.write_limits("domain: d\ndescriptors: nothing\n")
    eventually(refused, 1)
    for _ in range(5):  # it is touched, and is as wrong as before
        os.utime(daemon.folder / "limits.yaml")
        (daemon.folder / "limits.yaml").write_text("domain: d\ndescriptors: nothing\n")
    daemon.write_limits("domain: d\ndescriptors: [{}]\n")
    eventually(refused, 2)
    assert len(re.findall(r"ERROR.*configuration is invalid", daemon.log)) == 2
    daemon.write_limits(limits(3))
    eventually(lambda: "equals the one in force again" in daemon.log)
    assert in_force(daemon) == 3


def test_the_start_says_what_runs(start_daemon, server):
    daemon = start_daemon(limits(3), server)
    line = next(line for line in daemon.log.splitlines() if "listening" in line)
    for expected in ('version="', "limits.yaml", "limits=1", f"server=redis://127.0.0.1:{server.port}"):
        assert expected in line, line


@pytest.mark.parametrize("address", ["127.0.0.1", "user:secret@127.0.0.1"])
def test_the_server_is_checked(start_daemon, server, address):
    daemon = start_daemon(limits(3))
    daemon.write_settings(server=f"redis://{address}:{server.port}")
    status, printed = daemon.run("--check", "--server")
    if address == "127.0.0.1":
        assert (status, f"redis://127.0.0.1:{server.port} can decide" in printed) == (0, True), printed
    else:
        assert (status, "WRONGPASS" in printed, "secret" in printed) == (1, True, False), printed


def test_permissions_are_checked(start_daemon, server):
    server.cli("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "-pttl", "-swlimit.peek")
    daemon = start_daemon(limits(3))
    daemon.write_settings(server=f"redis://some:secret@127.0.0.1:{server.port}")
    try:
        status, printed = daemon.run("--check", "--server")
        assert (status, "PTTL" in printed.upper(), "PEEK" in printed.upper()) == (1, True, True), printed
    finally:
        server.cli("ACL", "DELUSER", "some")


def test_a_server_without_the_module(start_daemon, start):
    """The log and health checks say what to do, until it is done."""
    bare = start(module=None)
    daemon = start_daemon(limits(3), bare, module="always")
    status, printed = daemon.run("--check", "--server")
    assert (status, "--loadmodule" in printed) == (1, True), printed
    eventually(lambda: "--loadmodule" in daemon.get("/healthcheck")[1])
    assert re.search("ERROR.*no limit is counted.*--loadmodule", daemon.log)
    assert bare.cli("MODULE", "LOAD", str(MODULE)) == "OK"
    eventually(lambda: daemon.get("/healthcheck"), (200, "OK\n"))


def test_a_server_whose_script_decides(start_daemon, start):
    """Unless it is configured otherwise; and what only the module has, says so."""
    bare = start(module=None)
    daemon = start_daemon(limits(3), bare)
    status, printed = daemon.run("--check", "--server")
    assert (status, "can decide, by the script" in printed) == (0, True), printed
    assert [daemon.codes("k=x")[0] for _ in range(4)] == ["OK"] * 3 + ["OVER_LIMIT"]
    assert daemon.metrics("swlimit_client_server_script") == {(f"127.0.0.1:{bare.port}",): 1}
    status, _, said = daemon.http("/v1/top")
    assert status >= 400 and "needs the module" in said
    keys = bare.cli("KEYS", "*").split()
    assert [bare.cli("TYPE", key) for key in keys] == ["string"]
