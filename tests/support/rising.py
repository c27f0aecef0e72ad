"""Limits that rise after idleness: what is granted under one, and what may be at most."""

import random
from fractions import Fraction
from math import floor

from .bounds import T


class Rising:
    """A limit that rises, asked for at instants after one another."""

    def __init__(self, seed, is_strict):
        draw = self.random = random.Random(seed)
        self.resolution = draw.choice([1_000, 10_000, 60_000])
        self.window = self.resolution * draw.choice([2, 3, 12, 60])
        self.limit = draw.choice([1, 2, 7, 60, 1_000])
        self.duration, self.cold = self.window * draw.choice([1, 3, 10]), draw.choice([2, 3, 10])
        self.strict, self.span = ["STRICT"] * is_strict, self.window - self.resolution * (not is_strict)
        self.key = f"{seed} {is_strict}"

    def requests(self, count):
        """At times more than fits, at others little, and now and then nothing for some windows."""
        now = T
        while count > 0:
            pause = self.random.choice([0, self.window, 3 * self.window])
            now, most = now + self.random.randint(0, pause), self.random.choice([1, self.limit // 3, self.limit])
            for _ in range(self.random.randint(1, 60)):
                now += self.random.randint(0, self.window // 20)
                yield ["SWLIMIT.ALLOW", self.key, self.limit, f"{self.window}ms", f"{self.resolution}ms",
                       "COST", self.random.randint(1, max(1, most)), *self.strict, "WARMUP", f"{self.duration}ms",
                       "COLD", self.cold, *self.random.choice([[], ["PARTIAL"]]), "AT", now]
                count -= 1

    def check(self, ask, count):
        """No span has more granted than the limit in force at its end, unless that is one request's, before which
        nothing counted. How many spans have as much."""
        requests = list(self.requests(count))
        replies = zip(requests, ask(requests), strict=True)
        return self.count_full([(words[-1], reply[0]) for words, reply in replies if reply[0]])

    def count_full(self, grants):
        since, full = None, 0
        for place, (end, units) in enumerate(grants):
            counted_until = self.counted_until(grants[place - 1][0]) if place else 0
            if end >= counted_until + self.window:
                since = end
            part = (1 + (self.cold - 1) * min(1, Fraction(end - since, self.duration))) / self.cold
            in_force, sum_of_span = max(1, floor(self.limit * part)), 0
            for start, granted in reversed(grants[:place + 1]):
                if start < end - self.span:
                    break
                sum_of_span += granted
            assert sum_of_span <= self.limit
            is_first = sum_of_span == units and end >= counted_until
            assert sum_of_span <= in_force or is_first, (end, sum_of_span, in_force)
            full += sum_of_span == in_force
        return full

    def counted_until(self, instant):
        return (instant // self.resolution + self.window // self.resolution + 1) * self.resolution
