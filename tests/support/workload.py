"""Random commands with the model's answers."""

import random
import time
from copy import deepcopy

from . import model
from .bounds import MAX, MAX_WINDOW, T

HOUR = 3_600_000
# (window, resolution) in ms: long enough that no key expires by the real clock while the test runs.
GEOMETRIES = [(HOUR, HOUR), (HOUR, HOUR // 2), (HOUR, HOUR // 60), (HOUR, 1_000), (6 * HOUR, HOUR), (24 * HOUR, HOUR),
              (7 * HOUR, 7 * HOUR), (4000 * 907, 907), (5 * HOUR, HOUR // 12), (HOUR, 900)]
FUTURE = 4_000_000_000_000 // HOUR * HOUR  # in 2096: what is blocked then is blocked by the server's clock, too
OVERFLOW = "ERR count would overflow"


class Workload:
    """A random sequence of commands for some keys, with the model's answers."""

    keys_used = 8

    def __init__(self, seed, geometry_changes=True, start=T):
        self.random = random.Random(seed)
        self.geometry_changes = geometry_changes
        self.start = self.now = start
        self.keys = {f"key:{number}": model.Key() for number in range(self.keys_used)}
        self.geometry = {key: self.random.choice(GEOMETRIES) for key in self.keys}

    def next(self):
        """A command's words, and the reply that is expected: integers, an error, or INFO's fields."""
        key = self.random.choice(list(self.keys))
        self._tick(self.geometry[key])
        kinds = [self._decide] * 14 + [self._record] * 8 + [self._refund] * 4 + [self._info] * 2 + [
            self._block, self._unblock]
        before = deepcopy(self.keys[key])
        try:
            words, expected = self.random.choice(kinds)(key)
        except model.CountOverflow:
            words, expected, self.keys[key] = self.words, OVERFLOW, before
        after = self.keys[key]
        if after.end != before.end and 0 < after.end - self.now < 10 * 60_000:
            self.keys[key] = before  # it might expire by the real clock before the test is over
            return self._info(key)
        return words, expected

    def _tick(self, geometry):
        """Let time pass: often within a subinterval, sometimes over many windows, sometimes backwards."""
        length, resolution = geometry
        step = self.random.choice([resolution // 7, resolution, resolution, length // 3, length])
        self.now += self.random.choice([0, 1, step, step, -step, self.random.randint(0, step)])
        if self.random.random() < 0.01:
            self.now = self.start + self.random.randint(-50, 50) * length
        if self.random.random() < 0.3:  # boundaries are where mistakes are
            self.now = self.now // resolution * resolution + self.random.choice([0, 1, resolution - 1])

    def _quota(self, key):
        if self.geometry_changes and self.random.random() < 0.05:
            self.geometry[key] = self.random.choice(GEOMETRIES)
        small = self.random.randint(0, 60)
        return [self.random.choice([small, small, small, 1_000, MAX, MAX - small]), *self.geometry[key]]

    def _cost(self, limit):
        sizes = [1, 1, 1, 3, self.random.randint(1, 30), limit, limit + 1, MAX - self.random.randint(0, 90)]
        return max(1, min(self.random.choice(sizes), MAX))

    def _age(self, key):
        length, resolution = self.geometry[key]
        return self.random.choice([0, 1, resolution, self.random.randint(0, length), length + resolution, 2 * length])

    def _duration(self):
        return self.random.choice([20 * 60_000, self.random.randint(20 * 60_000, 3 * HOUR)])

    def _flags(self, *names, chance=0.3):
        return {name: True for name in names if self.random.random() < chance}

    def _run(self, name, key, fixed, options):
        """The model's answer to a command with these fixed words and these options, which come in any order."""
        spelled = [[word] if value is True else [word, value if word in ("COST", "SINCE", "COLD") else f"{value}ms"]
                   for word, value in options.items()] + [["AT", self.now]]
        self.random.shuffle(spelled)
        quota = [fixed[0], *(f"{value}ms" for value in fixed[1:])] if len(fixed) > 1 else fixed
        self.words = [f"SWLIMIT.{name}", key, *quota, *sum(spelled, [])]
        model_options = {word.lower(): value for word, value in options.items()}
        reply = getattr(self.keys[key], name.lower())(*fixed, now=self.now, **model_options)
        return self.words, reply if isinstance(reply, list) else [reply]

    def _asked(self, key, *flags):
        quota = self._quota(key)
        cost = {"COST": self._cost(quota[0])} if self.random.random() < 0.7 else {}
        return quota, cost | self._flags(*flags)

    def _decide(self, key):
        name = self.random.choice(["ALLOW", "ALLOW", "PEEK"])
        quota, options = self._asked(key, "PARTIAL", "STRICT")
        if name == "ALLOW" and self.random.random() < 0.05:
            options["BLOCK"] = self._duration()
        return self._run(name, key, quota, options)

    def _record(self, key):
        quota, options = self._asked(key, "STRICT")
        if self.random.random() < 0.4:
            options["AGE"] = self._age(key)
        if self.random.random() < 0.05:
            options["BLOCK"] = self._duration()
        return self._run("RECORD", key, quota, options)

    def _refund(self, key):
        since = max(0, self.random.choice([self.now - self._age(key), self.now + 1, 0, self.start]))
        options = self.random.choice([{}, {}, {"AGE": self._age(key)}, {"SINCE": since}])
        return self._run("REFUND", key, [self._cost(20)], options)

    def _block(self, key):
        duration, nx = self._duration(), self._flags("NX")
        words = ["SWLIMIT.BLOCK", key, f"{duration}ms", *nx, "AT", self.now]
        return words, [self.keys[key].block(duration, self.now, nx=bool(nx))]

    def _unblock(self, key):
        return ["SWLIMIT.UNBLOCK", key, "AT", self.now], [self.keys[key].unblock(self.now)]

    def _info(self, key):
        window, blocked = self.keys[key].window, self.keys[key].blocked_until
        if not window and not blocked:
            return ["SWLIMIT.INFO", key], "ERR no such key"
        window = window or model.Window(0, 0)
        counts = {i * window.resolution: units for i, units in sorted(window.held().items())}
        return ["SWLIMIT.INFO", key], {
            "window": window.length, "resolution": window.resolution,
            "subintervals": window.subintervals if counts else 0,
            "newest": max(counts, default=0), "total": sum(counts.values()), "counts": counts,
            "blocked": blocked if blocked > time.time() * 1000 else 0,  # by the server's clock
            "since": self.keys[key].since or 0,
        }


def compare(ask, workload, count):
    """Ask for what a workload has next, except INFO. How many replies are as the model says: all."""
    pairs = [pair for pair in (workload.next() for _ in range(count)) if pair[0][0] != "SWLIMIT.INFO"]
    for (words, expected), reply in zip(pairs, ask([words for words, _ in pairs]), strict=True):
        assert (reply if isinstance(reply, (str, list)) else [reply]) == expected, words
    return len(pairs)


class RisingWorkload(Workload):
    """The same of limits that rise: keys that are mostly in use, for as long as it takes."""

    keys_used = 3

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.rises = {key: self._rise(length) for key, (length, _) in self.geometry.items()}

    def _rise(self, length):
        duration = self.random.choice([1, length // 3, 2 * length, 10 * length, 10 * length, MAX_WINDOW])
        return {"WARMUP": duration} | self.random.choice([{}, {}, {"COLD": self.random.choice([2, 5, 1_000])}])

    def _tick(self, geometry):
        length, resolution = geometry
        if self.random.random() < 0.05:
            super()._tick(geometry)
        else:
            some = self.random.randint(0, length // 2)
            self.now += self.random.choice([0, 1, resolution, length // 7, some, some, -resolution])

    def _asked(self, key, *flags):
        quota, options = super()._asked(key, *flags)
        if self.random.random() < 0.05:
            self.rises[key] = self._rise(quota[1])
        return quota, options | (self.rises[key] if self.random.random() < 0.8 else {})
