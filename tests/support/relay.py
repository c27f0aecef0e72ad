"""A way to a server that can be bad: slow, swallowing, or leading elsewhere."""

import random
import socket
import socketserver
import threading
import time
from contextlib import suppress


class Relay(socketserver.ThreadingTCPServer):
    """Passes connections on to `target`, a port of this machine. Use as a context manager.

    It can be changed at any time. `delay` is the longest that a reply waits, in seconds. While it `swallows`, it takes
    connections, and loses the bytes of both directions. A new `target` is for new connections.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 100

    def __init__(self, target, seed=1):
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port = self.server_address[1]
        self.target, self.delay, self.swallows = target, 0.0, False
        self.chance = random.Random(seed)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()

    def asked(self, data):
        """What is passed on in place of this part of a request."""
        return data

    def answered(self, data):
        """What is passed on in place of this part of a reply; an OSError breaks the connection."""
        time.sleep(self.chance.uniform(0, self.delay))
        return data

    def handle_error(self, *_):
        """Connections that break are what it is for."""


class _Passing(socketserver.BaseRequestHandler):
    def handle(self):
        relay = self.server
        with socket.create_connection(("127.0.0.1", relay.target)) as target:
            def back():
                with suppress(OSError):
                    self._pass(target, self.request, relay.answered)
            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            with suppress(OSError):
                self._pass(self.request, target, relay.asked)
            thread.join()

    def _pass(self, source, sink, change):
        for one in (source, sink):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := source.recv(65536):
                if not self.server.swallows:
                    sink.sendall(change(data))
        finally:
            for one in (source, sink):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
