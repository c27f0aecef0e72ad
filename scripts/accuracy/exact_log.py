"""The exact sliding log: every grant is kept with its instant. It is what the module is measured against."""

from collections import defaultdict, deque
from typing import NamedTuple


class ExactLog:
    """The grants of one client.

    At the instant `now` it counts what was granted in `(now − window, now]`: a unit granted at `t` counts from `t` on
    and, from `t + window` on, no longer. All times in ms; instants must not go back.
    """

    def __init__(self, window):
        self.window = window
        self._grants = deque()
        self._units = 0

    def __len__(self):
        """How many timestamps it keeps."""
        return len(self._grants)

    def count(self, now):
        """Units granted in `(now − window, now]`."""
        while self._grants and self._grants[0][0] <= now - self.window:
            self._units -= self._grants.popleft()[1]
        return self._units

    def allows(self, now, cost, limit):
        """Whether a request is within the limit."""
        return self.count(now) + cost <= limit

    def add(self, now, units):
        """Count a grant; returns what is counted now, itself included."""
        self._grants.append((now, units))
        self._units += units
        return self.count(now)


class Decision(NamedTuple):
    """What a log decides, and how many timestamps it keeps afterwards."""

    granted: bool
    kept: int


def decide(requests, limit, window):
    """What the log decides on each of these requests when it is the limiter."""
    logs = defaultdict(lambda: ExactLog(window))
    decisions = []
    for at, client, cost in requests:
        log = logs[client]
        granted = log.allows(at, cost, limit)
        if granted:
            log.add(at, cost)
        decisions.append(Decision(granted, len(log)))
    return decisions
