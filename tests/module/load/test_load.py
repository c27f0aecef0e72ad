"""Exactness under load: many connections at once are granted the limit, and never one unit more."""

import asyncio
import random
import time

import pytest

from support.commands import mallow
from support.load import total
from support.resp import INCOMPLETE, encode, parser

pytestmark = pytest.mark.as_run

CONNECTIONS = 100
NOW = 1_800_000_000_123
DENSE = [
    # limit, window, resolution; with a fixed instant or by the server's clock, in which case nothing may slide out
    (1, "1h", "1h", NOW),
    (7, "1h", "1s", None),
    (100, "1d", "1h", None),
    (1000, "60", "60", NOW),
    (2500, "4096", "1", None),
]


class Asker:
    """A bare connection: what redis-py would add is time in which nothing hammers."""

    @classmethod
    async def open(cls, port):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.parser = parser()
        return self

    async def ask(self, commands):
        """Send commands at once, and return their replies."""
        self.writer.write(b"".join(commands))
        replies = []
        while len(replies) < len(commands):
            more = await self.reader.read(1 << 16)
            assert more, "the server hung up"
            self.parser.feed(more)
            while (reply := self.parser.gets()) is not INCOMPLETE:
                assert isinstance(reply, list), reply
                replies.append(reply)
        return replies


def hammer(port, commands, batch, connections=CONNECTIONS):
    """Send each command once, over many connections at the same time, `batch` at a time; the replies in any order."""
    async def run():
        opened = await asyncio.gather(*(Asker.open(port) for _ in range(connections)))
        queue = list(reversed(commands))
        replies = []

        async def work(connection):
            while queue:
                batch_of_commands = [queue.pop() for _ in range(min(batch, len(queue)))]
                replies.extend(await connection.ask(batch_of_commands))

        await asyncio.gather(*(work(connection) for connection in opened))
        for connection in opened:
            connection.writer.close()
        return replies

    replies = asyncio.run(run())
    assert len(replies) == len(commands)
    return replies


def options(at, strict):
    return (["AT", at] if at else []) + (["STRICT"] if strict else [])


def one_key(server, key, limit, window, resolution, at, strict, batch, attempts):
    command = encode("SWLIMIT.ALLOW", key, limit, window, resolution, *options(at, strict))
    replies = hammer(server.port, [command] * attempts, batch)
    granted = [reply for reply in replies if reply[0]]
    assert len(granted) == limit, f"{len(granted)} granted of {limit}"
    assert sorted(reply[2] for reply in granted) == list(range(limit)), "two requests took the same unit"
    assert all(reply[2] == 0 and reply[3] > 0 for reply in replies if not reply[0])
    assert total(server.client(), key) == limit
    return attempts


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
@pytest.mark.parametrize("batch", [1, 32], ids=["single", "pipelined"])
def test_one_key_grants_its_limit_and_not_one_more(server, report, batch, strict):
    """100 connections ask for one key at once: exactly L are granted, and each of them took another unit."""
    tried = 0
    for number, (limit, window, resolution, at) in enumerate(DENSE):
        tried += one_key(server, f"one:{number}", limit, window, resolution, at, strict, batch, limit + 500)
    report(f"{tried} requests for {sum(limit for limit, *_ in DENSE)} units, {CONNECTIONS} connections: 0 too many")


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
@pytest.mark.parametrize("batch", [1, 32], ids=["single", "pipelined"])
def test_many_keys_grant_their_limits_and_not_one_more(server, report, batch, strict):
    """100 connections ask for many keys of different limits and windows at once: each grants exactly its limit."""
    chance = random.Random(f"{batch} {strict}")
    quotas = {f"many:{number}": (number % 12, *chance.choice([("1h", "1s"), ("1d", "6h"), ("1h", "1h")]))
              for number in range(300)}
    commands = [encode("SWLIMIT.ALLOW", key, *quota, *options(NOW, strict)) for key, quota in quotas.items()
                for _ in range(quota[0] + 5)]
    chance.shuffle(commands)
    replies = hammer(server.port, commands, batch)
    assert sum(reply[0] for reply in replies) == sum(limit for limit, *_ in quotas.values())
    for key, (limit, *_) in quotas.items():
        assert total(server.client(), key) == limit, key
    report(f"{len(commands)} requests for {len(quotas)} keys, {CONNECTIONS} connections: 0 too many")


def test_costs_and_partial_grants_fill_the_limit_exactly(server, report):
    """Requests of many sizes, whole or PARTIAL, and at instants that go back and forth, never pass the limit together,
    and PARTIAL ones use it up to the last unit."""
    chance = random.Random(5)
    limit = 5000
    commands = []
    for _ in range(2000):
        request = ["SWLIMIT.ALLOW", "sizes", limit, "1h", "1s", "COST", chance.randint(1, 20)]
        request += ["AT", NOW + chance.randint(0, 600_000)]
        commands.append(encode(*request, *chance.choice([[], ["PARTIAL"], ["PARTIAL", "STRICT"], ["STRICT"]])))
    replies = hammer(server.port, commands, 8)
    replies += hammer(server.port, [encode("SWLIMIT.ALLOW", "sizes", limit, "1h", "1s", "PARTIAL", "COST", 20,
                                          "AT", NOW + 600_000)], 1)
    assert sum(reply[0] for reply in replies) == limit == total(server.client(), "sizes")
    report(f"{len(replies)} requests of 1 to 20 units: {limit} of {limit} units granted")


def test_several_limits_at_once_are_taken_together_or_not_at_all(server, report):
    """MALLOW from 100 connections: a shared limit and one of each user are never passed, and nothing is counted in one
    without the other."""
    chance = random.Random(6)
    users, tenant, each = 40, 500, 20  # all users together could take 800
    commands = []
    for user in [user for user in range(users) for _ in range(40)]:
        limits = ("{t}", tenant, "1h", "1s", 1), (f"{{t}}:{user}", each, "1d", "1m", 1)
        commands.append(encode(*mallow(*limits, options=("AT", NOW))))
    chance.shuffle(commands)
    replies = hammer(server.port, commands, 8)
    granted = sum(reply[0] for reply in replies)
    of_users = [total(server.client(), key) for key in server.client().scan_iter("{t}:*")]
    assert granted == tenant == total(server.client(), "{t}") == sum(of_users)
    assert max(of_users) <= each
    report(f"{len(commands)} requests for two limits each: {granted} of {tenant} granted")


def sliding(server, key, limit, window, resolution, strict, seconds):
    """Hammer a key while its window slides; each grant as the span of time it happened in, on the client's clock."""
    command = encode("SWLIMIT.ALLOW", key, limit, f"{window}ms", f"{resolution}ms", *options(None, strict))
    grants = []

    async def work(connection, end):
        while (sent := time.monotonic()) < end:
            for reply in await connection.ask([command] * 4):
                if reply[0]:
                    grants.append((sent, time.monotonic()))

    async def run():
        opened = await asyncio.gather(*(Asker.open(server.port) for _ in range(CONNECTIONS)))
        end = time.monotonic() + seconds
        await asyncio.gather(*(work(connection, end) for connection in opened))
        for connection in opened:
            connection.writer.close()

    asyncio.run(run())
    return grants


def most_within(grants, span):
    """The most grants that certainly happened within one span of this many seconds."""
    most = 0
    for start, _ in grants:
        most = max(most, sum(start <= sent and done < start + span for sent, done in grants))
    return most


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
def test_no_span_of_time_sees_more_than_the_limit(server, report, strict):
    """While the window slides under load: with STRICT no span as long as the window is granted more than the limit;
    without, no span shorter by one resolution is, and no window more than twice the limit. The limit is used, too."""
    limit, window, resolution, seconds = 150, 500, 100, 2.5
    grants = sliding(server, "sliding", limit, window, resolution, strict, seconds)
    span = (window if strict else window - resolution) / 1000
    worst = most_within(grants, span)
    assert worst <= limit
    assert most_within(grants, window / 1000) <= 2 * limit
    assert len(grants) >= limit * (int(seconds * 1000 / (window + resolution)) - 1), "the limit was not used"
    report(f"{len(grants)} grants in {seconds} s, at most {worst} of {limit} in any {span * 1000:.0f} ms")


@pytest.mark.parametrize("batch", [1, 32], ids=["single", "pipelined"])
def test_a_denial_under_load_blocks_once(server, report, batch):
    """100 connections that ask with BLOCK: exactly the limit is granted before, nothing during the block, although the
    window has room again, and exactly the limit after it."""
    limit, tried = 200, 0
    for now, granted in ((NOW, limit), (NOW + 30_000, 0), (NOW + 59_999, 0), (NOW + 60_000, limit), (NOW + 90_000, 0)):
        command = encode("SWLIMIT.ALLOW", "blocked", limit, 10, 1, "BLOCK", "1m", "AT", now)
        replies = hammer(server.port, [command] * 1_000, batch)
        assert sum(reply[0] for reply in replies) == granted
        assert {reply[3] for reply in replies if not reply[0]} == {60_000 - (now - NOW) % 60_000}
        tried += len(replies)
    report(f"{tried} requests, {CONNECTIONS} connections: 0 too many")


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 64], ids=["single", "pipelined"])
def test_large_limits_are_exact(server, report, batch):
    """The same with limits in the tens of thousands, over and over."""
    tried = 0
    quotas = [(10, "1h", "1s", None), (10_000, "1d", "1m", None), (30_000, "1h", "1h", NOW)]
    for limit, window, resolution, at in quotas:
        for strict in (False, True):
            for again in range(3 if limit > 10 else 20):
                key = f"large:{limit}:{strict}:{again}"
                tried += one_key(server, key, limit, window, resolution, at, strict, batch, limit + 1000)
    report(f"{tried} requests, {CONNECTIONS} connections: 0 too many")
