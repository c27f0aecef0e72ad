"""Real proxies, configured as docs/proxies.md has it, ask swlimitd about requests."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs.pages import blocks
from support import proxies
from support.lacking import lacking
from support.releases import Unavailable
from support.server import ROOT, free_port
from support.waiting import eventually

BLOCKS = [block for block in blocks(ROOT / "docs/proxies.md") if block.comment.startswith("run by")]
POLICIES, SETTINGS, TRAEFIK, TRAEFIK_WEB, ENVOY = [block.text for block in BLOCKS if block.language == "yaml"]
TEXTS = {block.language: block.text for block in BLOCKS if block.language != "yaml"} | {
    "envoy": ENVOY, "traefik": TRAEFIK, "traefik web": TRAEFIK_WEB}
CLIENT, OTHER = "127.0.0.2", "127.0.0.3"  # this machine has many addresses, of which 127.0.0.1 is the proxy's


class App(BaseHTTPRequestHandler):
    """Tells what it was asked."""

    def answer(self):
        self.rfile.read(int(self.headers["content-length"] or 0))
        body = json.dumps({"method": self.command, "path": self.path,
                           "headers": {name.lower(): value for name, value in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def app():
    server = ThreadingHTTPServer(("127.0.0.1", 0), App)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.fixture
def daemon(start_daemon, server):
    return start_daemon(POLICIES, server)


class Proxy:
    """One proxy in front of the app."""

    def __init__(self, name, folder, ports):
        self.name, self.folder, self.port = name, folder, free_port()
        ports = ports | {8000: self.port}

        def configured(language):
            return re.sub(r"\b(8000|8080|3000)\b", lambda port: str(ports[int(port[0])]), TEXTS[language])

        self.configured = configured
        self.environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}  # where Caddy keeps things
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(getattr(self, name)(), stdout=log, stderr=log, cwd=folder,
                                            stdin=subprocess.DEVNULL, env=os.environ | self.environment,
                                            start_new_session=True)

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name

    def nginx(self):
        kept = "".join(f"{what}_temp_path {self.folder}/{what};\n"
                       for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        return [program("nginx"), "-p", self.folder, "-c", self.write("nginx.conf", f"""
            daemon off; pid {self.folder}/pid; worker_processes 1; error_log stderr;
            events {{}}
            http {{ access_log off; {kept} {self.configured("nginx")} }}""")]

    def caddy(self):
        text = "{\nadmin off\n}\n" + self.configured("caddy")
        return [program("caddy"), "run", "--adapter", "caddyfile", "--config", self.write("Caddyfile", text)]

    def haproxy(self):
        self.write("swlimit.lua", self.configured("lua"))
        return [program("haproxy"), "-db", "-f", self.write("haproxy.cfg", self.configured("haproxy"))]

    def traefik(self):
        self.write("web.yaml", self.configured("traefik web"))
        return [packaged("traefik"), "--configFile", self.write("traefik.yaml", self.configured("traefik"))]

    def envoy(self):
        return [packaged("envoy"), "-c", self.write("envoy.yaml", self.configured("envoy")), "--use-dynamic-base-id",
                "--concurrency", "1", "--log-level", "warning"]

    def ask(self, path, method="GET", client=CLIENT, **headers):
        """The status, headers and body of a reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, 20, source_address=(client, 0))
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def statuses(self, times, *words, **options):
        return [self.ask(*words, **options)[0] for _ in range(times)]


def program(name):
    try:
        return proxies.obtain(name)
    except Unavailable as reason:
        lacking(f"{name}: {reason}")


def packaged(name):
    """The program of a Python package."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        lacking(name)
    return path


@pytest.fixture(params=["nginx", "caddy", "haproxy", "envoy", "traefik"])
def proxy(request, daemon, app, tmp_path):
    proxy = Proxy(request.param, tmp_path, {8080: daemon.http_port, 3000: app})
    try:
        eventually(lambda: proxy.ask("/", client=OTHER)[0] == 200 or proxy.process.poll(),
                   log=(tmp_path / "log").read_text)
        assert proxy.process.poll() is None, (tmp_path / "log").read_text()
        yield proxy
    finally:
        os.killpg(proxy.process.pid, signal.SIGKILL)  # nginx has a worker, too
        proxy.process.wait()


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
    assert server.cli("EXISTS", "{shop}|logins=127.0.0.2|15m", "{shop}|per-client=127.0.0.2|1h") == "2"


def test_hosts_headers_and_paths_are_told(proxy, server):
    asked = {"host": "shop.example.com", "x_api_key": "k"}
    assert proxy.statuses(11, "/reports/a?b=c", **asked) == [200] * 10 + [429]
    for other in ({"host": "example.org"}, {"x_api_key": "l"}):
        assert proxy.ask("/reports/a", **(asked | other))[0] == 200
    assert server.cli("EXISTS", "{shop}|reports=k/%252Freports%252Fa|1d") == "1"


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


def test_without_the_daemon(proxy, daemon):
    assert proxy.statuses(6, "/login", "POST")[-1] == 429
    daemon.process.kill()
    daemon.process.wait()
    expected = {"caddy": 502, "traefik": 500}.get(proxy.name, 200)
    eventually(lambda: proxy.ask("/login", "POST")[0], expected)
    daemon.start()
    eventually(lambda: proxy.ask("/login", "POST")[0], 429)


def test_the_settings_of_the_page_are_valid(daemon):
    (daemon.folder / "swlimitd.yaml").write_text(SETTINGS)
    status, printed = daemon.run("--check")
    assert (status, printed.endswith("is valid: 4 limits\n")) == (0, True), printed
