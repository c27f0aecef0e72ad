"""Thousands of random commands, each answered by the server and by an independent model of the specification."""

import random
from copy import deepcopy

import pytest

from support import model
from support.bounds import MAX, T
from support.cli import batch, info_fields, numbers

HOUR = 3_600_000
# (window, resolution) in ms: long enough that no key expires by the real clock while the test runs.
GEOMETRIES = [(HOUR, HOUR), (HOUR, HOUR // 2), (HOUR, HOUR // 60), (HOUR, 1_000), (6 * HOUR, HOUR), (24 * HOUR, HOUR),
              (7 * HOUR, 7 * HOUR), (4000 * 907, 907), (5 * HOUR, HOUR // 12), (HOUR, 900)]
OVERFLOW = "ERR count would overflow"


class Workload:
    """A random sequence of commands for some keys, with the model's answers."""

    def __init__(self, seed, geometry_changes=True):
        self.random = random.Random(seed)
        self.geometry_changes = geometry_changes
        self.now = T
        self.keys = {f"key:{number}": model.Key() for number in range(8)}
        self.geometry = {key: self.random.choice(GEOMETRIES) for key in self.keys}

    def next(self):
        """A command's words, and the reply that is expected: integers, an error, or INFO's fields."""
        key = self.random.choice(list(self.keys))
        self._tick(self.geometry[key])
        return self.random.choice([self._decide] * 7 + [self._record] * 4 + [self._refund] * 2 + [self._info])(key)

    def _tick(self, geometry):
        """Let time pass: often within a subinterval, sometimes over many windows, sometimes backwards."""
        length, resolution = geometry
        step = self.random.choice([resolution // 7, resolution, resolution, length // 3, length])
        self.now += self.random.choice([0, 1, step, step, -step, self.random.randint(0, step)])
        if self.random.random() < 0.01:
            self.now = T + self.random.randint(-50, 50) * length
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

    def _options(self, *flags):
        cost = {"COST": self._cost(self.limit)} if self.random.random() < 0.7 else {}
        return cost, {flag: True for flag in flags if self.random.random() < 0.3}

    def _words(self, name, key, quota, cost, flags):
        options = [["AT", self.now], *([flag] for flag in flags), *([word, n] for word, n in cost.items())]
        self.random.shuffle(options)
        limit, length, resolution = quota
        return [f"SWLIMIT.{name}", key, limit, f"{length}ms", f"{resolution}ms", *sum(options, [])]

    def _run(self, name, key, *flags):
        quota = self._quota(key)
        self.limit = quota[0]
        cost, flags = self._options(*flags)
        options = {word.lower(): value for word, value in (cost | flags).items()}
        before = deepcopy(self.keys[key])
        try:
            expected = getattr(self.keys[key], name.lower())(*quota, self.now, **options)
        except model.CountOverflow:
            expected, self.keys[key] = OVERFLOW, before
        return self._words(name, key, quota, cost, flags), expected

    def _decide(self, key):
        return self._run(self.random.choice(["ALLOW", "ALLOW", "PEEK"]), key, "PARTIAL", "STRICT")

    def _record(self, key):
        return self._run("RECORD", key, "STRICT")

    def _refund(self, key):
        units = self._cost(20)
        after = deepcopy(self.keys[key])
        given = after.refund(units, self.now)
        if after.window and 0 < after.window.end - self.now < 10 * 60_000:
            return self._info(key)  # the key might expire by the real clock before the test is over
        self.keys[key] = after
        return ["SWLIMIT.REFUND", key, units, "AT", self.now], [given]

    def _info(self, key):
        window = self.keys[key].window
        if not window:
            return ["SWLIMIT.INFO", key], "ERR no such key"
        counts = {i * window.resolution: units for i, units in sorted(window.held().items())}
        return ["SWLIMIT.INFO", key], {
            "window": window.length, "resolution": window.resolution, "subintervals": window.subintervals,
            "newest": window.newest * window.resolution, "total": sum(counts.values()), "counts": counts,
        }


def parsed(words, reply):
    if reply.startswith("ERR"):
        return reply
    if words[0] == "SWLIMIT.INFO":
        fields = info_fields(reply.split("\n"))
        fields.pop("memory")
        return fields
    return numbers(reply)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("geometry_changes", [False, True])
def test_server_answers_as_the_model(server, seed, geometry_changes):
    workload = Workload(seed, geometry_changes)
    expected = [workload.next() for _ in range(1500)]
    replies = batch(server, [words for words, _ in expected])
    kinds = set()
    for number, ((words, answer), reply) in enumerate(zip(expected, replies)):
        assert parsed(words, reply) == answer, f"command {number}: {' '.join(map(str, words))}"
        kinds.add((words[0], "granted" if isinstance(answer, list) and answer[0] else "not"))
    assert kinds >= {(f"SWLIMIT.{name}", kind) for name in ("ALLOW", "PEEK", "RECORD", "REFUND")
                     for kind in ("granted", "not")}
