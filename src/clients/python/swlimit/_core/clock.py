"""The clocks of holds, of the calendar, and of decisions in this process; everything else uses `time.monotonic`.

Holds end by a clock that nobody sets, and that runs while the machine is suspended.
"""

import time
from collections.abc import Awaitable, Callable

if hasattr(time, "CLOCK_BOOTTIME"):  # Linux, whose monotonic clock stops during suspension
    def running() -> float:
        """Seconds since some instant in the past."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
elif hasattr(time, "CLOCK_MONOTONIC"):  # macOS, whose `time.monotonic` is another clock, which stops
    def running() -> float:
        """Seconds since some instant in the past."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)
else:
    running = time.monotonic

_EPOCH = time.time() - time.monotonic()


def shown() -> int:
    """Unix time in ms by the machine's clock, which may be set: the calendar uses it."""
    return int(time.time() * 1000)


class Clock:
    """The clock of a limiter: this machine's, or in tests one that the test moves."""

    def instant(self) -> int:
        """Unix time in ms, by a clock that nobody sets."""
        return int((_EPOCH + time.monotonic()) * 1000)

    def shown(self) -> int:
        """Unix time in ms, for the calendar."""
        return shown()

    def monotonic(self) -> float:
        """Seconds, for waits."""
        return time.monotonic()

    async def sleep(self, seconds: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait, by this function of the limiter's interface."""
        await sleep(seconds)


MACHINE = Clock()
