"""What frameworks take for `POST /login`: the tables of proxies.md, and no way round a policy."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from docs.pages import page_named
from support.kubernetes import GO
from support.node import NODE
from support.server import ROOT

SERVERS = {"python": [sys.executable, ROOT / "tests/daemon/frameworks/serve.py"],
           "node": [NODE, ROOT / "tests/clients/node/frameworks.mjs"],
           "go": [GO, "run", ROOT / "tests/daemon/frameworks/serve.go"]}
ENVIRONMENT = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
PAGE = page_named("proxies.md").read_text()
SHOWN = ["/LOGIN", "/login/", "/login;a=b"]


def rows(title):
    """The rows of the page's first table with this title."""
    table = PAGE.split(title, 1)[1].split("\n\n")[0]
    row = r"^\| ([A-Za-z@][^|]*?)(?:, on \w+)? \| ((?:same|other|redirect|refused)[^\n]*) \|$"
    return dict(re.findall(row, table, re.MULTILINE))


TABLE = rows("| framework | `/LOGIN` | `/login/` | `/login;a=b` |\n")
METHODS = rows("| framework | `post` for POST | HEAD for GET | an override |\n")
SPELLINGS = [*SHOWN, "/login", "/%6cogin", "/%6Cogin", "//login", "///login", "/./login", "/a/../login", "/.//login",
             "/a/%2e%2e/login", "/%2e/login", "/login//", "/login/.", "/login/./", "/LOGIN/", "/lOgIn/;a", "/;a/login",
             "/login;/", "/login%2f", "/%2flogin", "/login?a=b", "/login%3b", "http://a/login", "/login/;a=b/..",
             "/login/x/..", "/login%00", "/login%20", "/login%09", "/login%0a", "/login.", "/login%5c", "/\\login",
             "/login%23a", "/%256cogin", "/l%C3%B6gin/../login", "/login/%2e"]


def status(port, path, method="POST", headers="", body=""):
    """The status of the answer to a method and a path as they are written."""
    headers = f"Host: a\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n"
    request = f"{method} {path} HTTP/1.1\r\n{headers}\r\n{body}"
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(request.encode())
        return int(connection.makefile("rb").readline().split()[1])


@pytest.fixture(scope="module", params=SERVERS)
def ports(request):
    with subprocess.Popen(SERVERS[request.param], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def test_the_table_is_true(ports):
    words = {200: "same", 307: "redirect", 404: "other"}
    found = {name: " | ".join(words[status(port, path)] for path in SHOWN) for name, port in ports.items()}
    assert found == {name: TABLE[name] for name in ports}


OVERRIDES = [{"headers": f"{name}: DELETE\r\n"} for name in (
    "X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")] + [
    {"headers": "Content-Type: application/x-www-form-urlencoded\r\n", "body": "_method=DELETE"},
    {"headers": "Content-Type: application/x-www-form-urlencoded\r\n", "body": "_method=delete"}]


def test_the_table_of_methods_is_true(ports):
    words = {200: "same", 400: "refused", 404: "other", 405: "other"}

    def overridden(port):
        found = [status(port, "/item?_method=DELETE"), *(status(port, "/item", **how) for how in OVERRIDES)]
        return "same" if 200 in found else "other"

    for port in ports.values():
        assert [status(port, at, method) for method, at in (("POST", "/login"), ("GET", "/page"), ("DELETE", "/item"))
                ] == [200] * 3
    found = {name: " | ".join([words[status(port, "/login", "post")], words[status(port, "/page", "HEAD")],
                               overridden(port)]) for name, port in ports.items()}
    assert found == {name: METHODS[name] for name in ports}


def test_no_spelling_is_a_way_round(ports, start_daemon):
    """Whatever a framework takes for `/login`, swlimitd does, with the options that the table asks for."""
    limits = "{domain: d, policies: [{name: p, key: k, match: {path: /login}, rate_limit: {unit: day}}]}"
    for name, port in ports.items():
        ignored = dict(zip(("ignore_case", "ignore_trailing_slash", "ignore_parameters"),
                           (word == "same" for word in TABLE[name].split(" | "))))
        daemon = start_daemon(limits, auth={"paths": ignored})
        served = [path for path in SPELLINGS if status(port, path) == 200]
        assert "/login" in served
        passed = [path for path in served if daemon.http("/auth", headers={"X-Forwarded-Uri": path})[0] != 429]
        assert passed == [], name
