"""Why a request would be granted or denied now: `/explain`, `swlimitd explain`, and lines of the log."""

import json
import re

import pytest
import trustme

from support.waiting import eventually

LIMITS = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - key: tenant
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 5, name: tenants}}
  - {key: vip, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: tenants}]}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 1, mode: local}}
policies:
  - name: per-client
    key: "{client}"
    rate_limit: {unit: day, requests_per_unit: 100}
  - name: logins
    match: {path: /login, method: POST}
    key: "{client}"
    rate_limit: {unit: day, requests_per_unit: 1}
  - name: reports
    match: {host: "*.example.com"}
    key: "{header:x-api-key}"
    rate_limit: {unit: day, requests_per_unit: 1}
"""
TOKEN = "correct-horse"
LOGIN = {"method": "POST", "host": "Shop.Example:80", "path": "//login?a=b", "address": "192.0.2.1"}
FORWARDED = {"X-Forwarded-Method": "POST", "X-Forwarded-Host": "shop.example", "X-Forwarded-Uri": "/login",
             "X-Forwarded-For": "192.0.2.1"}


@pytest.fixture
def daemon(start_daemon, server):
    return start_daemon(LIMITS, server, log={"level": "info,swlimitd=debug"})


def envoys(*descriptors, **fields):
    """A request in Envoy's JSON. A descriptor is written `key=value key=value`."""
    def entries(words):
        return {"entries": [dict(zip(("key", "value"), word.split("="))) for word in words.split()]}
    return {"domain": "shop", "descriptors": [entries(words) for words in descriptors]} | fields


def explained(daemon, request, headers=()):
    status, _, text = daemon.http("/explain", request, headers={"Content-Type": "application/json", **dict(headers)})
    assert status == 200, text
    return json.loads(text)


def limits(explanation):
    """Of each limit its rule's name, whether it grants, what is left, and whether it denied the request."""
    return [(rule["rule"][1], limit["answer"]["granted"], limit["answer"]["remaining"], limit["denied_request"])
            for rule in explanation["rules"] for limit in rule["limits"]]


def printed(daemon, *words):
    status, text = daemon.run("explain", *words)
    assert status == 0, text
    return text.rstrip("\n").split("\n")


def test_a_request_of_a_proxy(daemon, server):
    assert daemon.http("/auth", headers=FORWARDED)[0] == 200
    before = server.cli("DEBUG", "DIGEST")
    found = explained(daemon, LOGIN)
    assert (found["result"], found["request"]) == ("denied", "POST shop.example/login from 192.0.2.1")
    assert limits(found) == [("per-client", True, 99, False), ("logins", False, 0, True)]
    assert found["not_matching"] == [{"domain": "shop", "rule": "reports", "condition": "host"}]
    limit = found["rules"][1]["limits"][0]
    assert limit["limit"] == "1 per 1d, resolution 2h"
    # The key is the very one that the decision counted.
    assert limit["key"] in server.cli("KEYS", "*").split("\n")
    assert limit["answer"]["source"] == "server" and 0 < limit["answer"]["retry_after"] <= 26 * 3600 * 1000
    assert daemon.http("/auth", headers=FORWARDED)[0] == 429
    assert explained(daemon, LOGIN | {"method": "GET"})["result"] == "granted"
    keyed = explained(daemon, LOGIN | {"host": "a.example.com", "headers": {"X-Api-Key": ["a", "b"]}})
    assert keyed["rules"][-1]["limits"][0]["key"] == "{shop}||reports=a, b|1d"
    assert server.cli("DEBUG", "DIGEST") == before  # nothing was counted


def test_descriptors(daemon, server):
    assert daemon.codes("user=ann", domain="shop", hits=2) == ("OK", "OK")
    before = server.cli("DEBUG", "DIGEST")
    found = explained(daemon, envoys("user=ann", "nobody=x", "free=x", "tenant=a user=b", "vip=v", "shadow=s"))
    assert found["result"] == "denied"
    assert limits(found) == [("user", False, 0, True), ("vip", True, 9, False), ("shadow", False, 0, False)]
    assert [rule["rule"] and rule["rule"][1] for rule in found["rules"]] == [
        "user", None, "free", "tenant.user", "vip", "shadow"]
    assert found["rules"][2]["unlimited"]
    assert explained(daemon, envoys("user=ann", hitsAddend=3))["rules"][0]["limits"][0]["hits"] == 3
    assert explained(daemon, envoys("user=bob"))["result"] == "granted"
    assert explained(daemon, envoys("user=ann") | {"domain": "other"})["rules"] == [
        {"descriptor": "user=ann", "rule": None, "unlimited": False, "limits": []}]
    assert server.cli("DEBUG", "DIGEST") == before


def test_shadow_mode_of_the_configuration(start_daemon, server):
    daemon = start_daemon(LIMITS, server, shadow_mode=True)
    found = explained(daemon, envoys("user=ann", hitsAddend=3))
    assert (found["result"], found["shadow_mode"], limits(found)) == ("granted", True, [("user", False, 2, True)])
    assert printed(daemon, "--domain", "shop", "--descriptor", "user=ann", "--hits", "3")[0] == (
        "granted: user=ann (shadow_mode denies nothing)")


@pytest.mark.parametrize("request_, error", [
    ({"domain": "shop"}, "there are no descriptors"),
    ({"path": "/login", "method": "POST", "address": "192.0.2.1"}, "a policy needs the request's host"),
    ({"path": "/", "method": "POST", "host": "a"}, "a policy needs the request's address"),
    ({"path": "/", "addres": "192.0.2.1"}, "unknown field `addres`"),
    ({"address": "nowhere"}, "invalid IP address syntax"),
    ({"headers": {"a b": "c"}}, "'a b' is not a header name"),
], ids=str)
def test_requests_that_cannot_be_explained(daemon, request_, error):
    status, _, text = daemon.http("/explain", request_, headers={"Content-Type": "application/json"})
    assert status == 400 and error in json.loads(text)["error"]


def test_the_command_asks_the_server_itself(daemon):
    assert daemon.http("/auth", headers=FORWARDED)[0] == 200
    daemon.stop()
    first, client, logins, reports = printed(daemon, "--method", "POST", "--host", "shop.example", "--path", "/login",
                                             "--address", "192.0.2.1", "--header", "X-Api-Key: a")
    assert first == "denied: POST shop.example/login from 192.0.2.1"
    assert client == ("shop per-client: 100 per 1d, resolution 2h: allow 1 granted by server, 99 left; "
                      "key {shop}||per-client=192.0.2.1|1d")
    assert re.fullmatch(r"shop logins: 1 per 1d, resolution 2h: allow 1 denied by server, 0 left, retry after \d+s, "
                        r"which denies the request; key \{shop\}\|\|logins=192.0.2.1\|1d", logins)
    assert reports == "shop reports: does not match the host"
    assert printed(daemon, "--domain", "shop", "--descriptor", "tenant=a,user=b", "--descriptor", "x=y") == [
        "granted: tenant=a,user=b x=y",
        "shop tenant.user for tenant=a,user=b: 5 per 1d, resolution 2h: allow 1 granted by server, 5 left; "
        "key {shop}|tenant=a|user=b|1d",
        "no rule matches x=y"]
    asked = json.dumps(envoys("shadow=s"))
    found = json.loads("\n".join(printed(daemon, "--request", asked, "--json")))
    assert (found["result"], limits(found)) == ("granted", [("shadow", False, 0, False)])


def test_the_command_asks_a_running_daemon(start_daemon, server, tmp_path):
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    daemon = start_daemon(LIMITS, server, api={"tokens": str(tmp_path / "tokens")})
    assert daemon.codes("local=x", domain="shop") == ("OK", "OK")  # a window that only this process knows
    url = f"http://127.0.0.1:{daemon.http_port}"
    words = "--domain", "shop", "--descriptor", "local=x"
    assert printed(daemon, *words)[0] == "granted: local=x"
    assert printed(daemon, *words, "--daemon", url, "--token", str(tmp_path / "tokens"))[0] == "denied: local=x"
    assert daemon.run("explain", *words, "--daemon", url) == (
        1, f"swlimitd: {url}: status 401: a valid token is required\n")


@pytest.mark.parametrize("words, error", [
    (["--daemon", "ftp://a", "--path", "/"], "a URL begins with http://, https:// or unix:"),
    (["--daemon", "unix:/nowhere", "--path", "/"], "unix:/nowhere: No such file"),
    ([], "nothing to explain"),
    (["--domain", "d", "--descriptor", "user"], "--descriptor: 'user' has no '='"),
    (["--header", "a", "--path", "/"], "--header: 'a' has no ':'"),
    (["--domain", "d", "--descriptor", "a=b", "--path", "/"], "cannot be used with"),
    (["--request", "{"], "--request: EOF"),
    (["--path", "/", "--address", "x"], "invalid IP address syntax"),
], ids=str)
def test_wrong_words(daemon, words, error):
    status, text = daemon.run("explain", *words)
    assert status and error in text


def test_over_a_socket_of_the_file_system(start_daemon, server, tmp_path):
    daemon = start_daemon(LIMITS, server)
    daemon.stop()
    daemon.write_settings(http={"address": f"unix:{tmp_path}/http.sock"})
    daemon.spawn()
    eventually((tmp_path / "http.sock").exists)
    words = "--domain", "shop", "--descriptor", "user=ann", "--daemon", f"unix:{tmp_path}/http.sock"
    eventually(lambda: daemon.run("explain", *words)[0], 0)
    assert printed(daemon, *words)[0] == "granted: user=ann"


def test_over_tls(start_daemon, server, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    for name, part in ("certificate", issued.cert_chain_pems[0]), ("key", issued.private_key_pem):
        part.write_to_path(tmp_path / f"{name}.pem")
    daemon = start_daemon(LIMITS, server)
    daemon.stop()
    tls = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key")}
    daemon.write_settings(http=daemon.settings["http"] | {"tls": tls})
    daemon.spawn()
    url = f"https://localhost:{daemon.http_port}"
    words = "explain", "--domain", "shop", "--descriptor", "user=ann", "--daemon", url
    daemon.command = ["env", f"SSL_CERT_FILE={tmp_path}/authority.pem", *daemon.command]
    eventually(lambda: daemon.run(*words)[0], 0)
    daemon.command = daemon.command[2:]
    status, text = daemon.run(*words)
    assert status == 1 and "certificate" in text


def test_only_users_of_the_api_may_ask(start_daemon, server, tmp_path):
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    daemon = start_daemon(LIMITS, server, api={"tokens": str(tmp_path / "tokens")})
    assert daemon.http("/explain", LOGIN, headers={"Content-Type": "application/json"})[0] == 401
    assert explained(daemon, LOGIN, {"Authorization": f"Bearer {TOKEN}"})["result"] == "granted"
    other = start_daemon(LIMITS, server)
    for headers, status in [({"Content-Type": "text/plain"}, 415), ({"Origin": "http://other.example"}, 403)]:
        assert other.http("/explain", LOGIN, headers=headers)[0] == status


def test_while_the_server_is_away(start_daemon, start):
    server = start()
    daemon = start_daemon(LIMITS, server, timeout="100ms")
    server.stop()
    found = explained(daemon, LOGIN)  # policies decide in this process then
    assert {limit["answer"]["source"] for rule in found["rules"] for limit in rule["limits"]} == {"failure"}
    found = explained(daemon, envoys("user=ann", "local=x"))
    assert found["result"] == "error"
    assert found["rules"][0]["limits"][0]["error"] == "the counting server is unavailable"
    assert found["rules"][1]["limits"][0]["answer"]["granted"]


def test_the_log_says_the_same(daemon):
    for _ in range(2):
        daemon.http("/auth", headers=FORWARDED)
    daemon.codes("user=ann", "none=x", domain="shop")
    lines = [line for line in daemon.log.split("\n") if "swlimitd::decisions" in line]
    assert len(lines) == 3
    assert "granted: POST shop.example/login from 192.0.2.1; shop per-client: " in lines[0]
    assert "denied: POST shop.example/login from 192.0.2.1; " in lines[1]
    assert "; shop logins: 1 per 1d, resolution 2h: allow 1 denied by server, 0 left, retry after " in lines[1]
    assert "which denies the request; key {shop}||logins=192.0.2.1|1d" in lines[1]
    assert "granted: user=ann none=x; shop user for user=ann: " in lines[2] and "no rule matches none=x" in lines[2]
