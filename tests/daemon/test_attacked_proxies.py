"""What a stranger sends through a real proxy never passes a limit that is used up."""

import posixpath
import re
import subprocess
from urllib.parse import unquote

import pytest

from support.gateways import GRPC, NAMES, Proxy
from support.waiting import eventually

each_proxy = pytest.mark.parametrize("proxy", [*NAMES, GRPC], indirect=True)

HOST = b"Host: shop.example\r\n"


def post(path=b"/login", headers=b"", version=b"1.1", body=b"\r\n"):
    return b"POST " + path + b" HTTP/" + version + b"\r\n" + HOST + headers + b"Connection: close\r\n" + body


EMPTY = b"Content-Length: 0\r\n"
ATTACKS = {
    "96 headers": post(headers=EMPTY + b"".join(b"X-%d: a\r\n" % number for number in range(96))),
    "1000 headers": post(headers=EMPTY + b"".join(b"X-%d: a\r\n" % number for number in range(1000))),
    "100 cookies": post(headers=EMPTY + b"Cookie: a=b\r\n" * 100),
    "100 keys": post(headers=EMPTY + b"X-Api-Key: a\r\n" * 100),
    "commas": post(headers=EMPTY + b"Cookie: a, b\r\nX-Forwarded-For: a,,192.0.2.1\r\nX-Api-Key: ,a,,b,\r\n"),
    "control byte": post(headers=EMPTY + b"X-A: a\x01b\r\n"),
    "control byte in a cookie": post(headers=EMPTY + b"Cookie: a=\x01\r\n"),
    "control byte in a key": post(headers=EMPTY + b"X-Api-Key: \x7f\x01\r\n"),
    "not UTF-8": post(headers=EMPTY + b"X-A: \xff\r\nCookie: a=\xff\r\nX-Api-Key: \xff\r\n"),
    "not UTF-8 in the path": post(b"/login?\xff", EMPTY),
    "15 kB cookie": post(headers=EMPTY + b"Cookie: a=" + b"b" * 15_000 + b"\r\n"),
    "15 kB key": post(headers=EMPTY + b"X-Api-Key: " + b"b" * 15_000 + b"\r\n"),
    "15 kB path": post(b"/" + b"a" * 15_000 + b"/../login", EMPTY),
    "15 kB query": post(b"/login?" + b"a" * 15_000, EMPTY),
    "slashes": post(b"//login", EMPTY),
    "dot": post(b"/./login", EMPTY),
    "dots": post(b"/a/../login", EMPTY),
    "encoded dots": post(b"/a/%2e%2e/login", EMPTY),
    "encoded letter": post(b"/%6cogin", EMPTY),
    "fragment": post(b"/login#a", EMPTY),
    "absolute": post(b"http://shop.example/login", EMPTY),
    "absolute, upper case": post(b"HTTP://shop.example/login", EMPTY),
    "absolute, another host": post(b"http://other.example/login", EMPTY),
    "dot behind the host": post(headers=EMPTY).replace(b"shop.example", b"shop.example."),
    "port behind the host": post(headers=EMPTY).replace(b"shop.example", b"shop.example:1"),
    "two hosts": post(headers=HOST + EMPTY),
    "HTTP/1.0": post(headers=EMPTY, version=b"1.0"),
    "HTTP/1.0 without a host": b"POST /login HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    "chunked": post(headers=b"Transfer-Encoding: chunked\r\n", body=b"\r\n0\r\n\r\n"),
    "two lengths": post(headers=EMPTY + b"Transfer-Encoding: chunked\r\n", body=b"\r\n0\r\n\r\n"),
    "expect": post(headers=EMPTY + b"Expect: 100-continue\r\n"),
    "upgrade": post(headers=EMPTY + b"Upgrade: websocket\r\n"),
    "hop by hop": post(headers=EMPTY + b"Connection: X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method\r\n"),
    "another method by header": post(headers=EMPTY + b"X-HTTP-Method-Override: GET\r\nX-Forwarded-Method: GET\r\n"),
    "lower case": post(headers=EMPTY).replace(b"POST", b"post"),
    "mixed case": post(headers=EMPTY).replace(b"POST", b"PoSt"),
    "forwarded": post(headers=EMPTY + b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Uri: /\r\n"),
    "underscores": post(headers=EMPTY + b"X_Forwarded_For: 192.0.2.1\r\nX_Forwarded_Uri: /\r\n"),
}


OVER_HTTP2 = ["haproxy", "envoy", GRPC]  # that need no TLS for it
# What many applications take for /login, too.
SPELLINGS = ["/login/", "/login/.", "//login//", "/LOGIN", "/%4cogin", "/login;a=b", "/;a=b/login", "/login;",
             "/Login/;x", "/login%0a", "/login/?a=b"]


def path(request_line):
    """The path that an application reads in a request line."""
    written = re.fullmatch(r"(?i:http://[^/]*)?([^?#]*).*", request_line.split(" ")[1])[1]
    return posixpath.normpath("/" + unquote(written).lstrip("/"))


def tolerant_path(request_line):
    """What one reads that ignores case, trailing slash, path parameters, and a newline at the end."""
    return posixpath.normpath(re.sub(r"//+", "/", re.sub(r";[^/]*", "", path(request_line)))).lower().rstrip("\n")


def used_up(proxy):
    assert proxy.statuses(6, "/login", "POST") == [200] * 5 + [429]


@each_proxy
def test_no_attack_passes(proxy, server, app):
    used_up(proxy)
    passed = {}
    for name, request in ATTACKS.items():
        before = len(app.seen)
        found = proxy.send(request)
        if "/login" in [path(line) for line, _ in app.seen[before:]]:
            passed[name] = found
    assert not passed
    with proxy.connected() as connection:
        for byte in post(headers=EMPTY):
            connection.sendall(bytes([byte]))
        assert connection.recv(1000).startswith(b"HTTP/1.1 429 ")
    # And nobody else is worse off, also of what they need memory for.
    assert proxy.ask("/login", "POST", client="127.0.0.4")[0] == 200
    proxy.send(b"GET /export HTTP/1.1\r\nHost: a.example.com\r\nX-Api-Key: " + b"b" * 15_000 + b"\r\n\r\n")
    assert max(map(len, server.cli("KEYS", "*").split("\n"))) < 200


@pytest.mark.parametrize("proxy", OVER_HTTP2, indirect=True)
def test_no_method_passes_over_http2(proxy, app):
    """HTTP/2 has methods of any letters, where proxies refuse some over HTTP/1."""
    used_up(proxy)
    before = len(app.seen)
    asking = ["curl", "--silent", "--http2-prior-knowledge", "--interface", "127.0.0.2", "--max-time", "30",
              "--write-out", "%{http_version} %{http_code}", "--output", "/dev/null"]
    found = {method: subprocess.run([*asking, "--request", method, f"http://127.0.0.1:{proxy.port}/login"], text=True,
                                    capture_output=True, check=True).stdout for method in ["POST", "post", "PoSt"]}
    assert found == dict.fromkeys(found, "2 429")
    assert app.seen[before:] == []


@each_proxy
def test_no_spelling_passes(proxy, policed, app):
    policed.write_settings(auth={"paths": dict.fromkeys(
        ["ignore_case", "ignore_trailing_slash", "ignore_parameters"], True)})
    eventually(lambda: "configuration reloaded" in policed.log)
    used_up(proxy)
    assert {tolerant_path(f"POST {spelling} HTTP/1.1") for spelling in SPELLINGS} == {"/login"}
    before = len(app.seen)
    for spelling in SPELLINGS:
        proxy.send(post(spelling.encode(), EMPTY))
    assert [line for line, _ in app.seen[before:] if tolerant_path(line) == "/login"] == []


@pytest.fixture
def impatient(request, policed, app, tmp_path):
    """Each proxy, with less time for headers."""
    ports = {8080: policed.http_port, 8081: policed.port, 3000: app.port}
    with Proxy(request.param, tmp_path, ports, header_timeout="2s") as proxy:
        yield proxy


@pytest.mark.parametrize("impatient", [*NAMES, GRPC], indirect=True)
def test_nobody_sends_headers_for_ever(impatient, app):
    with impatient.connected() as connection:
        connection.sendall(post(headers=EMPTY)[:-2])
        connection.settimeout(0.5)
        eventually(lambda: ended(connection), seconds=60)
    assert "/login" not in [path(line) for line, _ in app.seen]


def ended(connection):
    """Sends a little of a header; whether the proxy has ended the connection."""
    try:
        connection.sendall(b"a")
        return not connection.recv(1000)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


KEYS = {
    "comma": [b"X-Api-Key: v%d, k\r\n", b"X-Api-Key: k, v%d\r\n"],
    "two lines": [b"X-Api-Key: k\r\nX-Api-Key: v%d\r\n", b"X-Api-Key: v%d\r\nX-Api-Key: k\r\n"],
}


@each_proxy
@pytest.mark.parametrize("shape", KEYS)
def test_the_key_is_what_the_application_sees(proxy, server, app, shape):
    """Nobody has two keys by sending a header twice, of which swlimitd counts one and the application reads another."""
    seen = []
    for number, header in enumerate(KEYS[shape]):
        request = b"GET /export HTTP/1.1\r\nHost: a.example.com\r\n" + header % number + b"Connection: close\r\n\r\n"
        assert proxy.send(request) == 200
        seen.append(",".join(app.seen[-1][1].get_all("X-Api-Key")).replace(" ", ""))
    counted = [re.search(r"(?:api_key|\|\|reports)=([^/|]*)", key)[1]
               for key in server.cli("KEYS", "*reports=*").split("\n")]
    assert sorted(key.replace(" ", "") for key in counted) == sorted(seen)
