"""Proxies as proxies.md configures them, in front of an application that remembers what reached it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from docs.pages import blocks, page_named

from . import proxies
from .lacking import lacking
from .releases import Unavailable
from .server import free_port
from .waiting import eventually

NAMES = ["nginx", "caddy", "haproxy", "envoy", "traefik"]  # those that ask over HTTP
GRPC = "envoy_grpc"
BLOCKS = [block for block in blocks(page_named("proxies.md")) if block.comment.startswith("run by")]
POLICIES, SETTINGS, NETWORKS, NGINX_SETTINGS, TRAEFIK, TRAEFIK_WEB, ENVOY, DESCRIPTORS, ENVOY_GRPC = [
    block.text for block in BLOCKS if block.language == "yaml"]
TEXTS = {block.language: block.text for block in BLOCKS if block.language != "yaml"} | {
    "envoy": ENVOY, GRPC: ENVOY_GRPC, "traefik": TRAEFIK, "traefik web": TRAEFIK_WEB}
CLIENT, OTHER = "127.0.0.2", "127.0.0.3"  # loopback has many addresses; 127.0.0.1 is the proxy's


class App:
    """An application that answers with the request, and remembers request lines and headers."""

    def __init__(self):
        self.seen = seen = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                seen.append((self.requestline, self.headers))
                self.rfile.read(int(self.headers["content-length"] or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.dumps({"method": self.command, "path": self.path, "headers": headers}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def __getattr__(self, name):  # of any method: do_POST, do_post
                if name.startswith("do_"):
                    return self.answer
                raise AttributeError(name)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Proxy:
    """One proxy in front of an application. Use as a context manager.

    `header_timeout` is how long headers may take, instead of what the page says.
    """

    def __init__(self, name, folder, ports, header_timeout=None):
        self.name, self.folder, self.port, self.header_timeout = name, folder, free_port(), header_timeout
        self.ports = ports | {8000: self.port, 8001: free_port()}
        self.environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}  # where Caddy keeps things

    def __enter__(self):
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(getattr(self, self.name)(), stdout=log, stderr=log, cwd=self.folder,
                                            stdin=subprocess.DEVNULL, env=os.environ | self.environment,
                                            start_new_session=True)
        try:
            eventually(lambda: self.ask("/", client=OTHER)[0] == 200 or self.process.poll(),
                       log=(self.folder / "log").read_text)
            assert self.process.poll() is None, (self.folder / "log").read_text()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)  # nginx has a worker, too
        self.process.wait()

    def configured(self, language):
        text = re.sub(r"\b(10|60)s\b", self.header_timeout, TEXTS[language]) if self.header_timeout else TEXTS[language]
        return re.sub(r"\b(8000|8001|8080|8081|3000)\b", lambda port: str(self.ports[int(port[0])]), text)

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
        text = self.configured("caddy").replace("{", "{\nadmin off", 1)
        return [program("caddy"), "run", "--adapter", "caddyfile", "--config", self.write("Caddyfile", text)]

    def haproxy(self):
        self.write("swlimit.lua", self.configured("lua"))
        return [program("haproxy"), "-db", "-f", self.write("haproxy.cfg", self.configured("haproxy"))]

    def traefik(self):
        self.write("web.yaml", self.configured("traefik web"))
        return [packaged("traefik"), "--configFile", self.write("traefik.yaml", self.configured("traefik"))]

    def envoy(self, language="envoy"):
        return [packaged("envoy"), "-c", self.write("envoy.yaml", self.configured(language)), "--use-dynamic-base-id",
                "--concurrency", "1", "--log-level", "warning"]

    def envoy_grpc(self):
        return self.envoy(GRPC)

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

    def connected(self, client=CLIENT):
        return socket.create_connection(("127.0.0.1", self.port), 20, (client, 0))

    def send(self, request, client=CLIENT):
        """The status of the reply to these bytes, or 0 if the connection ends without one."""
        with self.connected(client) as connection:
            try:
                connection.sendall(request)
                reply = connection.recv(1000)
            except ConnectionError:
                return 0
        return int(reply.split(b" ")[1]) if reply.startswith(b"HTTP/") else 0


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
