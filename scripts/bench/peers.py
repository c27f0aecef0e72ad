"""What a user could take instead: sliding windows in Lua, and another module.

Nothing is copied from the libraries that are installed for this. Each is asked for decisions, and what it sends
(EVALSHA with its keys and arguments) is written down, so that it can be sent again faster than any library could.
"""

import json
import subprocess
import tomllib
from importlib import metadata

import redis

from support import node
from support.server import ROOT

from .load import CELL_MODULE

UPSTASH_SCRIPT = ROOT / "scripts/bench/upstash.mjs"
CELL_LOCK = ROOT / "scripts/bench/Cargo.lock"


class RecordingConnection(redis.Connection):
    """A connection of redis-py that remembers the scripts it has been asked to run."""

    sent = []

    def send_command(self, *words, **options):
        if words[0] == "EVALSHA":
            self.sent.append(words)
        super().send_command(*words, **options)


def recorded(decide, names):
    """The words that a library sends when it decides on each of these names."""
    decide(names[0])  # loads the script
    RecordingConnection.sent.clear()
    for name in names:
        decide(name)
    return list(RecordingConnection.sent)


class Limits:
    """PyPI `limits`, strategy "sliding-window-counter"."""

    name, kind = "limits", "Lua"

    @staticmethod
    def version():
        return metadata.version("limits")

    @staticmethod
    def commands(server, names, limit, window, cost):
        from limits import RateLimitItemPerSecond
        from limits.storage import RedisStorage
        from limits.strategies import SlidingWindowCounterRateLimiter
        pool = redis.ConnectionPool(connection_class=RecordingConnection, port=server.port)
        limiter = SlidingWindowCounterRateLimiter(
            RedisStorage(f"redis://127.0.0.1:{server.port}", connection_pool=pool))
        item = RateLimitItemPerSecond(limit, window)
        return recorded(lambda name: limiter.hit(item, name, cost=cost), names)

    @staticmethod
    def granted(reply):
        return reply == 1


class Throttled:
    """PyPI `throttled-py`, "sliding_window"."""

    name, kind = "throttled-py", "Lua"

    @staticmethod
    def version():
        return metadata.version("throttled-py")

    @staticmethod
    def commands(server, names, limit, window, cost):
        from datetime import timedelta

        from throttled import RateLimiterType, rate_limiter, store
        from throttled import Throttled as Throttle
        backend = store.RedisStore(
            server=f"redis://127.0.0.1:{server.port}",
            options={"CONNECTION_POOL_KWARGS": {"connection_class": RecordingConnection}})
        throttle = Throttle(using=RateLimiterType.SLIDING_WINDOW.value, store=backend,
                            quota=rate_limiter.per_duration(timedelta(seconds=window), limit))
        return recorded(lambda name: throttle.limit(name, cost), names)

    @staticmethod
    def granted(reply):
        return not reply[0]


class Upstash:
    """npm `@upstash/ratelimit`, `Ratelimit.slidingWindow`.

    Its scripts begin with a flag that only Upstash's own servers know; without it, Redis runs them.
    """

    name, kind = "@upstash/ratelimit", "Lua"

    @staticmethod
    def version():
        return node.version("@upstash/ratelimit")

    @staticmethod
    def commands(server, names, limit, window, cost):
        done = subprocess.run(**node.command(UPSTASH_SCRIPT, limit, window, cost), input="\n".join(names), check=True,
                              capture_output=True, text=True)
        sent = [json.loads(line) for line in done.stdout.splitlines()]
        script = next(one["script"] for one in sent if "script" in one)
        with server.client() as client:
            sha = client.script_load(script.replace("#!lua flags=allow-key-locking", "#!lua"))
        return [("EVALSHA", sha, len(one["keys"]), *one["keys"], *one["args"]) for one in sent if "keys" in one]

    @staticmethod
    def granted(reply):
        return reply[0] >= 0


class Cell:
    """The crate `redis-cell`: no window, but a bucket. It holds the limit, and one unit comes back per window."""

    name, kind = "redis-cell", "module"

    @staticmethod
    def version():
        if not CELL_MODULE.exists():
            raise ModuleNotFoundError("it could not be built")
        packages = tomllib.loads(CELL_LOCK.read_text())["package"]
        return next(package["version"] for package in packages if package["name"] == "redis-cell")

    @staticmethod
    def commands(_server, names, limit, window, cost):
        return [("CL.THROTTLE", name, limit - 1, 1, window, cost) for name in names]

    @staticmethod
    def granted(reply):
        return reply[0] == 0


ALL = (Limits, Throttled, Upstash, Cell)


def label(peer):
    """How a peer is called in tables."""
    return f"`{peer.name}` {peer.version()} ({peer.kind})"


def installed():
    """The peers that can be measured here."""
    left_out = {name for name, _ in missing()}
    return [peer for peer in ALL if peer.name not in left_out]


def missing():
    """The peers that cannot be measured here, and why: `[(name, why), …]`."""
    found = []
    for peer in ALL:
        try:
            peer.version()
        except ModuleNotFoundError as error:
            found.append((peer.name, str(error)))
    return found
