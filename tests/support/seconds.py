"""One key, `k`, told in seconds after T."""

from .bounds import T
from .cli import batch, stored

QUOTA = "k", 10, 60, 5  # N = 12 subintervals of 5 s


def counts(server):
    """Units by the second after T at which their subinterval begins."""
    found = stored(server, "k")
    return found and {(start - T) / 1_000: units for start, units in found["counts"].items()}


def record_units(server, units_by_second):
    batch(server, [["SWLIMIT.RECORD", *QUOTA, "COST", units, "AT", T + second * 1_000]
                   for second, units in units_by_second.items()])
