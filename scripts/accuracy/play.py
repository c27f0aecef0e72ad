"""Play requests through a real server, and note what it answers."""

from typing import NamedTuple

from replay import BATCH, Limit, allow


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


class Player:
    """A client of a server, which it takes over: every play starts with an empty keyspace."""

    def __init__(self, client):
        self.client = client

    def allow(self, limiter, requests, *options):
        """The module's answer to each of these requests, in their order."""
        self.client.flushall()
        limit = Limit(limiter.limit, f"{limiter.window}ms", f"{limiter.resolution}ms", limiter.strict)
        return [Answer(granted, remaining, retry_after, memory or 0) for (granted, _, remaining, retry_after, _), memory
                in allow(self.client, limit, requests, _key, *options, memory=True)]

    def sorted_set(self, requests, granted, window):
        """Bytes of each request's key after it, if an exact log is kept the usual way: a sorted set of timestamps."""
        self.client.flushall()
        memory = []
        for first in range(0, len(requests), BATCH):
            with self.client.pipeline(transaction=False) as pipeline:
                for number, request in enumerate(requests[first:first + BATCH], first):
                    key = _key(request)
                    pipeline.execute_command("ZREMRANGEBYSCORE", key, "-inf", request.at - window)
                    # A denial adds nothing; asking takes its place, so that every request has three replies.
                    add = ("ZADD", key, request.at, number) if granted[number] else ("ZCARD", key)
                    pipeline.execute_command(*add)
                    pipeline.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0)
                memory += [usage or 0 for usage in pipeline.execute()[2::3]]
        return memory


def _key(request):
    """A name of 16 bytes, so that memory compares."""
    return b"client:%09d" % request.client
