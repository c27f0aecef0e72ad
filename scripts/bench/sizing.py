"""What swlimitd keeps in memory: for each rule, each key that it knows, and each connection."""

import http.client
import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from support.daemon import Daemon
from support.http2 import PREFACE, SETTINGS, frame
from support.server import Binaries, Server
from support.waiting import eventually

THREADS = 8
POD = 256 << 20  # bytes, the memory that the chart and the manifests allow


@dataclass(frozen=True)
class Kind:
    """What there is `many` of, and how a daemon comes to have it."""

    label: str
    many: int
    make: Callable  # (stack, server, number) -> the daemon


def daemon(stack, server, descriptors):
    return stack.enter_context(Daemon(json.dumps({"domain": "d", "descriptors": descriptors}), server))


def limited(requests, **limit):
    return {"rate_limit": {"unit": "day", "requests_per_unit": requests, **limit}}


def with_rules(stack, server, number):
    return daemon(stack, server, [{"key": f"rule{at}", **limited(100)} for at in range(number)])


def with_keys(mode, times):
    """Keys of a limit of 1 that were asked for so often."""
    def make(stack, server, number):
        made = daemon(stack, server, [{"key": "k", **limited(1, mode=mode)}])
        ask(made, number, times)
        return made
    return make


def ask(asked, number, times):
    """Ask about each of so many keys so often."""
    def some(first):
        connection = http.client.HTTPConnection("127.0.0.1", asked.http_port)
        for at in range(first, number, THREADS):
            entries = [{"key": "k", "value": f"{at:016}"}]
            body = json.dumps({"domain": "d", "descriptors": [{"entries": entries}]})
            for _ in range(times):
                connection.request("POST", "/json", body)
                reply = connection.getresponse()
                assert reply.status in (200, 429), (reply.status, reply.read())
                reply.read()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(some, range(THREADS)))


def with_connections(protocol):
    """Connections that are open, and send nothing more."""
    def make(stack, server, number):
        made = daemon(stack, server, [])
        for _ in range(number):
            opened = stack.enter_context(socket.create_connection(
                ("127.0.0.1", made.port if protocol == "grpc" else made.http_port)))
            if protocol == "grpc":
                opened.sendall(PREFACE + frame(SETTINGS, 0, 0))
                opened.recv(1)
            else:
                opened.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n")
                opened.recv(1)
        return made
    return make


KINDS = [
    Kind("a rule", 10_000, with_rules),
    Kind("a key whose denial it knows (`mode: cached`)", 50_000, with_keys("cached", 2)),
    Kind("a key that it counts itself (`mode: local`)", 50_000, with_keys("local", 1)),
    Kind("an open connection over HTTP/1.1", 500, with_connections("http")),
    Kind("an open connection over gRPC", 500, with_connections("grpc")),
]


def memory(process, figure="VmRSS"):
    """The resident memory of a process in bytes, once it grows no more. `VmHWM`: the most that it has been."""
    def resident():
        kilobytes = re.search(rf"{figure}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        return int(kilobytes[1]) * 1024
    seen = [0]

    def is_steady():
        seen.append(resident())
        return abs(seen[-1] - seen[-2]) < seen[-1] / 1000
    eventually(is_steady)
    return seen[-1]


def measure():
    """The memory of an idle swlimitd in bytes, and by kind how much more it has for each."""
    with Server(Binaries.installed()) as server:
        def of(kind, number):
            with ExitStack() as stack:
                return memory(kind.make(stack, server, number).process)
        grown = {}
        for kind in KINDS:
            print(f"sizing: {kind.label}", flush=True)
            few = max(1, kind.many // 100)
            server.cli("FLUSHALL")
            least = of(kind, few)
            grown[kind.label] = (of(kind, kind.many) - least) / (kind.many - few)
        with ExitStack() as stack:
            return memory(daemon(stack, server, []).process), grown


def table(result):
    """As a Markdown table."""
    idle, grown = result
    rows = [f"| swlimitd keeps | bytes | that fit into {POD >> 20} MiB |", "|---|---:|---:|",
            f"| itself, idle | {idle:,.0f} | – |"]
    return rows + [f"| {label} | {each:,.0f} | {(POD - idle) / each:,.0f} |" for label, each in grown.items()]
