"""Replies that are lost, with clients that repeat by themselves: what the server has counted is not counted again."""

from contextlib import suppress

import pytest
import redis
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

import swlimit
from support.relay import Relay
from support.resp import Connection
from support.waiting import eventually

RETRIES = {"threads": Retry(NoBackoff(), 3), "asyncio": redis.asyncio.retry.Retry(NoBackoff(), 3)}


class Losing(Relay):
    """Breaks a connection in place of the next reply, `lost` times."""

    lost = 0

    def answered(self, data):
        if self.lost:
            self.lost -= 1
            raise ConnectionError
        return super().answered(data)


@pytest.fixture
def relay(server):
    with Losing(server.port) as relay:
        yield relay


def repeating(kind, relay):
    """A client that sends again what was not answered, as redis-py 8 does by itself."""
    return kind.client(kind.redis, port=relay.port, retry=RETRIES[kind.name], retry_on_error=[redis.ConnectionError])


def counted(server, key):
    with Connection(server.port) as connection:
        found = connection.call("SWLIMIT.INFO", key)
    fields = dict(zip(found[::2], found[1::2]))
    return fields.get(b"total", fields.get(b"used"))


COMMANDS = {
    "allow": lambda rate, _budget, _all: rate.allow("k", cost=2),
    "record": lambda rate, _budget, _all: rate.record("k", cost=2),
    "allow_all": lambda rate, _budget, all: all(rate.request("k", 2)),
    "refund": lambda rate, _budget, _all: rate.refund("k", 2),
    "budget": lambda _rate, budget, _all: budget.allow("k", cost=2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_counted_once(kind, server, relay, name):
    client = repeating(kind, relay)
    told = {"timeout": 20.0, "on_failure": "deny"}
    rate = kind.limiter(client, 10, "1h", mode="direct", **told)
    budget = kind.budget_limiter(client, 10, "year", **told)
    try:
        made = budget if name == "budget" else rate
        eventually(lambda: made.allow("other").source == "server")
        made.allow("k", cost=5)
        relay.lost = 1
        with suppress(swlimit.UnavailableError):
            COMMANDS[name](rate, budget, kind.allow_all)
        eventually(lambda: made.allow("other").source == "server")
        assert relay.lost == 0
        assert counted(server, "k") == (3 if name == "refund" else 7)
    finally:
        rate.close()
        budget.close()


def test_the_client_itself_repeats(kind, server, relay):
    """Were it asked, one lost reply would count twice: else nothing is shown above."""
    client = repeating(kind, relay)
    kind.call(client.ping)
    relay.lost = 1
    kind.call(client.execute_command, "SWLIMIT.ALLOW", "k", 10, "1h", "1s")
    assert (relay.lost, counted(server, "k")) == (0, 2)
    kind.call(getattr(client, "aclose", client.close))
