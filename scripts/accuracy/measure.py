"""Compare what the module answered with what the exact log says."""

import operator
from collections import defaultdict
from dataclasses import dataclass, fields

from .exact_log import ExactLog


@dataclass
class Figures:
    """What a limiter did with some requests. Figures of several loads add up."""

    requests: int = 0
    # With the same history: the exact log holds what the limiter granted.
    wrongly_granted: int = 0
    wrongly_denied: int = 0
    # On its own: the exact log holds what it granted itself.
    granted_only_here: int = 0
    denied_only_here: int = 0
    granted_units: int = 0
    log_units: int = 0
    # Differences between the limiter's estimate and the log's count before each request, with the same history.
    difference: float = 0.0      # the sum of |difference| / limit
    difference_units: int = 0
    count_units: int = 0
    wait: float = 0.0            # until wrongly denied requests would be granted, summed, as multiples of W
    memory: int = 0              # bytes, summed over requests
    # The worst case of each.
    worst: float = 0.0           # units granted within any span of W, as a multiple of the limit
    worst_short: float = 0.0     # the same within any span of W − R
    longest_wait: int = 0        # ms until a wrongly denied request would be granted
    wait_in_resolutions: float = 0.0

    def __add__(self, other):
        def together(name):
            return (max if name in WORST_CASES else operator.add)(getattr(self, name), getattr(other, name))
        return Figures(**{field.name: together(field.name) for field in fields(self)})

    def share(self, name):
        """A number of requests as a share of all."""
        return getattr(self, name) / self.requests

    @property
    def wrong(self):
        """Share of decisions that differ from the log's with the same history."""
        return self.share("wrongly_granted") + self.share("wrongly_denied")

    @property
    def throughput(self):
        """Units granted, as a multiple of what the log granted on its own."""
        return self.granted_units / self.log_units

    @property
    def mean_difference(self):
        """Mean |estimate − count| as a share of the limit."""
        return self.difference / self.requests

    @property
    def rate_difference(self):
        """Mean |estimate − count| as a share of the mean count."""
        return self.difference_units / self.count_units

    @property
    def mean_wait(self):
        """Mean time until a wrongly denied request would be granted, as a share of W."""
        return self.wait / self.wrongly_denied if self.wrongly_denied else 0

    @property
    def mean_memory(self):
        """Bytes of a key as a request leaves it, on average."""
        return self.memory / self.requests


WORST_CASES = {"worst", "worst_short", "longest_wait", "wait_in_resolutions"}


def compare(limiter, requests, answers, log_decisions):
    """The figures of these answers. `log_decisions` are those of the exact log when it is the limiter."""
    figures = Figures()
    limit, resolution = limiter.limit, limiter.resolution
    logs = defaultdict(lambda: ExactLog(limiter.window))
    # A span of W − R between the first and the last of its grants, both included, has W − R + 1 instants.
    short_logs = defaultdict(lambda: ExactLog(limiter.window - resolution + 1))
    for (at, client, cost), answer, by_log in zip(requests, answers, log_decisions, strict=True):
        log = logs[client]
        count = log.count(at)
        granted = answer.granted > 0
        due = count + cost <= limit
        figures.requests += 1
        figures.wrongly_granted += granted and not due
        figures.granted_only_here += granted and not by_log.granted
        figures.denied_only_here += by_log.granted and not granted
        if due and not granted:
            figures.wrongly_denied += 1
            figures.wait += answer.retry_after / limiter.window
            figures.longest_wait = max(figures.longest_wait, answer.retry_after)
        difference = abs(limit - answer.remaining - answer.granted - count)
        figures.difference_units += difference
        figures.count_units += count
        figures.memory += answer.memory
        if granted:
            figures.granted_units += answer.granted
            figures.worst = max(figures.worst, log.add(at, answer.granted))
            figures.worst_short = max(figures.worst_short, short_logs[client].add(at, answer.granted))
        if by_log.granted:
            figures.log_units += cost
    figures.difference = figures.difference_units / limit
    figures.worst /= limit
    figures.worst_short /= limit
    figures.wait_in_resolutions = figures.longest_wait / resolution
    return figures
