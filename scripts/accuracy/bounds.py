"""What the module guarantees, as ACCURACY.md proves it, and the adversary that gets as much as that.

A span is measured by its instants: a span of W has W of them (`[a, a + W)`), one of W − R with both ends has W − R + 1.
"""

from typing import NamedTuple

from .loads import START, Request


class Reached(NamedTuple):
    """What the adversary got within a span."""

    instants: int  # ms
    units: int
    bound: int     # units


def most(limiter, instants):
    """Units that a span of this many ms can see granted at most; for spans up to W + 2 ms."""
    if instants > limiter.window + 1:
        return 2 * limiter.limit
    if limiter.strict:
        return limiter.limit
    beyond = max(0, instants - longest_safe(limiter))
    return limiter.limit + limiter.limit * beyond // limiter.resolution


def longest_safe(limiter):
    """The longest span, in ms, that never sees more than the limit."""
    return limiter.window + 1 if limiter.strict else limiter.window - limiter.resolution + 2


def spans_to_attack(limiter):
    """Spans in ms: those at which a bound changes, and steps in the last R before W."""
    start, window = limiter.window - limiter.resolution, limiter.window
    steps = {start + limiter.resolution * tenth // 10 for tenth in range(11)}
    return sorted({start + 1, start + 2, window, window + 1, window + 2} | {step for step in steps if step > start})


def attack(player, limiter, spans):
    """What two bursts get within each of these spans: all there is in the last ms of a subinterval, and all there is
    again in the last ms of the span. Each span is attacked with a key of its own.
    """
    first = START + limiter.resolution - 1
    requests = [Request(at, number, limiter.limit)
                for number, span in enumerate(spans) for at in (first, first + span - 1)]
    granted = [answer.granted for answer in player.allow(limiter, requests, "PARTIAL")]
    return [Reached(span, sum(pair), most(limiter, span))
            for span, pair in zip(spans, zip(granted[::2], granted[1::2]))]


def broken(limiter, figures):
    """Which guarantees these figures contradict, in words."""
    bound = most(limiter, limiter.window) / limiter.limit
    if figures.worst > bound:
        yield f"{figures.worst:.4f} of the limit within W, above {bound:.4f}"
    if figures.worst_short > 1:
        yield f"{figures.worst_short:.4f} of the limit within W − R"
    if figures.wait_in_resolutions > 1:
        yield f"a request that was due was held back for {figures.longest_wait} ms, longer than R"
