"""Limits of how many at once that follow response times. No clock, no lock; all times are in µs.

Both algorithms are those of Netflix's concurrency-limits, except for drops: a window lowers the limit when more than
5 % of its samples are drops. AIMD goes by a timeout besides. Gradient2 compares the response times of each window with
those of the last minutes.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Algorithm = Literal["aimd", "gradient2"]

LEAST_RTT = 100
LEAST_SAMPLES = 10
SAMPLES_A_DROP = 20
FIRST_WINDOWS = 10


class Settings(NamedTuple):
    """How a limit adapts."""

    min: int
    max: int
    algorithm: Algorithm
    window: int
    timeout: int


class Sample(NamedTuple):
    """A permit that was given back."""

    end: int
    rtt: int
    inflight: int
    """How many there were when it began, with itself."""
    dropped: bool


@dataclass(slots=True)
class State:
    """A limit, and what it was learnt from. It begins with the least estimate."""

    estimate: float
    ends: int | None = None
    """When the window ends; None before the first sample."""
    samples: int = 0
    sum: int = 0
    inflight: int = 0
    drops: int = 0
    windows: int = 0
    """Of the first ten windows with enough samples, how many are over."""
    windows_sum: float = 0.0
    long: float = 0.0
    """The response time of the last minutes."""

    @property
    def limit(self) -> int:
        return int(self.estimate)

    @property
    def is_overloaded(self) -> bool:
        """Whether more than a trickle was dropped."""
        return self.drops * SAMPLES_A_DROP > self.samples


def step(settings: Settings, state: State, sample: Sample) -> None:
    """Take a sample into its window. The first one past the window's end closes it."""
    if sample.rtt < LEAST_RTT:
        return
    state.samples += 1
    state.sum += sample.rtt
    state.inflight = max(state.inflight, sample.inflight)
    state.drops += sample.dropped
    if state.ends is None:
        state.ends = sample.end + settings.window
    elif sample.end > state.ends:
        if state.samples >= LEAST_SAMPLES:
            adapt = _aimd if settings.algorithm == "aimd" else _gradient2
            adapt(settings, state, state.sum / state.samples)
        state.ends = sample.end + settings.window
        state.samples = state.sum = state.inflight = state.drops = 0


def _aimd(settings: Settings, state: State, mean: float) -> None:
    limit = state.limit
    if state.is_overloaded or mean > settings.timeout:
        state.estimate = max(settings.min, min(limit - 1, 9 * limit // 10))
    elif 2 * state.inflight >= limit:
        state.estimate = min(settings.max, limit + 1)


def _gradient2(settings: Settings, state: State, mean: float) -> None:
    if state.is_overloaded:
        state.estimate = max(settings.min, 0.9 * state.estimate)
        return
    if state.windows < FIRST_WINDOWS:
        state.windows += 1
        state.windows_sum += mean
        state.long = state.windows_sum / state.windows
    else:
        state.long += (mean - state.long) * 2 / 601
    gradient = min(1.0, max(0.5, 1.5 * state.long / mean))
    if state.long / mean > 2:
        state.long *= 0.95
    if 2 * state.inflight >= state.estimate:
        estimate = 0.8 * state.estimate + 0.2 * (state.estimate * gradient + 4)
        state.estimate = max(settings.min, min(settings.max, estimate))
