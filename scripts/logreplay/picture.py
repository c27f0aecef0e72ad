"""Offered against granted over time, beside the most limited keys."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

import svg

from .report import moment, printable

GRANTED, DENIED, INK = "#2a78a8", "#e4763a", "#333333"
KEYS = 10
LABEL = 34  # characters of a key that fit beside the panel


def draw(path, title, outcome, unit, zone):
    """Write the picture; the ending of `path` chooses its kind."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10,
             "axes.edgecolor": INK, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with rc_context(style):
        figure = Figure(figsize=(13, 5), layout="constrained")
        over_time, by_key = figure.subplots(1, 2, width_ratios=(5, 2))
        figure.suptitle(printable(title), x=0.01, ha="left", fontsize=13, parse_math=False)
        _over_time(over_time, outcome, unit, zone)
        _by_key(by_key, outcome, unit)
        if path.lower().endswith(".svg"):
            svg.save(figure, Path(path))
        else:
            figure.savefig(path, dpi=150)


def _over_time(axes, outcome, unit, zone):
    edges = [moment(outcome.start + step * outcome.step, zone) for step in range(len(outcome.offered) + 1)]
    total = outcome.total
    axes.stairs(outcome.offered, edges, baseline=outcome.granted, fill=True, color=DENIED,
                label=f"denied: {total.denied_units:,}")
    axes.stairs(outcome.granted, edges, fill=True, color=GRANTED, label=f"granted: {total.granted_units:,}")
    axes.stairs(outcome.offered, edges, color=INK, linewidth=0.7, label=f"offered: {total.offered_units:,}")
    axes.set_ylabel(f"{unit} per {_span(outcome.step)}")
    axes.set_xlabel(f"time ({zone})")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    locator = AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, reverse=True)


def _by_key(axes, outcome, unit):
    rows = [(name, tally) for name, tally in outcome.most_limited(KEYS) if tally.denied]
    if not rows:
        axes.set_axis_off()
        axes.set_title("none was limited", loc="left", fontsize=10)
        return
    axes.set_title(f"most limited, {len(rows)} of {outcome.limited:,}", loc="left", fontsize=10)
    places = range(len(rows))
    granted = [tally.granted_units for _, tally in rows]
    denied = [tally.denied_units for _, tally in rows]
    axes.barh(places, granted, color=GRANTED)
    bars = axes.barh(places, denied, left=granted, color=DENIED)
    axes.bar_label(bars, [f"{count:,}" for count in denied], padding=3, fontsize=9, color=DENIED)
    # A key may hold "$", which is no mathematics.
    axes.set_yticks(places, [_short(name) for name, _ in rows], parse_math=False, fontsize=9)
    axes.set_ylim(max(len(rows), KEYS // 2) - 0.5, -0.5)  # from the top, and not a single bar over the whole height
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel(unit)


def _short(name):
    shown = printable(name)
    return shown if len(shown) <= LABEL else shown[:LABEL - 1] + "…"


def _span(milliseconds):
    seconds = milliseconds // 1000
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds % size == 0:
            return f"{seconds // size} {name}" if seconds > size else name
    return f"{seconds} s" if seconds > 1 else "s"
