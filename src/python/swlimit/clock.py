"""The clock by which holds end: nobody sets it, and it runs while the machine is suspended."""

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
