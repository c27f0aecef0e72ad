"""Draw the picture of the README, docs/sliding-window.svg: one window at two instants. `python -m book.window`"""

from fractions import Fraction
from pathlib import Path

from . import drawing
from .drawing import rectangle, text

FILE = Path(__file__).resolve().parents[2] / "docs/sliding-window.svg"
LIMIT, SUBINTERVALS, RESOLUTION = 100, 12, 5  # a window of 60 seconds
COUNTS = [6, 20, 4, 9, 5, 12, 7, 3, 8, 11, 6, 10, 5, 4, 0]  # units of each subinterval
NEWEST = 13
INSTANTS = [1, 4]  # seconds into the newest subinterval

LEFT, CELL, TOP, FRAME, HIGH = 20, 48, 34, 148, 62
WIDTH, HEIGHT = 2 * LEFT + len(COUNTS) * CELL, len(INSTANTS) * FRAME + 34
STYLE = """
.out { fill: #d1d9e0 } .whole { fill: #2f74c0 } .part { fill: #8ab6e6 }
.window { fill: none; stroke: #b3261e; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
.out { fill: #3d444d } .whole { fill: #4a94e8 } .part { fill: #2a5788 } .window { stroke: #ff7b72 } }
"""


def estimate(instant):
    """The units that count: whole subintervals, and the one that slides out by the share that is still inside."""
    trailing = NEWEST - SUBINTERVALS
    return sum(COUNTS[trailing + 1:NEWEST + 1]) + COUNTS[trailing] * Fraction(RESOLUTION - instant, RESOLUTION)


def frame(number, instant):
    """The shapes of one instant: a bar for each subinterval, and the window over them."""
    top = TOP + number * FRAME
    floor = top + HIGH + 24
    trailing = NEWEST - SUBINTERVALS
    shapes = []
    for place, units in enumerate(COUNTS):
        x, high = LEFT + place * CELL, HIGH * units / max(COUNTS)
        kind = "whole" if trailing < place <= NEWEST else "out"
        shapes.append(rectangle(kind, x + 3, floor - high, CELL - 6, high))
        if place == trailing:
            gone = (CELL - 6) * instant / RESOLUTION
            shapes.append(rectangle("part", x + 3 + gone, floor - high, CELL - 6 - gone, high))
        if units:
            shapes.append(text(x + CELL / 2, floor + 16, str(units), "small", "middle"))
    begin = LEFT + (trailing + instant / RESOLUTION) * CELL
    end = begin + SUBINTERVALS * CELL
    shapes.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{floor}" y2="{floor}"/>')
    shapes.append(rectangle("window", begin, top + 8, end - begin, floor - top - 8))
    shapes.append(text(end + 6, top + 22, "now", "small"))
    counted = estimate(instant)
    left = max(0, int(LIMIT - counted))
    verdict = f"{left} of {LIMIT} remain" if left else f"nothing of {LIMIT} remains: denied"
    later = f"{instant - INSTANTS[0]} seconds later: " if number else "The last 60 seconds: "
    share = COUNTS[trailing] * Fraction(RESOLUTION - instant, RESOLUTION)
    shapes.append(text(LEFT, top - 4, f"{later}{int(counted - share)} + {int(share)} units count, {verdict}"))
    return shapes


def picture():
    """The text of the file."""
    shapes = [shape for number, instant in enumerate(INSTANTS) for shape in frame(number, instant)]
    foot = "One bar is 5 seconds. The bar on the window's edge counts by the share that is still inside."
    shapes.append(text(LEFT, HEIGHT - 16, foot, "small"))
    return drawing.picture("A sliding window of 60 seconds at two instants", WIDTH, HEIGHT, shapes, STYLE)


if __name__ == "__main__":
    FILE.write_text(picture())
