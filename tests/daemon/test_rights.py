"""rights.md: each mode's line suffices, all of it is needed, and `--check --server` asks for no more."""

import re

import pytest

from docs.pages import page_named
from support.daemon import descriptor

ROWS = dict(re.findall(r"^\| (?:module, )?((?:mode )?[^|\n]*?) \| `(\+(?:\\\||[^|\n])*~\{shop\}\*)` \|$",
                       page_named("rights.md").read_text(), re.MULTILINE))
WINDOW = "{unit: day, requests_per_unit: 2, mode: %s}"
LIMITS = {f"mode `{mode}`": WINDOW % mode for mode in ("direct", "cached", "leased", "eventual")} | {
    "`period`": "{period: day, requests_per_unit: 2}", "`concurrency`": "{concurrency: 2, id: k, ttl: 9s}",
    "script": WINDOW % "direct", "script, `concurrency`": "{concurrency: 2, id: k, ttl: 9s}"}
CHOSEN = {what: {"module": "never"} for what in LIMITS if what.startswith("script")}


def logged_in(server, rights):
    server.cli("ACL", "SETUSER", "short", "reset", "on", ">secret", *rights)
    return f"redis://short:secret@127.0.0.1:{server.port}"


def test_the_page_has_every_mode():
    assert set(ROWS) == set(LIMITS)


@pytest.mark.parametrize("what", LIMITS)
def test_rights(start_daemon, server, what):
    rights = ROWS[what].replace("\\|", "|").split()
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
    assert "refuses a right" not in daemon.log and "lacks these rights" not in daemon.log, daemon.log
    # Each of them is missed.
    for right in rights[:-1]:
        logged_in(server, [other for other in rights if other != right])
        status, printed = daemon.run("--check", "--server")
        assert (status, f"\n  without {right.removeprefix('+')}: " in printed) == (1, True), (right, printed)


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
