"""Speak HTTP/2 frame by frame, as no client would that means well."""

import socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RATE_LIMIT = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
DATA, HEADERS, RESET, SETTINGS, WINDOW_UPDATE = 0, 1, 3, 4, 8


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def field(name, value):
    """A header without compression."""
    def text(value):
        return bytes([len(value)]) + value
    return b"\x00" + text(name) + text(value)


def headers(method, path):
    fields = {b":method": method, b":scheme": b"http", b":path": path, b":authority": b"localhost"}
    if method == b"POST":
        fields[b"content-type"] = b"application/grpc" if path == RATE_LIMIT else b"application/json"
        fields[b"te"] = b"trailers"
    return b"".join(field(*pair) for pair in fields.items())


class Http2:
    """One connection of HTTP/2, which sends what its windows allow."""

    def __init__(self, port, settings=b""):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.windows, self.initial, self.rest = {0: 65535}, 65535, b""
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def settle(self):
        """Hear the other side's settings."""
        while self.initial == 65535:
            assert self.hear()

    def request(self, stream, method, path, ends=True):
        self.windows[stream] = self.initial
        self.socket.sendall(frame(HEADERS, 4 | ends, stream, headers(method, path)))

    def hear(self):
        """Read what comes; whether anything does."""
        heard = self.socket.recv(65536)
        self.rest += heard
        while len(self.rest) >= 9 and len(self.rest) >= 9 + (size := int.from_bytes(self.rest[:3], "big")):
            kind, flags, stream = self.rest[3], self.rest[4], int.from_bytes(self.rest[5:9], "big")
            payload, self.rest = self.rest[9:9 + size], self.rest[9 + size:]
            if kind == WINDOW_UPDATE and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload, "big")
            elif kind == RESET:
                self.windows.pop(stream, None)
            elif kind == SETTINGS and not flags & 1:
                self.socket.sendall(frame(SETTINGS, 1, 0))  # from then on they hold
                for at in range(0, size, 6):
                    if payload[at:at + 2] == b"\x00\x04":
                        self.initial = int.from_bytes(payload[at + 2:at + 6], "big")
        return heard != b""

    def send(self, stream, body):
        """A body that does not end; less if the other side ends the stream."""
        while body and stream in self.windows:
            size = min(len(body), 16_384, self.windows[0], self.windows[stream])
            if size:
                self.socket.sendall(frame(DATA, 0, stream, body[:size]))
                body = body[size:]
                self.windows[0] -= size
                self.windows[stream] -= size
            else:
                assert self.hear()
