"""Play requests through a real server and note what it decides."""

import secrets
from contextlib import contextmanager, suppress
from typing import NamedTuple

import redis

from support.server import Server

from .errors import UserError

BATCH = 1000
KEEP_SECONDS = 24 * 3600  # in wall time: longer than any replay takes, short enough to clean up after a killed one

# Steps of time that people think in, in seconds; an outcome has at most STEPS of them.
STEPS = 120
STEP_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Limit(NamedTuple):
    """As the commands of the module take it."""

    limit: str
    window: str
    resolution: str
    strict: bool = False

    def command(self, name, key, cost, at):
        words = [name, key, self.limit, self.window, self.resolution, "COST", cost, "AT", at]
        return words + ["STRICT"] if self.strict else words

    def __str__(self):
        strict = ", strict" if self.strict else ""
        return f"{self.limit} per {self.window} (resolution {self.resolution}{strict})"


class Tally:
    """What became of the requests of one key, or of all: how many, and how many units they asked for."""

    def __init__(self):
        self.offered = self.granted = 0
        self.offered_units = self.granted_units = 0
        self.first_denial = self.last_denial = None

    @property
    def denied(self):
        return self.offered - self.granted

    @property
    def denied_units(self):
        return self.offered_units - self.granted_units

    def add(self, request, granted):
        self.offered += 1
        self.offered_units += request.cost
        if granted:
            self.granted += 1
            self.granted_units += request.cost
        else:
            self.first_denial = request.at if self.first_denial is None else self.first_denial
            self.last_denial = request.at


class Outcome:
    """The decisions, by key, in total, and over time in units per step of `step` milliseconds."""

    def __init__(self, first, last):
        """Prepare for requests from the instant `first` to the instant `last`."""
        self.total = Tally()
        self.keys = {}
        self.step = _step(last - first)
        self.start = first // self.step * self.step
        self.offered = [0] * ((last - self.start) // self.step + 1)
        self.granted = self.offered.copy()

    def add(self, request, granted):
        self.total.add(request, granted)
        self.keys.setdefault(request.key, Tally()).add(request, granted)
        step = (request.at - self.start) // self.step
        self.offered[step] += request.cost
        self.granted[step] += request.cost * granted

    def most_limited(self, count):
        """(key, tally), those with the most denied units first; alike ones by what they asked for, then by name."""
        def rank(item):
            return -item[1].denied_units, -item[1].offered_units, item[0]
        return sorted(self.keys.items(), key=rank)[:count]

    @property
    def limited(self):
        """How many keys were denied anything."""
        return sum(tally.denied > 0 for tally in self.keys.values())


def _step(span):
    """The first step that divides a span into few enough; if none does, as many whole days as it takes."""
    for step in STEP_SECONDS:
        if span < STEPS * step * 1000:
            return step * 1000
    day = STEP_SECONDS[-1] * 1000
    return -(-span // (STEPS * day)) * day


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


def play(client, requests, limit, outcome, advance=lambda count: None):
    """Ask for every request at its own instant (AT) and add the decisions to `outcome`."""
    prefix = b"swlimit:replay:" + secrets.token_hex(8).encode() + b":"
    try:
        for first in range(0, len(requests), BATCH):
            batch = requests[first:first + BATCH]
            for request, granted in zip(batch, _ask(client, prefix, batch, limit)):
                outcome.add(request, granted)
            advance(len(batch))
    finally:
        # An interrupted batch leaves its connection unusable, so this takes a new one.
        client.connection_pool.disconnect()
        _forget(client, [prefix + _bytes(key) for key in {request.key for request in requests}])


def _ask(client, prefix, batch, limit):
    """Which requests of one batch are granted.

    Keys expire in wall time. A busy second of a log can take longer to replay than it lasted, and a count would be gone
    while the log still needs it. So nothing may expire between two requests of a key: the server's clock stands still
    within a transaction, and at its end every key is given longer to live.
    """
    keys = {request.key: prefix + _bytes(request.key) for request in batch}
    with client.pipeline(transaction=True) as pipeline:
        for request in batch:
            pipeline.execute_command(*limit.command("SWLIMIT.ALLOW", keys[request.key], request.cost, request.at))
        for key in keys.values():
            pipeline.expire(key, KEEP_SECONDS, gt=True)
        replies = pipeline.execute()
    return [reply[0] > 0 for reply in replies[:len(batch)]]


def _forget(client, keys):
    with suppress(redis.ConnectionError):  # a server that is gone has nothing to clean up
        for first in range(0, len(keys), BATCH):
            client.unlink(*keys[first:first + BATCH])


def _bytes(text):
    return text.encode("utf-8", "surrogateescape")
