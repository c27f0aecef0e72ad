"""Play requests through a real server, as pipelined raw commands, and note what it answers."""

import socket
from typing import NamedTuple

BATCH = 1000
KEEP_SECONDS = 24 * 3600  # wall time, longer than any run


class Answer(NamedTuple):
    """What the server says about one request."""

    granted: int      # units
    remaining: int    # units, after the decision
    retry_after: int  # ms
    memory: int       # bytes the key takes now, 0 if there is none


class Limiter(NamedTuple):
    """How the module is asked. Times in ms."""

    limit: int
    window: int
    resolution: int
    strict: bool = False

    @property
    def subintervals(self):
        return self.window // self.resolution

    def command(self, name, key, at, cost, *options):
        strict = ("STRICT",) if self.strict else ()
        return command(name, key, self.limit, f"{self.window}ms", f"{self.resolution}ms", "COST", cost, "AT", at,
                       *options, *strict)


class Player:
    """A connection to a server, which it takes over: every play starts with an empty keyspace."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._replies = self._socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._replies.close()
        self._socket.close()

    def ask(self, *commands):
        """The replies to these commands, as integers, byte strings, None and lists of them."""
        self._socket.sendall(b"".join(commands))
        return [self._reply() for _ in commands]

    def allow(self, limiter, requests, *options):
        """The module's answer to each of these requests, in their order."""
        self.ask(command("FLUSHALL"))
        answers = []
        for batch in _batches(requests):
            commands = []
            for at, client, cost in batch:
                key = _key(client)
                commands.append(limiter.command("SWLIMIT.ALLOW", key, at, cost, *options))
                commands.append(command("MEMORY", "USAGE", key))
            replies = iter(self._at_one_instant(commands, {request.client for request in batch}))
            answers += [Answer(reply[0], reply[2], reply[3], memory or 0) for reply, memory in zip(replies, replies)]
        return answers

    def sorted_set(self, requests, granted, window):
        """Bytes of each request's key after it, if an exact log is kept the usual way: a sorted set of timestamps."""
        self.ask(command("FLUSHALL"))
        memory = []
        for batch in _batches(list(zip(requests, granted))):
            commands = []
            for number, ((at, client, _), counted) in enumerate(batch, len(memory)):
                key = _key(client)
                commands.append(command("ZREMRANGEBYSCORE", key, "-inf", at - window))
                # A denial adds nothing; asking takes its place, so that every request has three replies.
                commands.append(command("ZADD", key, at, number) if counted else command("ZCARD", key))
                commands.append(command("MEMORY", "USAGE", key, "SAMPLES", 0))
            memory += [usage or 0 for usage in self.ask(*commands)[2::3]]
        return memory

    def _at_one_instant(self, commands, clients):
        """Replies to commands between which no key expires.

        Keys expire in wall time, and a busy second of traffic can take longer to play than it lasted. So the server's
        clock stands still, as it does in a transaction, and all keys are given longer to live before it goes on.
        """
        keep = [command("EXPIRE", _key(client), KEEP_SECONDS, "GT") for client in clients]
        *_, replies = self.ask(command("MULTI"), *commands, *keep, command("EXEC"))
        return replies[:len(commands)]

    def _reply(self):
        line = self._replies.readline()
        kind, value = line[:1], line[1:-2]
        match kind:
            case b":":
                return int(value)
            case b"*":
                return [self._reply() for _ in range(int(value))]
            case b"+":
                return value
            case b"$" if value == b"-1":
                return None
            case b"$":
                return self._replies.read(int(value) + 2)[:-2]
        raise RuntimeError(f"the server says: {line.decode(errors='replace').strip() or 'nothing more'}")


def command(*words):
    """A command in the server's protocol."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _key(client):
    """A name of 16 bytes, so that memory compares."""
    return b"client:%09d" % client


def _batches(items):
    return (items[first:first + BATCH] for first in range(0, len(items), BATCH))
