"""Draw the pictures of docs/kinds-of-limits/limits-that-move.md: warm-up.svg by what a server with the module replies,
adaptive.svg by the Python client. `python -m book.moving`"""

import sys
from pathlib import Path

from . import drawing
from .drawing import line, text

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src/clients/python"), str(ROOT / "tests")]

from support.resp import Connection  # noqa: E402
from support.server import Server  # noqa: E402
from swlimit._core.adaptive import Sample, Settings, State, step  # noqa: E402

FOLDER = ROOT / "docs/kinds-of-limits"
LEFT, PANEL, GAP, TOP, HIGH, ROW = 20, 224, 24, 58, 110, 160
WIDTH = 2 * LEFT + 3 * PANEL + 2 * GAP
STYLE = """
.asked { fill: #eaeef2 } .granted { fill: #b6d4f5 }
.limit, .gradient2, .aimd { fill: none; stroke: #2f74c0; stroke-width: 1.5; stroke-linejoin: round }
.aimd { stroke: #b3261e }
@media (prefers-color-scheme: dark) {
.asked { fill: #21262d } .granted { fill: #1f4470 } .limit, .gradient2 { stroke: #4a94e8 } .aimd { stroke: #ff7b72 } }
"""

# The warm-up: 100 units a second, for 10 seconds.
RESOLUTION, SECONDS = 50, 16
QUOTA, RISES = (100, "1s", f"{RESOLUTION}ms"), ("WARMUP", "10s")
T = 2_000_000_000_000


def warm_up(server, key, demand):
    """Each quarter of a second: what is asked for in a second, the limit, and the units that count."""
    owed, rows = 0.0, []
    for passed in range(0, 1000 * SECONDS, RESOLUTION):
        now, asked = T + passed, demand(passed / 1000)
        owed = owed % 1 + asked * RESOLUTION / 1000
        server.calls([("SWLIMIT.ALLOW", key, *QUOTA, *RISES, "AT", now)] * int(owed))
        if passed % 250 == 0:
            _, limit, remaining, *_ = server.call("SWLIMIT.PEEK", key, *QUOTA, *RISES, "AT", now)
            rows.append((asked, limit, limit - remaining))
    return rows


WARM_UPS = {
    "A step: 70 a second": lambda second: 70 if second >= 0.5 else 0,
    "A ramp": lambda second: min(140, 12 * second),
    "Saturation, with a pause": lambda second: 0 if 12 <= second < 14.5 else 140,
}

# The adaptive limits: windows of a second, and requests that take 10 ms. AIMD's timeout is 20 ms.
SHORT, LEAST, MOST, SAMPLES = 10_000, 20, 200, 100


def adaptive(algorithm, windows, rtt, capacity, drops):
    """The limit after each window, where as many are under way as it allows; above the capacity they queue. Of each
    window's samples so many are drops."""
    settings, state, limits = Settings(LEAST, MOST, algorithm, 1_000_000, 2 * SHORT), State(LEAST), []
    for number in range(windows):
        inflight = state.limit
        took = int(rtt(number) * max(1, inflight / capacity))
        for sample in range(1, SAMPLES + 1):
            end = 1_000_001 * number + 1_000_000 // SAMPLES * sample
            step(settings, state, Sample(end, took, inflight, sample <= drops(number)))
        limits.append(state.limit)
    return limits


# By title: windows, the response time, how many at once do not queue, and how many of 100 requests are drops.
ADAPTIVES = {
    "A step: 10, 100, 10 ms": (240, lambda number: 10 * SHORT if 100 <= number < 140 else SHORT, MOST, lambda _: 0),
    "A ramp: 10 to 60 ms": (240, lambda number: SHORT + max(0, number - 100) * 357, MOST, lambda _: 0),
    "Saturation: 60 at once do not queue": (240, lambda number: SHORT, 60, lambda _: 0),
    "A thousand overloaded windows: 40 at once do not queue": (1000, lambda number: SHORT, 40, lambda _: 0),
    "Drops: none, then 1 in 100, 5 in 100, 6 in 100, and none, for 240 s each": (
        1200, lambda number: SHORT, MOST, lambda number: (0, 1, 5, 6, 0)[number // 240]),
}


class Panel:
    """A frame in a picture, with words above it and at both ends of its axis."""

    def __init__(self, column, title, feet, most, row=0, columns=1):
        self.left, self.top, self.most = LEFT + column * (PANEL + GAP), TOP + row * ROW, most
        self.width, self.floor = columns * (PANEL + GAP) - GAP, self.top + HIGH
        right, foot = self.left + self.width, self.floor + 16
        self.shapes = [text(self.left, self.top - 12, title, "small"),
                       line("axis", [(self.left, self.floor), (right, self.floor)]),
                       text(self.left, foot, feet[0], "small"), text(right, foot, feet[1], "small", "end")]

    def curve(self, kind, values, is_filled=False):
        """Draw values at equal distances, without those between two equal ones."""
        points = [(self.left + self.width * at / (len(values) - 1), self.floor - HIGH * value / self.most)
                  for at, value in enumerate(values)]
        points = [point for at, point in enumerate(points)
                  if at in (0, len(points) - 1) or not points[at - 1][1] == point[1] == points[at + 1][1]]
        ends = [(self.left, self.floor)] * is_filled, [(self.left + self.width, self.floor)] * is_filled
        self.shapes.insert(-4, line(kind, [*ends[0], *points, *ends[1]]))


def picture(title, heading, panels, foot, rows=1):
    shapes = [text(LEFT, 24, heading), *(shape for panel in panels for shape in panel.shapes)]
    bottom = TOP + rows * ROW - 10
    return drawing.picture(title, WIDTH, bottom + 14, [*shapes, text(LEFT, bottom, foot, "small")], STYLE)


def warm_up_picture():
    panels = []
    with Server() as running, Connection(running.port) as server:
        rows = [warm_up(server, title, demand) for title, demand in WARM_UPS.items()]
    for column, title in enumerate(WARM_UPS):
        panels.append(Panel(column, title, ("0 s", f"{SECONDS} s"), 140))
        asked, limits, used = zip(*rows[column])
        panels[-1].curve("asked", asked, is_filled=True)
        panels[-1].curve("granted", used, is_filled=True)
        panels[-1].curve("limit", limits)
    return picture("A limit that warms up, against a step, a ramp and saturation",
                   "Warm-up: 100 a second, after 10 seconds, 3 times colder at first", panels,
                   "Line: the limit. Blue: units that count. Grey: what is asked for in a second.")


def adaptive_picture():
    panels = []
    for place, (title, (windows, *load)) in enumerate(ADAPTIVES.items()):
        column, row, columns = (place, 0, 1) if place < 3 else (0, place - 2, 3)
        panels.append(Panel(column, title, ("0 s", f"{windows} s"), MOST, row, columns))
        for algorithm in ("aimd", "gradient2"):
            panels[-1].curve(algorithm, adaptive(algorithm, windows, *load)[::windows // 120])
    return picture("Adaptive limits, against a step, a ramp, saturation and drops", "Adaptive: 20 to 200 at once",
                   panels, "Blue: Gradient2. Red: AIMD with a timeout of 20 ms. The axis is from 0 to 200.", rows=3)


PICTURES = {FOLDER / "warm-up.svg": warm_up_picture, FOLDER / "adaptive.svg": adaptive_picture}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        file.write_text(draw())
