"""What `/auth` answers, without a proxy in between."""

import http.client
import json
import re
import socket

import pytest

from support.contents import info_of
from support.server import ROOT
from support.waiting import eventually

POLICIES = """
domain: d
policies:
  - {name: client, key: "{client}", rate_limit: {unit: day, requests_per_unit: 2}}
"""


def by_path(*policies):
    return "domain: d\npolicies:\n" + "".join(f"  - {policy}\n" for policy in policies)


def status(daemon, path="/auth", **headers):
    return daemon.http(path, headers={name.replace("_", "-"): value for name, value in headers.items()})[0]


def test_proxies_are_trusted_by_configuration(start_daemon, server):
    daemon = start_daemon(POLICIES, server, auth={"trusted_proxies": ["10.0.0.0/8"]})
    # The peer is not one of them: it is the client itself.
    assert [status(daemon, X_Forwarded_For=f"192.0.2.{number}") for number in range(3)] == [200, 200, 429]
    daemon.write_settings(auth={"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]})
    eventually(lambda: status(daemon, X_Forwarded_For="192.0.2.9, 10.1.1.1"), 200)
    assert "{d}||client=192.0.2.9|1d" in server.cli("KEYS", "*").split("\n")
    assert server.cli("EXISTS", "{d}||client=10.1.1.1|1d") == "0"


def test_what_the_proxy_does_not_tell(start_daemon, server):
    daemon = start_daemon(by_path('{name: p, match: {path: /a}, key: "{host}", rate_limit: {unit: day}}'), server)
    told = {}
    for header, value in (("uri", "/a"), ("host", "h")):
        answer = daemon.http("/auth", headers=told)
        assert (answer[0], answer[2]) == (400, f"the proxy does not send x-forwarded-{header}\n")
        told[f"X-Forwarded-{header}"] = value
    assert status(daemon, X_Forwarded_Uri="/a", X_Forwarded_Host="h") == 429
    assert status(daemon, X_Forwarded_Uri="/b") == 200  # the host does not matter then


def test_headers_by_other_names(start_daemon, server):
    daemon = start_daemon(by_path('{name: p, match: {path: /a, method: PUT}, key: k, rate_limit: {unit: day}}'), server,
                          auth={"uri_header": "X-Original-URL", "method_header": "X-Original-Method"})
    told = {"X_Original_URL": "https://h/a?b", "X_Original_Method": "PUT"}
    assert status(daemon, **told) == status(daemon, **told, X_Forwarded_Uri="/free", X_Forwarded_Method="GET") == 429
    assert status(daemon, X_Original_URL="/a", X_Original_Method="GET") == 200
    assert daemon.http("/auth/a", method="PUT", headers={"X-Original-URL": "/free"})[0] == 429


def test_keys_of_cookies_and_headers(start_daemon, server):
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    daemon = start_daemon(by_path(f'{{name: p, key: "{{cookie:s}}/{{header:x-t}}", {limit}}}'), server)
    for told in ({"Cookie": "a=b; s=1", "X_T": "t"}, {"Cookie": "s=1", "X_T": "u"}, {"X_T": "t" * 10_000}, {}):
        assert [status(daemon, **told) for _ in range(2)] == [200, 429]
    keys = sorted(server.cli("KEYS", "*").split("\n"))
    assert [key for key in keys if len(key) < 40] == ["{d}||p=/|1d", "{d}||p=1/t|1d", "{d}||p=1/u|1d"]
    assert max(map(len, keys)) < 100


def test_keys_of_networks(start_daemon, server):
    daemon = start_daemon(by_path('{name: p, key: "{client/24/56}", rate_limit: {unit: day, requests_per_unit: 1}}'),
                          server)
    asked = ["192.0.2.1", "192.0.2.255", "192.0.3.1", "2001:db8:0:1::1", "2001:db8:0:ff::1", "2001:db8:0:100::1",
             "::ffff:192.0.2.7", "64:ff9b::192.0.2.8", "64:ff9b::c000:0401"]
    found = {address: status(daemon, X_Forwarded_For=address) for address in asked}
    assert found == dict(zip(asked, [200, 429, 200, 200, 429, 200, 429, 429, 200]))
    assert sorted(server.cli("KEYS", "*").split("\n")) == [
        f"{{d}}||p={network}|1d" for network in ("192.0.2.0/24", "192.0.3.0/24", "192.0.4.0/24", "2001:db8:0:100::/56",
                                                 "2001:db8::/56")]


def test_keys_of_addresses(start_daemon, server):
    daemon = start_daemon(by_path('{name: p, key: "{client}", rate_limit: {unit: day, requests_per_unit: 99}}'), server)
    for case in json.loads((ROOT / "tests/conformance/vectors/addresses.json").read_text()):
        if re.fullmatch("[0-9a-fA-F:.]+", case["address"]):
            assert status(daemon, X_Forwarded_For=case["address"]) == 200
            assert server.cli("KEYS", "*") == f"{{d}}||p={case['key']}|1d", case
            server.cli("FLUSHALL")


DENY = "networks: {deny: [192.0.2.0/24, 2001:db8::/32], allow: [192.0.2.1, 198.51.100.0/24]}\n"


def test_networks(start_daemon, server):
    """Those that are denied get 403, those that are allowed have no limit, and denied are those that are both."""
    def found(*addresses):
        return [status(daemon, X_Forwarded_For=address) for address in addresses]

    daemon = start_daemon(POLICIES, server)
    assert found("192.0.2.7") == [200]
    daemon.write_limits(POLICIES + DENY)
    eventually(lambda: found("192.0.2.7"), [403])
    assert found("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.9", "64:ff9b::192.0.2.9") == [403] * 4
    assert found(*["198.51.100.1"] * 4) == [200] * 4
    assert found(*["203.0.113.1"] * 3) == [200, 200, 429]
    answer = daemon.http("/auth", headers={"X-Forwarded-For": "192.0.2.7"})
    assert (answer[2], answer[1]["RateLimit"], answer[1]["Retry-After"]) == ("forbidden\n", None, None)
    assert daemon.metrics("swlimitd_requests_total")["auth", "over_limit"] >= 6
    assert server.cli("KEYS", "*198*") == ""
    for address, told in (("192.0.2.1", "denied: PUT ?/a from 192.0.2.1\nthe client's network is denied"),
                          ("198.51.100.1", "granted: PUT ?/a from 198.51.100.1\nthe client's network is allowed")):
        assert daemon.run("explain", "--path", "/a", "--method", "put", "--address", address) == (0, f"{told}\n")
    daemon.write_settings(shadow_mode=True)
    eventually(lambda: found("192.0.2.7"), [200])
    daemon.write_settings()
    daemon.write_limits(POLICIES)
    eventually(lambda: found("192.0.2.1"), [200])


def test_denials_have_the_status_that_is_configured(start_daemon, server):
    daemon = start_daemon(POLICIES, server, auth={"denied_status": 403})
    answers = [daemon.http("/auth") for _ in range(3)]
    assert [answer[0] for answer in answers] == [200, 200, 403]
    assert answers[2][1]["RateLimit-Policy"] == '"client";q=2;w=86400' and int(answers[2][1]["Retry-After"]) > 0
    daemon.write_settings(auth={"denied_status": 200})
    status, printed = daemon.run("--check")
    assert (status, "denied_status is 400 to 499" in printed) == (1, True), printed


def test_a_denied_request_uses_nothing_up(start_daemon, server):
    daemon = start_daemon(by_path("{name: a, key: k, cost: 3, rate_limit: {unit: day, requests_per_unit: 9}}",
                                  "{name: b, key: k, rate_limit: {unit: day, requests_per_unit: 1}}",
                                  "{name: c, key: k, shadow_mode: true, rate_limit: {unit: day}}"), server)
    assert [status(daemon) for _ in range(3)] == [200, 429, 429]
    assert info_of(server, "{d}||a=k|1d", "total") == 3
    # The server is not asked any more, and of the other limit nothing is known.
    eventually(lambda: [limit[:7] for limit in daemon.http("/auth")[1]["RateLimit"].split(", ")],
               ['"b";r=0', '"c";r=0'])
    assert daemon.metrics("swlimitd_shadowed_total")["d", "c"] >= 1
    daemon.write_settings(shadow_mode=True)
    eventually(lambda: status(daemon), 200)


def test_nothing_matches(start_daemon):
    daemon = start_daemon("domain: d")
    answer = daemon.http("/auth")
    assert (answer[0], answer[1]["RateLimit"]) == (200, None)
    assert daemon.metrics("swlimitd_unmatched_total")["policy",] == 1
    assert daemon.metrics("swlimitd_requests_total")["auth", "ok"] == 1


@pytest.mark.parametrize("keys, expected", [
    ("", [200, 429, 429]), ("on_failure: error", [503] * 3), ("on_failure: allow", [200] * 3),
    ("on_failure: deny", [429] * 3), ("on_failure: local, local_share: 0.2", [200, 200, 429])])
def test_a_server_that_is_away(start_daemon, start, keys, expected):
    server = start()
    policy = f"{{name: p, key: k, rate_limit: {{unit: day, requests_per_unit: 10, {keys}}}}}"
    daemon = start_daemon(by_path(policy), server, timeout="200ms")
    eventually(lambda: status(daemon) == 200 and server.cli("KEYS", "*"))
    server.kill()
    assert [status(daemon) for _ in range(3)] == expected


def test_a_unix_socket(start_daemon, server):
    """It has no addresses: who may use it is the file system's affair, and the proxy there says whose request it is."""
    daemon = start_daemon(POLICIES, server)
    daemon.stop()
    path = daemon.folder / "http.sock"
    daemon.write_settings(http={"address": f"unix:{path}"})
    daemon.spawn()

    def asked(**headers):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        with connection.sock:
            connection.sock.connect(str(path))
            connection.request("GET", "/auth", headers=headers)
            return connection.getresponse().status

    eventually(lambda: asked() == 400)
    told = {"X-Forwarded-For": "192.0.2.7, 192.0.2.8"}
    assert [asked(**told) for _ in range(3)] == [200, 200, 429]
    assert server.cli("KEYS", "*") == "{d}||client=192.0.2.8|1d"


def test_what_the_application_ignores_in_paths(start_daemon, server):
    policy = '{name: p, match: {path: [/login, "/A;b"]}, key: "{path}", rate_limit: {unit: day, requests_per_unit: 1}}'
    daemon = start_daemon(by_path(policy), server)
    for uri in ("/login", "/LOGIN", "/login/", "/login;a=b"):
        assert status(daemon, X_Forwarded_Uri=uri) == 200, uri
    rules = {"ignore_case": True, "ignore_trailing_slash": True, "ignore_parameters": True}
    daemon.write_settings(auth={"paths": rules})
    eventually(lambda: status(daemon, X_Forwarded_Uri="/LOGIN"), 429)
    for uri in ("/login", "/LOGIN/", "/login;a=b", "/;a=b/Login;c/", "/login/."):
        assert status(daemon, X_Forwarded_Uri=uri) == 429, uri
    assert [status(daemon, X_Forwarded_Uri=uri) for uri in ("/a", "/A;x")] == [200, 429]


def test_ipv6_clients_count_by_network(start_daemon, server):
    daemon = start_daemon(POLICIES, server)
    addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3"]
    assert [status(daemon, X_Forwarded_For=address) for address in addresses] == [200, 200, 429]
    assert status(daemon, X_Forwarded_For="2001:db8:0:1::1") == 200


def test_keys_do_not_collide(start_daemon, server):
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    text = by_path(f'{{name: p, key: "{{header:x-a}}-{{header:x-b}}", {limit}}}',
                   f'{{name: long, match: {{path: /long}}, key: "{{header:x-a}}", {limit}}}')
    daemon = start_daemon(text + f"descriptors: [{{key: p, {limit}}}]\n", server)
    assert status(daemon, X_A="1-2", X_B="3", X_Forwarded_Uri="/") == 200
    assert status(daemon, X_A="1", X_B="2-3", X_Forwarded_Uri="/") == 200
    assert daemon.codes("p=1-2-3")[0] == "OK"  # a descriptor with the name and the value of a policy
    assert status(daemon, X_A="a" * 300, X_B="long", X_Forwarded_Uri="/long") == 200
    hashed = next(key for key in server.cli("KEYS", "*").split("\n") if "||long=" in key)
    value = hashed.split("=")[1].split("|")[0]
    assert status(daemon, X_A=value, X_B="literal", X_Forwarded_Uri="/long") == 200
