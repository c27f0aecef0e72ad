"""What a stranger sends through a real proxy never passes a limit that is used up."""

import posixpath
from urllib.parse import unquote, urlsplit

import pytest

HOST = b"Host: shop.example\r\n"


def post(path=b"/login", headers=b"", version=b"1.1", body=b"\r\n"):
    return b"POST " + path + b" HTTP/" + version + b"\r\n" + HOST + headers + b"Connection: close\r\n" + body


EMPTY = b"Content-Length: 0\r\n"
ATTACKS = {
    "96 headers": post(headers=EMPTY + b"".join(b"X-%d: a\r\n" % number for number in range(96))),
    "1000 headers": post(headers=EMPTY + b"".join(b"X-%d: a\r\n" % number for number in range(1000))),
    "100 cookies": post(headers=EMPTY + b"Cookie: a=b\r\n" * 100),
    "100 keys": post(headers=EMPTY + b"X-Api-Key: a\r\n" * 100),
    "control byte": post(headers=EMPTY + b"X-A: a\x01b\r\n"),
    "control byte in a cookie": post(headers=EMPTY + b"Cookie: a=\x01\r\n"),
    "control byte in a key": post(headers=EMPTY + b"X-Api-Key: \x7f\x01\r\n"),
    "not UTF-8": post(headers=EMPTY + b"X-A: \xff\r\nCookie: a=\xff\r\nX-Api-Key: \xff\r\n"),
    "not UTF-8 in the path": post(b"/login?\xff", EMPTY),
    "15 kB cookie": post(headers=EMPTY + b"Cookie: a=" + b"b" * 15_000 + b"\r\n"),
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
    "forwarded": post(headers=EMPTY + b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Uri: /\r\n"),
    "underscores": post(headers=EMPTY + b"X_Forwarded_For: 192.0.2.1\r\nX_Forwarded_Uri: /\r\n"),
}


def path(request_line):
    """The path that an application reads in a request line."""
    uri = urlsplit(request_line.split(" ")[1])
    return posixpath.normpath("/" + unquote(uri.path).lstrip("/"))


def test_no_attack_passes(proxy, app):
    assert proxy.statuses(6, "/login", "POST") == [200] * 5 + [429]
    passed = {}
    for name, request in ATTACKS.items():
        before = len(app.seen)
        found = proxy.send(request)
        if "/login" in [path(line) for line, _ in app.seen[before:]]:
            passed[name] = found
    assert not passed
    # And nobody else is worse off.
    assert proxy.ask("/login", "POST", client="127.0.0.4")[0] == 200


KEYS = {
    "comma": [b"X-Api-Key: v%d, k\r\n", b"X-Api-Key: k, v%d\r\n"],
    "two lines": [b"X-Api-Key: k\r\nX-Api-Key: v%d\r\n", b"X-Api-Key: v%d\r\nX-Api-Key: k\r\n"],
}


@pytest.mark.parametrize("shape", KEYS)
def test_the_key_is_what_the_application_sees(proxy, server, app, shape):
    """Nobody has two keys by sending a header twice, of which swlimitd counts one and the application reads another."""
    seen = []
    for number, header in enumerate(KEYS[shape]):
        request = b"GET /export HTTP/1.1\r\nHost: a.example.com\r\n" + header % number + b"Connection: close\r\n\r\n"
        assert proxy.send(request) == 200
        seen.append(",".join(app.seen[-1][1].get_all("X-Api-Key")).replace(" ", ""))
    counted = [key.split("=")[1].split("/")[0] for key in server.cli("KEYS", "*reports=*").split("\n")]
    assert sorted(key.replace(" ", "") for key in counted) == sorted(seen)
