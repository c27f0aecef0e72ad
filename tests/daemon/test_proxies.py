"""Real proxies, configured as proxies.md has it, ask swlimitd about requests."""

import http.client
import json

import pytest

from support.gateways import CLIENT, DESCRIPTORS, NETWORKS, NGINX_SETTINGS, OTHER, POLICIES, SETTINGS
from support.waiting import eventually


def test_limits_hold(proxy, server):
    assert proxy.statuses(6, "/login", "POST") == [200] * 5 + [429]
    status, headers, body = proxy.ask("/login", "POST")
    assert status == 429 and 600 < int(headers["Retry-After"]) <= 975, headers
    assert headers["RateLimit-Policy"].endswith('"logins";q=5;w=900')
    assert '"logins";r=0;t=' in headers["RateLimit"]
    assert b"method" not in body  # the service did not see it
    assert proxy.ask("/login", "POST", client=OTHER)[0] == 200
    status, headers, body = proxy.ask("/login")
    told = json.loads(body)
    assert (status, told["method"], told["path"]) == (200, "GET", "/login")
    # What was denied counted nowhere.
    to_the_app = proxy.name in ("caddy", "traefik")
    left = told["headers"] if to_the_app else {name.lower(): value for name, value in headers.items()}
    assert left["ratelimit"].startswith('"per-client-10s";r=') and '"per-client-1h";r=994;' in left["ratelimit"]
    assert server.cli("EXISTS", "{shop}||logins=127.0.0.2|15m", "{shop}||per-client=127.0.0.2|1h") == "2"


def test_hosts_headers_and_paths_are_told(proxy, server):
    asked = {"host": "shop.example.com", "x_api_key": "k"}
    assert proxy.statuses(11, "/reports/a?b=c", **asked) == [200] * 10 + [429]
    for other in ({"host": "example.org"}, {"x_api_key": "l"}):
        assert proxy.ask("/reports/a", **(asked | other))[0] == 200
    assert server.cli("EXISTS", "{shop}||reports=k/%252Freports%252Fa|1d") == "1"


def test_nobody_says_who_he_is_or_what_he_asks(proxy):
    """Each request claims to be another client's, and for another path."""
    def asked(number, path):
        other = f"192.0.2.{number}"
        return proxy.ask(path, "POST", X_Forwarded_For=other, X_Real_IP=other, Forwarded=f"for={other}",
                         X_Forwarded_Uri="/", X_Forwarded_Method="GET", X_Forwarded_Host="other.example",
                         X_Original_URI="/", X_Original_Method="GET", X_Envoy_External_Address=other,
                         X_HTTP_Method_Override="GET")[0]

    spellings = ["/login", "/login?a=b", "/%6cogin", "//login", "/x/../login", "/login", "/./login"]
    found = [asked(number, path) for number, path in enumerate(spellings)]
    assert found == [200] * 5 + [429] * 2
    assert proxy.statuses(1, "/login", "POST") == [429]


def test_the_settings_of_the_page_are_valid(policed):
    daemon = policed
    daemon.write_limits(POLICIES + DESCRIPTORS.removeprefix("domain: shop\n") + NETWORKS)
    for settings in (SETTINGS, SETTINGS + NGINX_SETTINGS.removeprefix("auth:\n")):
        (daemon.folder / "swlimitd.yaml").write_text(settings)
        status, printed = daemon.run("--check")
        assert (status, printed.endswith("is valid: 7 limits\n")) == (0, True), printed


def test_denied_networks(proxy, policed):
    assert proxy.statuses(1, "/") == [200]
    policed.write_limits(f"domain: d\nnetworks: {{deny: [{CLIENT}], allow: [{OTHER}]}}\n{ONE_A_DAY}")
    eventually(lambda: proxy.statuses(1, "/"), [403])
    assert proxy.statuses(3, "/", client=OTHER) == [200] * 3
    assert proxy.statuses(2, "/", client="127.0.0.4") == [200, 429]


ONE_A_DAY = 'policies: [{name: p, key: "{client}", rate_limit: {unit: day, requests_per_unit: 1}}]'


@pytest.mark.parametrize("proxy", ["nginx"], indirect=True)
def test_nginx_keeps_connections(proxy, policed):
    """Denied or let through while swlimitd is gone, and no denial is an error in its log."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, 20, source_address=(CLIENT, 0))
    connection.connect()
    first = connection.sock

    def asked():
        connection.request("POST", "/login", body=b"a=b")
        reply = connection.getresponse()
        reply.read()
        assert connection.sock is first
        return reply.status

    assert [asked() for _ in range(8)] == [200] * 5 + [429] * 3
    assert "[error]" not in (proxy.folder / "log").read_text()
    policed.stop()
    assert [asked() for _ in range(3)] == [200] * 3
    connection.close()
