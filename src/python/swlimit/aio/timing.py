"""Time limits for tasks."""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

ROUNDS = 3
"""How often the loop goes round, once time is up, before that is believed: it may have been busy elsewhere."""

__all__ = ["ROUNDS", "time_limit"]
