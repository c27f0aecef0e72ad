"""Play requests through a real server: each is decided at its own instant."""

import secrets
import signal
from contextlib import contextmanager, suppress
from typing import NamedTuple

import redis

from support.server import Server

from .errors import UserError

BATCH = 1000
KEEP_SECONDS = 24 * 3600  # in wall time: longer than any replay takes, short enough to clean up after a killed one


class Limit(NamedTuple):
    """As the commands of the module take it."""

    limit: str
    window: str
    resolution: str
    strict: bool = False

    def command(self, name, key, cost, at, *options):
        strict = ("STRICT",) if self.strict else ()
        return [name, key, self.limit, self.window, self.resolution, "COST", cost, "AT", at, *options, *strict]

    def __str__(self):
        strict = ", strict" if self.strict else ""
        return f"{self.limit} per {self.window} (resolution {self.resolution}{strict})"


@contextmanager
def connected(address=None):
    """A client of the server at `address` (HOST:PORT or redis://…), or of one that lives as long as this context."""
    if address:
        try:
            client = redis.Redis.from_url(address if "://" in address else f"redis://{address}")
        except ValueError as error:
            raise UserError(f"--server takes HOST:PORT: {error}") from error
        with client:
            yield client
        return
    server = Server()
    try:  # not `with server`: an interrupted start has to end it too
        try:
            server.start()
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot start a server: {error}") from error
        with server.client() as client:
            yield client
    finally:
        server.close()


def check(client, limit, cost):
    """Let the server judge the limit, before any work."""
    try:
        client.execute_command(*limit.command("SWLIMIT.PEEK", b"", cost, 0))
    except redis.ConnectionError as error:
        raise UserError(f"cannot reach the server: {error}") from error
    except redis.ResponseError as error:
        if str(error).startswith("unknown command"):
            raise UserError("this server has not loaded the module swlimit") from error
        raise UserError(str(error)) from error


def allow(client, limit, requests, name, *options, memory=False):
    """Ask for each of these requests; yields the module's replies, and what MEMORY USAGE says after each if wanted.

    `name` tells the key of a request. Keys expire in wall time, and a busy second of traffic can take longer to play
    than it lasted: a count would be gone while it still matters. So nothing may expire between two requests of a key:
    the server's clock stands still within a transaction, and at its end every key is given longer to live.
    """
    for first in range(0, len(requests), BATCH):
        batch = [(request, name(request)) for request in requests[first:first + BATCH]]
        with client.pipeline(transaction=True) as pipeline:
            for request, key in batch:
                pipeline.execute_command(*limit.command("SWLIMIT.ALLOW", key, request.cost, request.at, *options))
                if memory:
                    pipeline.execute_command("MEMORY", "USAGE", key)
            for key in {key for _, key in batch}:
                pipeline.expire(key, KEEP_SECONDS, gt=True)
            with uninterrupted():
                replies = iter(pipeline.execute()[:len(batch) * (1 + memory)])
        yield from zip(replies, replies) if memory else replies


@contextmanager
def uninterrupted():
    """Signals that end a replay wait for the end of this: an exception raised inside of hiredis crashes Python."""
    waiting = []
    before = {number: signal.signal(number, lambda number, _: waiting.append(number))
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in waiting:
        signal.raise_signal(number)


def replay(client, requests, limit, outcome, track=iter):
    """Ask for every request, under names of this replay alone, and add the decisions to `outcome`."""
    prefix = b"swlimit:replay:" + secrets.token_hex(8).encode() + b":"
    try:
        replies = allow(client, limit, requests, lambda request: prefix + _bytes(request.key))
        for request, reply in zip(track(requests), replies):
            outcome.add(request, reply[0] > 0)
    finally:
        # An interrupted batch leaves its connection unusable, so this takes a new one.
        client.connection_pool.disconnect()
        _forget(client, [prefix + _bytes(key) for key in {request.key for request in requests}])


def _forget(client, keys):
    with suppress(redis.ConnectionError):  # a server that is gone has nothing to clean up
        for first in range(0, len(keys), BATCH):
            client.unlink(*keys[first:first + BATCH])


def _bytes(text):
    return text.encode("utf-8", "surrogateescape")
