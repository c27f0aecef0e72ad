"""What a request costs envoyproxy/ratelimit, beside swlimitd and limitador, measured as in daemon.py.

Of windows that are fixed, none ends while it is counted how much several instances grant.
"""

from . import daemon

THEIRS = "`envoyproxy/ratelimit`"
CASES = {
    "swlimitd, the server decides": ("swlimitd", "granted"),
    "swlimitd, a denial that is known": ("swlimitd", "denied"),
    "`limitador` 0.14, granted": ("redis", "granted"),
    "`limitador` 0.14, denied": ("redis", "denied"),
    f"{THEIRS}, granted": ("ratelimit", "granted"),
    f"{THEIRS}, denied": ("ratelimit", "denied"),
    f"{THEIRS} with its local cache, denied": ("ratelimit_cached", "denied"),
}
DECISION, DENIAL, LIMITADOR, LIMITADOR_DENIED, GRANTED, DENIED, CACHED = CASES
EXACT = {"swlimitd": ("swlimitd", "exact"), "`limitador` 0.14": ("redis", "exact"), THEIRS: ("ratelimit", "exact"),
         f"{THEIRS} with its local cache": ("ratelimit_cached", "exact")}
RATIOS = {f"{THEIRS}, granted ÷ swlimitd, the server decides": (GRANTED, DECISION),
          f"{THEIRS}, denied ÷ swlimitd, a denial that is known": (DENIED, DENIAL),
          f"{THEIRS} with its local cache, denied ÷ swlimitd, a denial that is known": (CACHED, DENIAL),
          f"{THEIRS}, granted ÷ `limitador`, granted": (GRANTED, LIMITADOR)}


def measure(rounds, seconds):
    """All of it, as `daemon.measure` has it."""
    return daemon.measure(rounds, seconds, CASES, EXACT)


def table(seen, exact):
    """What came out, as Markdown tables."""
    ratios = {what: ("", daemon.ratios(seen, *pair)) for what, pair in RATIOS.items()}
    return daemon.tables(seen, exact, ratios)
