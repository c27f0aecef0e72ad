"""The clocks of holds and of the calendar; all else goes by `time.monotonic`.

Holds end by a clock that nobody sets, and that runs while the machine is suspended.
"""

import time

if hasattr(time, "CLOCK_BOOTTIME"):  # of Linux, whose monotonic clock stands still meanwhile
    def running() -> float:
        """Seconds since some instant in the past."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
elif hasattr(time, "CLOCK_MONOTONIC"):  # of macOS, where `time.monotonic` is another one, which stands still
    def running() -> float:
        """Seconds since some instant in the past."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)
else:
    running = time.monotonic


def shown() -> int:
    """Unix time in ms as the machine's clock shows it, whoever sets it: the calendar goes by that."""
    return int(time.time() * 1000)
