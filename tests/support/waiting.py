"""Wait for what a background thread or another process does."""

import time

import redis

ANYTHING = object()


def eventually(probe, expected=ANYTHING, seconds=20, log=lambda: ""):
    """Wait until `probe()` is `expected`, or anything true where nothing is; what it is then.

    Connections that fail count as not yet. `log()` tells more if it takes too long.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = probe()
            if found if expected is ANYTHING else found == expected:
                return found
        except (redis.exceptions.RedisError, OSError) as error:
            found = error
        assert time.monotonic() < deadline, f"{found!r} after {seconds} s\n{log()}"
        time.sleep(0.01)
