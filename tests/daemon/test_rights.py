"""rights.md: each mode's line suffices, all of it is needed, and `--check --server` asks for no more."""

import re
from contextlib import suppress

import grpc
import pytest

from docs.pages import page_named
from support.cluster import Cluster
from support.daemon import descriptor
from support.lacking import needed
from support.releases import ONLY_SINCE_7
from support.sentinel import watched
from support.server import MODULE

PAGE = page_named("rights.md").read_text()
ROWS = dict(re.findall(r"^\| (?:module, )?((?:mode )?[^|\n]*?) \| `(\+(?:\\\||[^|\n])*~\{shop\}\*)` \|$", PAGE,
                       re.MULTILINE))
WINDOW = "{unit: day, requests_per_unit: 2, mode: %s}"
LIMITS = {f"mode `{mode}`": WINDOW % mode for mode in ("direct", "cached", "leased", "eventual")} | {
    "`period`": "{period: day, requests_per_unit: 2}", "`concurrency`": "{concurrency: 2, id: k, ttl: 9s}",
    "script": WINDOW % "direct", "script, `concurrency`": "{concurrency: 2, id: k, ttl: 9s}"}
CHOSEN = {what: {"module": "never"} for what in LIMITS if what.startswith("script")}


@pytest.fixture
def server(server_of_each):
    server_of_each.cli("FLUSHALL")
    return server_of_each


def listed(what):
    """The rights that a line of the page names."""
    return ROWS[what].replace("\\|", "|").split()


def added(what):
    """The rights that a line of the page adds to others."""
    line = re.search(rf"^\| {re.escape(what)}[^|]*\| (.*) \|$", PAGE, re.MULTILINE)[1]
    return [right for part in re.findall(r"`([^`]*)`", line) for right in part.replace("\\|", "|").split()]


def logged_in(server, rights):
    server.cli("ACL", "SETUSER", "short", "reset", "on", ">secret", *rights)
    return f"redis://short:secret@127.0.0.1:{server.port}"


def test_the_page_has_every_mode():
    assert set(ROWS) == set(LIMITS)


@pytest.mark.parametrize("what", LIMITS)
def test_rights(start_daemon, server, what):
    rights = listed(what)
    url = logged_in(server, rights)
    limits = f"{{domain: shop, descriptors: [{{key: k, rate_limit: {LIMITS[what]}}}]}}"
    daemon = start_daemon(limits, server, **CHOSEN.get(what, {}))
    daemon.stop()
    daemon.write_settings(server=url)
    status, printed = daemon.run("--check", "--server")
    assert (status, " can decide" in printed) == (0, True), printed
    daemon.start()
    assert daemon.codes("k=a", domain="shop")[0] == "OK"
    assert daemon.codes(descriptor("k=a", hits=0), domain="shop")[0] == "OK"
    daemon.stop()
    assert "and swlimit does without" not in daemon.log and "lacks these rights" not in daemon.log, daemon.log
    # Each of them is missed.
    for right in rights[:-1]:
        logged_in(server, [other for other in rights if other != right])
        status, printed = daemon.run("--check", "--server")
        assert (status, f"\n  without {right.removeprefix('+')}: " in printed) == (1, True), (right, printed)


DIRECT = WINDOW % "direct"
MIXED = DIRECT + ", {period: day, requests_per_unit: 2}"
ALLOW = {"key": "k", "limit": 1, "window": "1d", "mode": "direct"}
# What a line of the page adds to another: the line, the limits, what is asked, and the rights.
BESIDES = {
    "several limits": ("mode `direct`", DIRECT + ", {window: 12h, requests_per_unit: 2, mode: direct}", None,
                       ["+swlimit.mallow"]),
    "several with a period": ("`period`", MIXED, None, ["+swlimit.admit", "+swlimit.allow", "+swlimit.peek"]),
    "record": ("mode `direct`", "{unit: day, requests_per_unit: 2, mode: direct, record: true}", None,
               ["+swlimit.record"]),
    "block": ("mode `direct`", DIRECT + ", {window: 12h, requests_per_unit: 0, mode: direct, block: 1s}", None,
              ["+swlimit.block", "+swlimit.mallow"]),
    "waiting": ("mode `direct`", DIRECT, ("acquire", ALLOW | {"timeout": "1s"}), ["+swlimit.acquire"]),
    "page and API": ("mode `direct`", DIRECT, ("block", {"key": "k", "duration": "1s"}), ["+swlimit.block"]),
    "unblocking": ("mode `direct`", DIRECT, ("unblock", {"key": "k"}), ["+swlimit.unblock"]),
    "a list of keys": ("mode `direct`", DIRECT, ("top", None), ["+swlimit.top"]),
    "holders": ("mode `direct`", DIRECT, ("holders?key={shop}|k", None), ["+swlimit.holders"]),
}


def refused(server):
    """The commands that the server refused, by its own log, without those that nobody needs."""
    found = set(re.findall(r"^object\n(.*)$", server.cli("ACL", "LOG"), re.MULTILINE))
    return found - {"time", "info", "client|setinfo", "client"}


@pytest.mark.parametrize("what", BESIDES)
def test_what_else_is_needed(start_daemon, server, what):
    row, limits, asked, more = BESIDES[what]
    has_all = listed(row)
    daemon = start_daemon(f"{{domain: shop, descriptors: [{{key: k, rate_limits: [{limits}]}}]}}", server,
                          prefix="{shop}|")
    daemon.stop()
    for rights, lacks in ((has_all + more, None), (has_all + more[1:], more[0].removeprefix("+"))):
        daemon.write_settings(server=logged_in(server, rights))
        daemon.start()
        server.cli("ACL", "LOG", "RESET")
        if asked:
            path, body = asked
            daemon.http(f"/v1/{path}", body, headers={"Content-Type": "application/json"})
        else:
            with suppress(grpc.RpcError):
                daemon.codes("k=a", domain="shop")
        daemon.stop()
        assert lacks in refused(server) if lacks else not refused(server), daemon.log


@pytest.mark.parametrize("what", ["script", "script, `concurrency`"])
def test_rights_of_the_script_on_redis_6_2(start_daemon, start, what):
    """By its line of the table of releases."""
    old = start(binaries=needed("redis-6.2"), module=None, options=ONLY_SINCE_7)
    rights = [right for right in listed(what) if right not in ("+evalsha_ro", "+eval_ro")]
    url = logged_in(old, [*rights, "+exists"] if "concurrency" in what else rights)
    daemon = start_daemon(f"{{domain: shop, descriptors: [{{key: k, rate_limit: {LIMITS[what]}}}]}}", old,
                          module="never")
    daemon.stop()
    daemon.write_settings(server=url)
    daemon.start()
    old.cli("ACL", "LOG", "RESET")
    assert [daemon.codes(descriptor(f"k={id}"), domain="shop")[0] for id in "abc"][:2] == ["OK"] * 2
    daemon.stop()
    assert refused(old) <= {"evalsha_ro", "eval_ro"}, daemon.log


@pytest.mark.parametrize("mode", ["cached", "leased"])
def test_rights_of_the_script_near_the_request(start_daemon, start, mode):
    """With what the module's line has from client|tracking on."""
    plain = start(module=None)
    line = listed(f"mode `{mode}`")
    url = logged_in(plain, [*listed("script"), *line[line.index("+client|tracking"):]])
    limits = f"{{domain: shop, descriptors: [{{key: k, rate_limit: {WINDOW % mode}}}]}}"
    daemon = start_daemon(limits, plain, module="never")
    daemon.stop()
    daemon.write_settings(server=url)
    daemon.start()
    plain.cli("ACL", "LOG", "RESET")
    assert [daemon.codes("k=a", domain="shop")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    daemon.stop()
    assert not refused(plain), daemon.log


def test_rights_where_the_module_is_loaded_later(start_daemon, start):
    """With both lines and what the page adds, the script's keys are taken over. Before, the module's are unknown."""
    late = start(module=None)
    url = logged_in(late, listed("script"))
    both = [*listed("mode `direct`"), *listed("script"), *added("`module: auto`")]
    assert "Unknown command" in late.cli("ACL", "SETUSER", "other", *both)
    limits = f"{{domain: shop, descriptors: [{{key: k, rate_limit: {WINDOW % 'direct'}}}]}}"
    daemon = start_daemon(limits, late)
    daemon.stop()
    daemon.write_settings(server=url)
    late.cli("ACL", "LOG", "RESET")
    for _ in range(2):
        daemon.start()
        assert daemon.codes("k=a", domain="shop")[0] == "OK"
        daemon.stop()
        if late.cli("MODULE", "LOAD", MODULE) == "OK":
            logged_in(late, both)
    assert late.cli("TYPE", late.cli("KEYS", "{shop}*")) == "sw-window"
    assert not refused(late), daemon.log


@pytest.mark.parametrize("place", ["cluster", "sentinel"])
def test_rights_of_a_cluster_and_of_a_primary_of_sentinels(start_daemon, start, binaries, tmp_path, place):
    if place == "cluster":
        servers = Cluster(start).servers
        address = f"redis-cluster://short:secret@127.0.0.1:{servers[0].port}"
    else:
        sentinel, *servers = watched(start, binaries, tmp_path, "ours")
        address = f"redis-sentinel://short:secret@127.0.0.1:{sentinel.port}/ours"
    rights = [*listed("mode `direct`"), *added("a cluster, Sentinel")]
    for server in servers:
        logged_in(server, rights)
        server.cli("ACL", "LOG", "RESET")
    limits = f"{{domain: shop, descriptors: [{{key: k, rate_limit: {WINDOW % 'direct'}}}]}}"
    daemon = start_daemon(limits, servers[0])
    daemon.stop()
    daemon.write_settings(server=address)
    daemon.start()
    assert [daemon.codes("k=a", domain="shop")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    daemon.stop()
    assert set().union(*map(refused, servers)) == set(), daemon.log


def test_keys_that_the_user_may_not_touch(start_daemon, server):
    daemon = start_daemon('{domain: shop, policies: [{name: p, key: k, rate_limit: {unit: day}}]}', server)
    daemon.write_settings(server=logged_in(server, ["+@all", "~{other}*"]))
    status, printed = daemon.run("--check", "--server")
    assert (status, " denies its user these rights: ~{shop}||p=|swlimit:connected\n" in printed) == (1, True)
    daemon.write_settings(server=logged_in(server, ["+@all", "~{shop}*"]))
    assert daemon.run("--check", "--server")[0] == 0


def test_the_category_of_each_release(server):
    """As the page says of releases: Redis 7.4 and Valkey know the module's own category."""
    info = server.cli("INFO", "server")
    version = [int(part) for part in re.search(r"^redis_version:(\d+)\.(\d+)", info, re.MULTILINE).groups()]
    has_category = "valkey_version" in info or version >= [7, 4]
    said = server.cli("ACL", "SETUSER", "category", "+@swlimit")
    assert (said == "OK") == has_category, said
    server.cli("ACL", "DELUSER", "category")
