"""Servers as many are run: with I/O threads, somebody's MONITOR, and a client that caches what it reads."""

import threading

from .resp import Connection
from .server import Server

IO_THREADS = 4


class ThreadedServer(Server):
    """A server with I/O threads, and two connections that take in all it has to tell for as long as it runs."""

    def __init__(self, *args, options=None, **more):
        super().__init__(*args, options={"io-threads": IO_THREADS} | (options or {}), **more)

    def start(self):
        if not self.alive:
            super().start()
            listen(self.port, [("MONITOR",)])
            listen(self.port, [("HELLO", 3), ("CLIENT", "TRACKING", "ON", "BCAST")])
        return self


def listen(port, commands):
    """Run these commands on a connection, and then read whatever comes until the server ends."""
    connection = Connection(port, timeout=None)
    for command in commands:
        reply = connection.call(*command)
        assert reply == b"OK" or isinstance(reply, dict), (command, reply)

    def read():
        with connection:
            try:
                while connection.socket.recv(1 << 20):
                    pass
            except OSError:
                pass  # killed

    threading.Thread(target=read, daemon=True).start()
