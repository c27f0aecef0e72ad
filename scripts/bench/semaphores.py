"""Semaphores to compare holds with: how each takes and gives back a place, by the commands that it sends."""

from dataclasses import dataclass
from hashlib import sha1
from itertools import count

from support.resp import Connection
from support.script import SCRIPT, scripted, sha

LIMIT = 1_000_000
TTL = 3600  # seconds
TTL_MS = TTL * 1000
NEVER = 922_337_203_685_477  # Redisson's end of a permit that has none

# What Redisson's RPermitExpirableSemaphore does: the free permits in a counter, those that are taken in a sorted set by
# their end, and a message to a channel for everybody who waits.
REDISSON_TAKE = """
local ended = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #ended > 0 then
  redis.call('zrem', KEYS[2], unpack(ended))
  local free = redis.call('incrby', KEYS[1], #ended)
  if tonumber(free) > 0 then redis.call('publish', KEYS[3], free) end
end
local free = redis.call('get', KEYS[1])
if free ~= false and tonumber(free) >= tonumber(ARGV[1]) then
  redis.call('decrby', KEYS[1], ARGV[1])
  for at = 5, #ARGV do redis.call('zadd', KEYS[2], ARGV[2], ARGV[at]) end
  local ttl = redis.call('pttl', KEYS[1])
  if ttl > 0 then redis.call('pexpire', KEYS[2], ttl) end
  return 'OK'
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'WITHSCORES')
if first[1] ~= nil and first[2] ~= ARGV[4] then return ':' .. first[2] end
return nil
"""
REDISSON_GIVE = """
local ends = redis.call('zscore', KEYS[3], ARGV[1])
if tonumber(redis.call('zrem', KEYS[3], ARGV[1])) ~= 1 then return 0 end
local free = redis.call('incrby', KEYS[1], ARGV[2])
redis.call('publish', KEYS[2], free)
if tonumber(ends) <= tonumber(ARGV[3]) then return 0 end
return 1
"""

# The least that a sorted set can be: members by their end, by the server's clock.
SORTED_SET_TAKE = """
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('zadd', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('pexpire', KEYS[1], ARGV[2])
return 1
"""


def evalsha(script, keys, *words):
    return ("EVALSHA", sha1(script.encode()).hexdigest(), len(keys), *keys, *words)


@dataclass
class Semaphore:
    """One way; `scripts` are loaded before its commands are sent."""

    key: str
    label: str
    scripts: tuple = ()

    def prepare(self, server, names, limit=LIMIT):
        """Load what it needs, and make its keys."""
        with Connection(server.port) as connection:
            for script in self.scripts:
                connection.call("SCRIPT", "LOAD", script)
            connection.calls(self.made(names, limit))

    def made(self, _names, _limit):
        """Commands that make its keys."""
        return []

    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        """The command that takes a place for a holder, for so many ms."""
        raise NotImplementedError

    def give(self, name, id):
        """The command that gives it back."""
        raise NotImplementedError

    def is_taken(self, reply):
        """Whether the reply to the first of them grants."""
        return reply == 1


class Holds(Semaphore):
    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        return ("SWLIMIT.HOLD", name, limit, f"{ttl}ms", id)

    def give(self, name, id):
        return ("SWLIMIT.RELEASE", name, id)

    def is_taken(self, reply):
        return reply[0] == 1


class ScriptHolds(Holds):
    """The same by the script."""

    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        return scripted(super().take(name, id, limit, ttl), sha())

    def give(self, name, id):
        return scripted(super().give(name, id), sha())


class Redisson(Semaphore):
    """The caller's clock says what has ended; `now` is set before a command is made of it."""

    now = 0

    def made(self, names, limit):
        return [("SET", name, limit) for name in names]

    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        keys = name, f"{name}:timeout", f"{name}:channel"
        return evalsha(REDISSON_TAKE, keys, 1, self.now + ttl, self.now, NEVER, id)

    def give(self, name, id):
        return evalsha(REDISSON_GIVE, (name, f"{name}:channel", f"{name}:timeout"), id, 1, self.now)

    def is_taken(self, reply):
        return reply == b"OK"


class SortedSet(Semaphore):
    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        return evalsha(SORTED_SET_TAKE, (name,), limit, ttl, id)

    def give(self, name, id):
        return ("ZREM", name, id)


class Counter(Semaphore):
    """It knows no holders, and no ends. Who reads more than the limit gives back at once."""

    limit = LIMIT

    def take(self, name, id, limit=LIMIT, ttl=TTL_MS):
        self.limit = limit
        return ("INCR", name)

    def give(self, name, id):
        return ("DECR", name)

    def is_taken(self, reply):
        return reply <= self.limit


def everything():
    """All that is compared, swlimit first."""
    return [
        Holds("holds", "`HOLD` and `RELEASE`"),
        ScriptHolds("script", "the same by the script", (SCRIPT.read_text(),)),
        Redisson("redisson", "Redisson's `RPermitExpirableSemaphore`", (REDISSON_TAKE, REDISSON_GIVE)),
        SortedSet("sorted-set", "a script on a sorted set, `ZREM`", (SORTED_SET_TAKE,)),
        Counter("counter", "`INCR` and `DECR`"),
    ]


_serials = count()


def ids():
    """Fresh ids of 16 bytes, one after the other."""
    return (f"{serial:016x}" for serial in _serials)
