"""What the tests of hostile input share: DUMP payloads made by hand, ways to damage them, and a fast connection.

A DUMP payload of a window, as the server frames it:

    07  81 <8 bytes: type's name and encoding version>  05 <string: the value>  00  <2 bytes: RDB version>  <8: CRC64>

The value is a sequence of LEB128 integers: resolution (ms), subintervals, number of counts, then for each count the
distance from the subinterval before it and its units.
"""

import itertools
import socket

MAX_EXACT = 2**53 - 1
MAX_WINDOW = 3650 * 24 * 60 * 60 * 1000
MAX_SUBINTERVALS = 1_000_000

TYPE_AND_ID = 10  # bytes before the value's opcode
FOOTER = 10  # RDB version and checksum

# Numbers at which integers, limits and shifts go wrong.
EDGES = sorted({edge + off for edge in (0, 1 << 7, 1 << 14, 1 << 20, MAX_SUBINTERVALS, 1 << 31, 1 << 32, MAX_WINDOW,
                                        1 << 44, 1 << 53, 1 << 62, 1 << 63) for off in (-1, 0, 1, 2)
                if edge + off >= 0} | {2**64 - 1, 2**64 - 2})


def leb128(number):
    """An unsigned integer, seven bits a byte, lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def value_of(resolution, subintervals, counts, announced=None):
    """A window's bytes. `counts` are pairs of subinterval and units, oldest first; nothing is checked."""
    fields = [leb128(resolution), leb128(subintervals), leb128(len(counts) if announced is None else announced)]
    previous = 0
    for subinterval, units in counts:
        fields += leb128((subinterval - previous) % 2**64), leb128(units)
        previous = subinterval
    return b"".join(fields)


def fields_of(value):
    """The integers of a window's bytes."""
    numbers, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers


class Frame:
    """What one server puts around a window's bytes, learned from a DUMP of its own."""

    def __init__(self, dump):
        assert dump[0] == 7 and dump[1] == 0x81 and dump[TYPE_AND_ID] == 5, dump
        self.head = dump[:TYPE_AND_ID + 1]
        self.foot = dump[-FOOTER:-8] + bytes(8)

    def body(self, value):
        """A payload without its footer."""
        if len(value) < 1 << 6:
            length = bytes([len(value)])
        elif len(value) < 1 << 14:
            length = (0x4000 | len(value)).to_bytes(2, "big")
        else:
            length = b"\x80" + len(value).to_bytes(4, "big")
        return self.head + length + value + b"\0"

    def around(self, value):
        """A payload, complete but for its checksum."""
        return self.body(value) + self.foot


def damaged(rng, value, other):
    """The bytes with one to three things wrong with them; `other` is material to splice in."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(value) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(value):  # a bit
            value = value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1:]
        elif kind == 1 and at < len(value):  # a byte
            value = value[:at] + rng.randbytes(1) + value[at + 1:]
        elif kind == 2:  # an insertion
            value = value[:at] + rng.randbytes(rng.randint(1, 6)) + value[at:]
        elif kind == 3:  # a deletion
            value = value[:at] + value[at + rng.randint(1, 4):]
        elif kind == 4:  # a part of another one
            begin = rng.randrange(len(other))
            value = value[:at] + other[begin:begin + rng.randint(1, 12)] + value[at + rng.randint(0, 12):]
        elif kind == 5:  # cut short
            value = value[:at]
        else:  # a field of its own replaced
            fields = fields_of(value)
            if fields:
                index = rng.randrange(min(len(fields), rng.choice((4, 64))))
                near = fields[index] + rng.randint(-2, 2)
                fields[index] = rng.choice((rng.choice(EDGES), near, rng.choice(fields), rng.getrandbits(20))) % 2**64
            value = b"".join(map(leb128, fields))
    return value


class Failed(str):
    """An error reply."""


class Pipe:
    """A connection that sends many commands at once and reads RESP2 replies quickly."""

    def __init__(self, server, timeout=60):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout)
        self.buffer = b""
        self.at = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, *words):
        """The reply to one command; `Failed` if it is an error."""
        return self.calls([words])[0]

    def calls(self, commands):
        """The replies to many commands, which must not be so many that both sides' buffers fill up."""
        self.socket.sendall(b"".join(map(packed, commands)))
        return [self.reply() for _ in commands]

    def stream(self, commands, size=200):
        """The replies to any number of commands, in batches of `size`."""
        for begin in range(0, len(commands), size):
            yield from self.calls(commands[begin:begin + size])

    def reply(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"+":
            return rest.decode()
        assert kind == b"-", line
        return Failed(rest.decode(errors="replace"))

    def _line(self):
        while True:
            end = self.buffer.find(b"\r\n", self.at)
            if end >= 0:
                line, self.at = self.buffer[self.at:end], end + 2
                return line
            self._receive()

    def _bytes(self, length):
        while len(self.buffer) < self.at + length + 2:
            self._receive()
        begin, self.at = self.at, self.at + length + 2
        return self.buffer[begin:begin + length]

    def _receive(self):
        more = self.socket.recv(1 << 20)
        if not more:
            raise ConnectionError("the server hung up")
        self.buffer = self.buffer[self.at:] + more
        self.at = 0


def packed(words):
    """One command as the protocol has it."""
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        if not isinstance(word, bytes):
            word = str(word).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(out)


def info(client, section="swlimit"):
    """The numbers of an INFO section, the rest as it is."""
    fields = {}
    for line in client.call("INFO", section).decode().splitlines():
        name, colon, text = line.partition(":")
        if colon:
            fields[name] = int(text) if text.lstrip("-").isdigit() else text
    return fields


def storm(server, commands, size=2000):
    """Send any number of commands without waiting for replies, on a connection of its own; done when all have run."""
    with Pipe(server) as pipe:
        pipe.socket.sendall(packed(("CLIENT", "REPLY", "OFF")))
        commands = iter(commands)
        while batch := b"".join(map(packed, itertools.islice(commands, size))):
            pipe.socket.sendall(batch)
        pipe.socket.sendall(packed(("CLIENT", "REPLY", "ON")))
        assert pipe.reply() == "OK"
