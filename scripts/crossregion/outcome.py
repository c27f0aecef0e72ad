"""What came of the requests: figures for each phase, and whether each promise was kept."""

from dataclasses import dataclass, field
from statistics import quantiles

LIMIT, WINDOW, RESOLUTION = 600, 20.0, 2.0  # units, s, s
LEASE = RESOLUTION  # s; the longest that leases can last
SHARE = 0.33  # of the limit, that a region grants by itself with `on_failure: local`
CLOCK = 0.002  # s; the server decides in whole ms


@dataclass(frozen=True)
class Request:
    """One request and its reply, in seconds since the beginning."""

    region: int
    sent: float
    replied: float
    is_granted: bool

    @property
    def took(self):
        return self.replied - self.sent


@dataclass(frozen=True)
class Phase:
    name: str
    begin: float
    end: float


@dataclass
class Outcome:
    """The requests of one way to share the limit, and the decisions that each region's failure policy made."""

    way: object
    requests: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def granted(self, region=None):
        """When each granted request had its reply, in order; of one region if it is named."""
        return sorted(one.replied for one in self.requests if one.is_granted and region in (None, one.region))


def most(instants, span, begin=float("-inf"), end=float("inf")):
    """The most of these instants, which are in order, in any such span that ends between `begin` and `end`."""
    found = first = 0
    for last, instant in enumerate(instants):
        while instants[first] <= instant - span:
            first += 1
        if begin <= instant < end:
            found = max(found, last - first + 1)
    return found


def table(outcomes, phases):
    """A row for each way and phase, as Markdown."""
    yield f"| way | cut | p50, ms | p99, ms | used | most in {WINDOW:g} s |"
    yield "|---|---|---:|---:|---:|---:|"
    for outcome in outcomes:
        granted = outcome.granted()
        for phase in phases:
            took = [one.took * 1000 for one in outcome.requests if phase.begin <= one.sent < phase.end]
            cuts = quantiles(took, n=100, method="inclusive")
            part = sum(phase.begin <= at < phase.end for at in granted) / (phase.end - phase.begin) * WINDOW / LIMIT
            yield (f"| {outcome.way.name} | {phase.name} | {cuts[49]:.1f} | {cuts[98]:.1f} | {part:.0%} | "
                   f"{most(granted, WINDOW, phase.begin, phase.end)} |")


def shares(outcomes, phase, rates):
    """What part of its requests each region was granted in a phase, as Markdown."""
    yield "| way | " + " | ".join(f"{rate:g} a second" for rate in rates) + " |"
    yield "|---|" + "---:|" * len(rates)
    for outcome in outcomes:
        asked = [one for one in outcome.requests if phase.begin <= one.sent < phase.end]
        parts = []
        for region in range(len(rates)):
            own = [one.is_granted for one in asked if one.region == region]
            parts.append(f"{sum(own) / max(len(own), 1):.0%}")
        yield f"| {outcome.way.name} | {' | '.join(parts)} |"


def broken(outcome, is_strict):
    """The promises that were not kept, each in words."""
    way, slack = outcome.way, 0.0 if is_strict else RESOLUTION
    # A unit is counted between the request and its reply; one of a lease up to the lease's length before.
    longest = max((one.took for one in outcome.requests if one.is_granted), default=0.0)
    span = WINDOW - slack - longest - CLOCK - (LEASE if way.mode == "leased" else 0.0)
    if way.is_split:
        bounds = {region: LIMIT // len(outcome.failures) for region in range(len(outcome.failures))}
    else:
        alone = sum(1 for failures in outcome.failures if failures) if way.on_failure == "local" else 0
        bounds = {None: LIMIT + alone * round(LIMIT * SHARE)}
    for region, bound in bounds.items():
        found = most(outcome.granted(region), span)
        if found > bound:
            where = "" if region is None else f" in region {region + 1}"
            yield f"{way.name}: {found} granted{where} in {span:.1f} s, where {bound} are promised"
