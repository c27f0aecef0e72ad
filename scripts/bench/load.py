"""Send a server more than it can answer, and know what its main thread spent on it."""

import os
import socket
import subprocess
from collections import deque
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from pathlib import Path

from support.resp import INCOMPLETE, Failed, encode, parser
from support.server import ROOT, Binaries, Server

CLIENTS = 8
PIPELINE = 32
FLOOR_MODULE = ROOT / "target/bench/release/libfloor.so"
CELL_MODULE = ROOT / "target/cell/release/libredis_cell.so"


@cache  # this process stays on one of them later
def cores():
    """The server's core and the load generator's: two different ones, if the machine has two."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


@contextmanager
def awake():
    """Keeps both cores busy with what gives way to everything else. A core that rests between two measurements is slow
    when it begins again, by nearly a half on some hosts of virtual machines, and each contender rests otherwise."""
    loop = ("setpriv", "--pdeathsig", "KILL", "chrt", "--idle", "0", "sh", "-c", "while :; do :; done")
    loops = [subprocess.Popen(["taskset", "--cpu-list", str(core), *loop]) for core in set(cores())]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def start_server(**options):
    """A server with all modules on a core of its own; this process stays on another one. Not yet started."""
    server_core, own_core = cores()
    os.sched_setaffinity(0, {own_core})
    modules = [FLOOR_MODULE, *([CELL_MODULE] if CELL_MODULE.exists() else [])]
    return Server(Binaries.installed(), {"loadmodule": modules} | options,
                  before=["taskset", "--cpu-list", str(server_core)])


def cpu_nanoseconds(server):
    """What the server's main thread has run for so far, user and system, by the scheduler's own account."""
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def pipelines(commands, total=None):
    """Pipelines of encoded commands as (bytes, number of commands).

    Each command once, or all of them in turn until `total` (rounded up to whole pipelines) have been sent.
    """
    encoded = [encode(*words) for words in commands]
    if total is None:
        for start in range(0, len(encoded), PIPELINE):
            part = encoded[start:start + PIPELINE]
            yield b"".join(part), len(part)
        return
    encoded *= PIPELINE  # so that the last pipeline is full, too
    ready = [(b"".join(encoded[start:start + PIPELINE]), PIPELINE) for start in range(0, len(encoded), PIPELINE)]
    yield from islice(cycle(ready), -(-total // PIPELINE))


class Load:
    """Some clients, each with one pipeline under way at any time. Use as a context manager."""

    def __init__(self, server, clients=CLIENTS):
        self.sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(clients)]
        for connection in self.sockets:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close all connections."""
        for connection in self.sockets:
            connection.close()

    def select(self, database):
        """Go on in another database."""
        for connection in self.sockets:
            connection.sendall(encode("SELECT", database))
            _finish(connection, 1)

    def lines(self, words):
        """Run one command; how many lines its reply has."""
        self.sockets[0].sendall(encode(*words) + encode("PING"))
        reply = b""
        while not reply.endswith(b"+PONG\r\n"):
            reply += self.sockets[0].recv(1 << 16)
        if reply.startswith(b"-"):
            raise RuntimeError(f"{words}: {reply.decode(errors='replace').strip()}")
        return reply.count(b"\n") - 1

    def run(self, stream, replies=1):
        """Send pipelines, for each of whose commands so many replies come, and take these in."""
        idle, busy = deque(self.sockets), deque()
        for pipeline, commands in stream:
            if not idle:
                idle.append(_finish(*busy.popleft()))
            connection = idle.popleft()
            connection.sendall(pipeline)
            busy.append((connection, commands * replies))
        while busy:
            _finish(*busy.popleft())

    def run_all(self, commands):
        """Run each of these commands once."""
        self.run(pipelines(list(commands)))


def _finish(connection, replies):
    """Take in the replies to one pipeline."""
    reader = parser()
    while replies > 0:
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise RuntimeError("the server hung up")
        reader.feed(chunk)
        while (reply := reader.gets()) is not INCOMPLETE:
            if isinstance(reply, Failed):
                raise RuntimeError(f"the server answered {reply}")
            replies -= 1
    return connection
