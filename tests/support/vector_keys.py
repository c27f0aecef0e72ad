"""Keys of tests/conformance/vectors/decisions.json on a server."""

from conversion.layout import Entry, effects, encode

from .commands import spelled_rise


def of_vector(case, by_script=False):
    """Commands that come to a case of tests/conformance/vectors/decisions.json: the last one's reply is its decision.
    What they store is kept, whatever the clock says."""
    yield ["DEL", "k"]
    stored = case["stored"] or {"window": 0, "resolution": 0, "counts": []}
    held = Entry(stored["window"], stored["resolution"], [tuple(count) for count in stored["counts"]],
                 case["blocked_until"], case.get("since", 0))
    if by_script and (held.counts or held.blocked_until):
        yield ["SET", "k", encode(held)]
    elif not by_script:
        yield from (["SWLIMIT.APPLY", "k", f"{effect}~0"] for effect in effects(held))
    asked = case["request"]
    options = [word for word in ("partial", "strict") if asked[word]]
    options += spelled_rise(asked.get("warm_up"), asked.get("cold"))
    quota = asked["limit"], f"{asked['window']}ms", f"{asked['resolution']}ms"
    yield ["SWLIMIT.PEEK", "k", *quota, "COST", asked["cost"], *options, "AT", case["now"]]
