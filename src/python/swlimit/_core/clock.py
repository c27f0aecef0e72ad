"""The clocks of holds and of the calendar; everything else uses `time.monotonic`.

Holds end by a clock that nobody sets, and that runs while the machine is suspended.
"""

import time

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


def shown() -> int:
    """Unix time in ms by the machine's clock, which may be set: the calendar uses it."""
    return int(time.time() * 1000)
