"""The largest numbers there are, numbers near which things go wrong, and an instant to begin with."""

MAX = 2**53 - 1  # units, limits and instants
MAX_WINDOW = 3650 * 24 * 60 * 60 * 1000
MAX_SUBINTERVALS = 1_000_000

# Numbers at which integers, limits and shifts go wrong.
EDGES = sorted({edge + off for edge in (0, 1 << 7, 1 << 14, 1 << 20, MAX_SUBINTERVALS, 1 << 31, 1 << 32, MAX_WINDOW,
                                        1 << 44, 1 << 53, 1 << 62, 1 << 63) for off in (-1, 0, 1, 2)
                if edge + off >= 0} | {2**64 - 1, 2**64 - 2})

T = 1_700_000_000_000 // 3_600_000 * 3_600_000  # an instant at which an hour begins; far enough from today's clock
