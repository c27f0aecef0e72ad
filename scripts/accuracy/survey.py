"""Play every load at every resolution, and keep the figures."""

from functools import reduce
from operator import add

from . import bounds, exact_log, measure
from .loads import MINUTE
from .play import Limiter

SUBINTERVALS = (1, 6, 12, 60, 600)
TIMESTAMP_BYTES = 8


class GuaranteeBroken(Exception):
    """The module granted what it must not, or held back what it must not."""


class Survey:
    """Figures of the loads played so far. Spans are in ms, memory in bytes."""

    def __init__(self, player, server, missing=()):
        self.player = player
        self.server = server          # its name and version
        self.missing = list(missing)  # names of logs that are not there
        self.loads = []
        self.requests = {}            # of each load; an adversary's at the coarsest resolution
        self.by_log = {}              # the exact log's decisions on these
        self.log_bytes = {}           # of each load, per key: as a sorted set, and its timestamps alone
        self.figures = {}             # by load, subintervals, strict
        self.bounds = []              # (limiter, what the adversary reached within each span of it)

    @staticmethod
    def ways(load):
        """How a load is limited: (subintervals, strict). Only resolutions of whole ms."""
        return [(subintervals, strict) for strict in (False, True) for subintervals in SUBINTERVALS
                if load.window % subintervals == 0]

    def play(self, load, advance=lambda: None):
        """Play one load in every way; `advance` is called after each."""
        self.loads.append(load)
        for subintervals, strict in self.ways(load):
            limiter = Limiter(load.limit, load.window, load.window // subintervals, strict)
            requests = load.make(limiter.resolution)
            by_log = exact_log.decide(requests, load.limit, load.window)
            if load.name not in self.requests:
                self.requests[load.name], self.by_log[load.name] = requests, by_log
                self.log_bytes[load.name] = self._log_bytes(load, requests, by_log)
            figures = measure.compare(limiter, requests, self.player.allow(limiter, requests), by_log)
            for complaint in bounds.broken(limiter, figures):
                raise GuaranteeBroken(f"{load.name}, {limiter}: {complaint}")
            self.figures[load.name, subintervals, strict] = figures
            advance()

    def attack(self, limit=1000, window=MINUTE):
        """Let the adversary try what it can get within spans of all lengths."""
        for strict in (False, True):
            for subintervals in SUBINTERVALS:
                limiter = Limiter(limit, window, window // subintervals, strict)
                reached = bounds.attack(self.player, limiter, bounds.spans_to_attack(limiter))
                for one in reached:
                    if one.units > one.bound:
                        raise GuaranteeBroken(f"{limiter}: {one}")
                self.bounds.append((limiter, reached))

    @property
    def traffic(self):
        """The loads that are no adversaries."""
        return [load for load in self.loads if not load.adversary]

    @property
    def subintervals(self):
        """The resolutions at which all the traffic could be played."""
        return [subintervals for subintervals in SUBINTERVALS
                if all(load.window % subintervals == 0 for load in self.traffic)]

    def together(self, subintervals, strict):
        """Figures over all traffic."""
        return reduce(add, (self.figures[load.name, subintervals, strict] for load in self.traffic))

    def worst_attack(self, subintervals, strict):
        """What the adversaries got in a span of W, as a multiple of the limit; None without any."""
        found = [self.figures[load.name, subintervals, strict].worst for load in self.loads if load.adversary]
        return max(found, default=None)

    def clients(self, load):
        return len({request.client for request in self.requests[load.name]})

    def denied(self, *loads):
        """Share of requests that the exact log denies."""
        decisions = [one for load in loads or self.traffic for one in self.by_log[load.name]]
        return sum(not one.granted for one in decisions) / len(decisions)

    def log_memory(self):
        """Bytes per key of the exact log as a sorted set, over all traffic."""
        sizes = [(self.log_bytes[load.name][0], len(self.requests[load.name])) for load in self.traffic]
        return sum(size * requests for size, requests in sizes) / sum(requests for _, requests in sizes)

    def _log_bytes(self, load, requests, by_log):
        sorted_set = self.player.sorted_set(requests, [one.granted for one in by_log], load.window)
        # A sorted set's size depends on the dice its skip list rolls. Two digits are the same in every run.
        size = float(f"{sum(sorted_set) / len(requests):.1e}")
        kept = sum(one.kept for one in by_log)
        return size, TIMESTAMP_BYTES * kept / len(requests)
