"""Limits that move, in exact fractions, which are rounded to the nearest double only where README.md says that clients
round."""

import random
from fractions import Fraction
from math import floor, isqrt

from support import model
from support.bounds import MAX, T

STEPS = 20


def rounded(value):
    """The nearest double."""
    return Fraction(float(value))


def root(value):
    """The double that is nearest to the square root."""
    scale = 1 << 128
    scaled = value * scale * scale
    whole = isqrt(floor(scaled))
    return rounded(Fraction(whole, scale) if whole * whole == scaled else Fraction(2 * whole + 1, 2 * scale))


class WarmUp:
    """The options of a limiter: durations in ms; a key that nobody asked about for `quiet` may be idle."""

    def __init__(self, warm_up, cold, quiet):
        self.warm_up, self.cold, self.quiet = warm_up, Fraction(cold), quiet
        self.square = rounded(self.cold * self.cold)

    def step(self, t):
        return STEPS * t // self.warm_up

    def begins(self, step):
        return -(-step * self.warm_up // STEPS)

    def limit(self, limit, step):
        if step >= STEPS:
            return limit
        grown = rounded(rounded(rounded(self.square - 1) * step) / STEPS)
        return min(limit, max(1, floor(rounded(limit / root(rounded(self.square - grown))))))

    def shown(self, limit, used):
        if used == 0 or rounded(used * self.cold) <= limit:
            return 0
        ratio = rounded(Fraction(limit, used))
        part = rounded(rounded(self.square - rounded(ratio * ratio)) / rounded(self.square - 1))
        return min(self.warm_up, max(0, floor(rounded(self.warm_up * part))))

    def wait(self, t, limit, cost):
        return next(self.begins(step) - t for step in range(self.step(t), STEPS + 1) if self.limit(limit, step) >= cost)


class Key:
    """What a process knows of a key."""

    def __init__(self, options):
        self.options, self.t, self.at, self.looked = options, 0, None, -1

    def at_now(self, now):
        if self.at is None or now - self.at >= self.options.warm_up:
            return 0, -1
        return min(self.options.warm_up, self.t + max(0, now - self.at)), self.looked

    def ask(self, now, limit):
        is_quiet = self.at is None or now - self.at >= self.options.quiet
        return self.options.limit(limit, 0 if is_quiet else self.options.step(self.at_now(now)[0]))

    def feed(self, now, limit, asked, granted, remaining):
        (self.t, self.looked), self.at = self.at_now(now), now
        if remaining is not None:
            used = asked - remaining
            if granted > 0 and used <= granted:
                self.t, self.looked = 0, -1
            else:
                self.t = max(self.t, self.options.shown(limit, used))

    def look(self):
        step = self.options.step(self.t)
        due, self.looked = step > self.looked, max(step, self.looked)
        return due

    @property
    def state(self):
        return [self.t, self.at, self.looked]


def warm_up():
    """The parts of warm_up.json."""
    return {"limits": list(limits()), "steps": list(steps()), "shown": list(shown()), "waits": list(waits()),
            "refused": list(refused()), "traces": list(traces())}


def limits():
    for cold in (3, 2, 1.5, 10, 1.0001, 1000, 2.718281828459045):
        for limit in (0, 1, 2, 3, 9, 10, 100, 12_345, 1_000_003, 2**31, MAX):
            options = WarmUp(1_000, cold, 0)
            known = [options.limit(limit, step) for step in range(STEPS + 1)]
            assert known == sorted(known) and known[-1] == limit
            yield {"limit": limit, "cold": cold, "limits": known}


def steps():
    for warm_up in (10, 19, 1_000, 600_000, 600_001, 315_360_000_000):
        options = WarmUp(warm_up, 3, 0)
        for t in sorted({0, 1, warm_up // 20, -(-warm_up // 20), warm_up // 3, warm_up - 1, warm_up}):
            step = options.step(t)
            yield {"warm_up": warm_up, "t": t, "step": step,
                   "next": options.begins(step + 1) - t if step < STEPS else None}


def shown():
    for warm_up, cold, limit in ((600_000, 3, 900), (1_000, 1.5, 7), (315_360_000_000, 1000, MAX), (20_000, 2.5, 100)):
        options = WarmUp(warm_up, cold, 0)
        edge = floor(limit / Fraction(cold))
        for used in sorted({0, 1, edge - 1, edge, edge + 1, limit // 2, limit // 3 * 2, limit - 1, limit}):
            yield {"warm_up": warm_up, "cold": cold, "limit": limit, "used": max(0, used),
                   "t": options.shown(limit, max(0, used))}


def waits():
    for warm_up, limit, t, cost in ((1_000, 9, 0, 4), (1_000, 9, 120, 4), (1_001, 9, 0, 9), (1_001, 9, 999, 9),
                                    (600_000, 100, 7, 34), (600_000, 100, 7, 99), (600_000, 100, 599_999, 100)):
        options = WarmUp(warm_up, 3, 0)
        yield {"warm_up": warm_up, "cold": 3, "limit": limit, "t": t, "cost": cost,
               "retry_after": options.wait(t, limit, cost)}


def refused():
    short = "warm_up must be at least ten times the window"
    wrong = "cold must be above 1 and at most 1000"
    for window, warm_up, cold, error in (
            (1_000, 10_000, 3, None), (1_000, 9_999, 3, short), (1, 10, 1000, None), (60_000, 60_000, 3, short),
            (1_000, 10_000, 1, wrong), (1_000, 10_000, 1.0001, None), (1_000, 10_000, 1000.5, wrong),
            (1_000, 10_000, 0, wrong), (1_000, 10_000, -3, wrong)):
        yield {"window": window, "warm_up": warm_up, "cold": cold, "error": error}


def traces():
    """Processes that share a key of the model, each with what it asks at which instants."""
    begins = T + 7
    saturated = [(begins + ms, 0, 1 + ms % 2) for ms in range(0, 1_150, 9)]
    yield trace("alone", saturated + [(begins + ms, 0, 1) for ms in (1_420, 1_421, 1_600, 2_400, 2_401, 3_500, 3_501)])
    yield trace("late", saturated + [(begins + ms, 1, 1) for ms in range(1_010, 1_150, 13)])
    yield trace("seldom", [(begins + ms, 0, 1) for ms in range(0, 2_000, 31)]
                + [(begins + ms, 1, 2) for ms in range(1_100, 2_000, 190)])
    yield trace("costs", [(begins + ms, 0, 9) for ms in range(0, 1_200, 77)])
    draw = random.Random(1)
    yield trace("any", [(begins + draw.randint(0, 3_000), draw.randint(0, 2), draw.randint(1, 9)) for _ in range(80)])


def trace(name, requests, limit=12, warm_up=1_000, cold=3, window=100, resolution=5):
    options = WarmUp(warm_up, cold, window + resolution)
    server, known, events = model.Key(), [Key(options) for _ in range(3)], []

    def ask(process, now, asked, cost):
        granted, _, remaining, *_ = server.allow(asked, window, resolution, now, cost)
        feed(process, now, asked, granted, remaining)
        return granted

    def feed(process, now, asked, granted, remaining):
        known[process].feed(now, limit, asked, granted, remaining)
        events.append({"process": process, "now": now - T, "fed": [asked, granted, remaining], "state": state(process)})

    def state(process):
        t, at, looked = known[process].state
        return [t, at - T, looked]

    def before(process, now):
        asked = known[process].ask(now, limit)
        events.append({"process": process, "now": now - T, "ask": asked})
        return asked

    for now, process, cost in sorted(requests):
        asked = before(process, now)
        if ask(process, now, asked, cost) or asked == limit:
            continue
        due = known[process].look()
        events.append({"process": process, "look": due, "state": state(process)})
        if due:
            feed(process, now, limit, 0, server.peek(limit, window, resolution, now, 1)[2])
        again = before(process, now)
        if again > asked:
            ask(process, now, again, cost)
    return {"name": name, "limit": limit, "warm_up": warm_up, "cold": cold, "quiet": window + resolution,
            "events": events}


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
