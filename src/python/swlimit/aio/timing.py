"""Time limits for tasks."""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["time_limit"]
