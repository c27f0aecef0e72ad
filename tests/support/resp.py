"""The servers' protocol, RESP2 and RESP3, as hiredis has it: commands as bytes, and replies as values."""

import itertools
import socket

import hiredis


class Failed(str):
    """An error reply."""


def encode(*words):
    """One command as it goes over the wire."""
    return hiredis.pack_command(words)


INCOMPLETE = object()


def parser():
    """A parser of replies: `feed` it what arrives; `gets` gives the next reply, or INCOMPLETE.

    Replies are integers, bytes (simple strings too), None, lists, dictionaries (RESP3), and `Failed`.
    """
    return hiredis.Reader(replyError=Failed, notEnoughData=INCOMPLETE)


class Connection:
    """A connection that sends many commands at once and reads their replies quickly. Use as a context manager.

    In RESP3 (after `HELLO 3`), `pushed` takes what the server says unasked.
    """

    def __init__(self, port, timeout=60):
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pushed = []
        self._parser = parser()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def call(self, *words):
        """The reply to one command; `Failed` if it is an error."""
        return self.calls([words])[0]

    def calls(self, commands):
        """The replies to many commands, which must not be so many that both sides' buffers fill up."""
        encoded = [encode(*words) for words in commands]
        return self.send(b"".join(encoded), len(encoded))

    def stream(self, commands, size=200):
        """The replies to any number of commands, in batches of `size`."""
        commands = iter(commands)
        while batch := list(itertools.islice(commands, size)):
            yield from self.calls(batch)

    def send(self, data, replies=0):
        """Send commands that are encoded already, and return so many replies."""
        self.socket.sendall(data)
        return [self.reply() for _ in range(replies)]

    def reply(self):
        """The next reply."""
        while True:
            reply = self._parser.gets()
            if isinstance(reply, hiredis.PushNotification):
                self.pushed.append(list(reply))
            elif reply is not INCOMPLETE:
                return reply
            else:
                more = self.socket.recv(1 << 20)
                if not more:
                    raise ConnectionError("the server hung up")
                self._parser.feed(more)


def storm(port, commands, size=2000):
    """Send any number of commands without waiting for replies, on a connection of its own; done when all have run."""
    with Connection(port) as connection:
        connection.send(encode("CLIENT", "REPLY", "OFF"))
        commands = iter(commands)
        while batch := b"".join(encode(*words) for words in itertools.islice(commands, size)):
            connection.send(batch)
        assert connection.call("CLIENT", "REPLY", "ON") == b"OK"
