"""Adaptive limits, in exact fractions, which are rounded to the nearest double only where README.md says that clients
round."""

from fractions import Fraction
from math import floor


def rounded(value):
    """The nearest double."""
    return Fraction(float(value))


TRICKLE = Fraction(5, 100)  # the share of drops up to which they say nothing


class Adaptive:
    def __init__(self, low, high, algorithm, window, timeout):
        self.low, self.high, self.window, self.timeout = low, high, window, timeout
        self.close = {"aimd": self.aimd, "gradient2": self.gradient2}[algorithm]
        self.ends, self.samples = None, []
        self.windows, self.total, self.long, self.estimate = 0, Fraction(0), Fraction(0), Fraction(low)

    @property
    def limit(self):
        return floor(self.estimate)

    def step(self, sample):
        end, rtt, _, _ = sample
        if rtt < 100:
            return
        self.samples.append(sample)
        if self.ends is None:
            self.ends = end + self.window
        elif end > self.ends:
            if len(self.samples) >= 10:
                _, rtts, inflights, drops = zip(*self.samples)
                self.close(rounded(Fraction(sum(rtts), len(rtts))), max(inflights), Fraction(sum(drops), len(drops)))
            self.ends, self.samples = end + self.window, []

    def aimd(self, mean, inflight, dropped):
        if dropped > TRICKLE or mean > self.timeout:
            self.estimate = Fraction(max(self.low, min(self.limit - 1, 9 * self.limit // 10)))
        elif 2 * inflight >= self.estimate:
            self.estimate = min(Fraction(self.high), self.estimate + 1)

    def gradient2(self, mean, inflight, dropped):
        if dropped > TRICKLE:
            self.estimate = max(Fraction(self.low), rounded(rounded(Fraction(9, 10)) * self.estimate))
            return
        if self.windows < 10:
            self.windows, self.total = self.windows + 1, rounded(self.total + mean)
            self.long = rounded(self.total / self.windows)
        else:
            self.long = rounded(self.long + rounded(rounded(rounded(mean - self.long) * 2) / 601))
        part = min(Fraction(1), max(Fraction(1, 2), rounded(rounded(Fraction(3, 2) * self.long) / mean)))
        if rounded(self.long / mean) > 2:
            self.long = rounded(self.long * rounded(Fraction(95, 100)))
        if 2 * inflight < self.estimate:
            return
        wanted = rounded(rounded(Fraction(2, 10)) * rounded(rounded(self.estimate * part) + 4))
        estimate = rounded(rounded(rounded(Fraction(8, 10)) * self.estimate) + wanted)
        self.estimate = max(Fraction(self.low), min(Fraction(self.high), estimate))

    @property
    def state(self):
        return {"ends_us": self.ends, "samples": len(self.samples), "sum_us": sum(one[1] for one in self.samples),
                "inflight": max((one[2] for one in self.samples), default=0),
                "drops": sum(one[3] for one in self.samples), "windows": self.windows,
                "windows_us": float(self.total), "long_us": float(self.long), "estimate": float(self.estimate)}


def adaptive():
    """The parts of adaptive.json."""
    return {"samples": list(explicit()), "phases": list(generated())}


OPTIONS = {"min": 20, "max": 200, "algorithm": "gradient2", "window_us": 1_000_000, "timeout_us": 5_000_000}


def made(options):
    return Adaptive(*(options[name] for name in ("min", "max", "algorithm", "window_us", "timeout_us")))


def explicit():
    """Samples one by one, with the state after each."""
    def case(name, samples, **options):
        options = OPTIONS | options
        limit = made(options)
        steps = []
        for sample in samples:
            limit.step(sample)
            steps.append({"sample": sample, "state": limit.state})
        return {"name": name, "options": options, "steps": steps}

    def window(count, rtt=10_000, inflight=20, dropped=False, begins=5):
        """So many samples, of which the last closes the window."""
        return [[begins + 50_000 * n, rtt + n, inflight, False] for n in range(count - 1)] + [
            [begins + 1_000_001, rtt, inflight, dropped]]

    for algorithm in ("aimd", "gradient2"):
        yield case(f"{algorithm}: 9 samples", window(9), algorithm=algorithm)
        yield case(f"{algorithm}: 10 samples", window(10), algorithm=algorithm)
        yield case(f"{algorithm}: a drop", window(10, dropped=True), algorithm=algorithm, min=1)
        yield case(f"{algorithm}: a drop in 20", window(20, dropped=True), algorithm=algorithm, min=1)
        yield case(f"{algorithm}: a drop in 19", window(19, dropped=True), algorithm=algorithm, min=1)
        for inflight in (9, 10, 11):
            yield case(f"{algorithm}: {inflight} of 20", window(10, inflight=inflight), algorithm=algorithm)
        yield case(f"{algorithm}: at the time-out", window(10, rtt=4_999_996), algorithm=algorithm)
        yield case(f"{algorithm}: past the time-out", window(10, rtt=4_999_997), algorithm=algorithm, min=1, max=9)
    yield case("too short to count", [[5, 99, 20, False], [6, 99, 20, True], [7, 100, 20, False], *window(9, begins=8)])
    ends = [[5, 10_000, 20, False]] + [[n, 10_000, 20, False] for n in range(10, 18)] + [
        [1_000_005, 10_000, 20, False], [1_000_006, 10_000, 3, False], [1_000_007, 10_000, 20, False]]
    yield case("the window's last microsecond", ends)


def generated():
    """Phases of windows that a generator makes, with the state after some of them."""
    def case(name, phases, shows=25, **options):
        options = OPTIONS | options
        limit, windows, now, states = made(options), 0, 0, []
        for phase in phases:
            for n in range(phase["windows"]):
                for sample in of_window(phase, n, now, limit.limit, options["window_us"]):
                    limit.step(sample)
                now += options["window_us"] + 1
                windows += 1
                if windows % shows == 0:
                    states.append({"windows": windows, "state": limit.state})
        return {"name": name, "options": options, "phases": phases, "states": states}

    def phase(windows, **fields):
        return {"windows": windows, "samples": 10, "drops": 0, "rtt_us": 10_000, "ramp_us": 0, "capacity": 0,
                "share": [1, 1, 0]} | fields

    calm, full = phase(40), phase(120, capacity=60)
    for algorithm in ("aimd", "gradient2"):
        yield case(f"{algorithm}: step and recovery", [calm, phase(60, rtt_us=100_000), phase(300)],
                   algorithm=algorithm, timeout_us=50_000)
        yield case(f"{algorithm}: ramp", [calm, phase(150, ramp_us=700)], algorithm=algorithm, timeout_us=50_000)
        yield case(f"{algorithm}: saturation", [full, phase(60), phase(60, capacity=30)], algorithm=algorithm,
                   timeout_us=15_000)
        yield case(f"{algorithm}: drops", [phase(230), phase(40, drops=1), calm], algorithm=algorithm, shows=10)
        yield case(f"{algorithm}: the least of 1", [phase(30, drops=1), phase(20, share=[0, 1, 1])],
                   algorithm=algorithm, min=1, max=3, shows=5)
        trickle = [phase(20, samples=100, drops=drops) for drops in (1, 5, 6, 100, 0)]
        yield case(f"{algorithm}: a trickle of drops", [phase(230), *trickle], algorithm=algorithm, shows=10)
        for plus in (-1, 0, 1):
            yield case(f"{algorithm}: half {plus:+}", [phase(50, share=[1, 2, plus])], algorithm=algorithm)
    yield case("gradient2: a thousand overloaded windows", [calm, phase(1_000, capacity=40)], shows=100)


def of_window(phase, n, now, limit, window):
    """A window's samples. The first one closes the window that those before have opened."""
    numerator, denominator, plus = phase["share"]
    inflight = limit * numerator // denominator + plus
    rtt = phase["rtt_us"] + n * phase["ramp_us"]
    if phase["capacity"]:
        rtt = rtt * max(inflight, phase["capacity"]) // phase["capacity"]
    samples = phase["samples"]
    for i in range(samples):
        yield [now + (window + 1) * (i + 1) // samples, rtt + i, inflight, i < phase["drops"]]
