"""The pictures beside ACCURACY.md."""

from math import nan

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

import svg

from . import exact_log
from .exact_log import ExactLog
from .loads import MINUTE, SECOND, START, Request
from .play import Limiter

STYLE = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.7,
    "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.5, "lines.markersize": 4.5,
    "figure.constrained_layout.use": True,
}
# Okabe and Ito's colours, which the colour-blind distinguish.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#777777")
MARKERS = "osD^vPX"
LOG, RING, TWO = "#222222", "#0072b2", "#d55e00"
LEAST_SHARE = 1e-4  # below this, shares are drawn on a linear scale down to 0


def draw(survey, player, folder):
    """Draw all pictures into this folder, as SVG."""
    with matplotlib.rc_context(STYLE):
        pictures = {
            "error_by_subintervals": error_by_subintervals(survey),
            "error_by_memory": error_by_memory(survey),
            "timeline": timeline(player),
            "bounds": bounds(survey),
        }
        for name, figure in pictures.items():
            svg.save(figure, folder / f"{name}.svg")


def error_by_subintervals(survey):
    """Wrong decisions against N, one line a load."""
    panels = [("default: wrongly granted", "wrongly_granted", False),
              ("default: wrongly denied", "wrongly_denied", False),
              ("STRICT: wrongly denied", "wrongly_denied", True)]
    figure = Figure(figsize=(10, 3.8))
    axes = figure.subplots(1, len(panels), sharey=True)
    for ax, (title, name, strict) in zip(axes, panels):
        for load, colour, marker in _styled(survey.traffic):
            counts, shares = zip(*((subintervals, survey.figures[load.name, subintervals, strict].share(name))
                                   for subintervals, its_strict in survey.ways(load) if its_strict == strict))
            ax.plot(counts, shares, color=colour, marker=marker, label=load.name, clip_on=False)
        ax.set(title=title, xlabel="subintervals N", xscale="log")
        ax.set_xticks(survey.subintervals, [str(count) for count in survey.subintervals])
        ax.xaxis.set_minor_locator(NullLocator())
        _share_axis(ax)
    axes[0].set_ylabel("share of decisions")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(survey.traffic))
    return figure


def error_by_memory(survey):
    """Wrong decisions against bytes per key, one line a load, the exact log at its end."""
    figure = Figure(figsize=(10, 4.2))
    axes = figure.subplots(1, 2, sharey=True, sharex=True)
    largest = max(survey.traffic, key=lambda load: survey.log_bytes[load.name])
    for ax, strict in zip(axes, (False, True)):
        for load, colour, marker in _styled(survey.traffic):
            found = [(subintervals, survey.figures[load.name, subintervals, strict])
                     for subintervals, its_strict in survey.ways(load) if its_strict == strict]
            ax.plot([one.mean_memory for _, one in found], [one.wrong for _, one in found], color=colour,
                    marker=marker, label=load.name, clip_on=False)
            ax.plot(survey.log_bytes[load.name][0], 0, color=colour, marker="*", markersize=11, clip_on=False,
                    markeredgecolor="white", markeredgewidth=0.6, zorder=4)
            for subintervals, one in found if load is largest else ():
                text, side = ("N = 1", "right") if subintervals == 1 else (str(subintervals), "left")
                ax.annotate(text, (one.mean_memory, one.wrong), (2, 6), textcoords="offset points", color=colour,
                            ha=side)
        ax.set(title="STRICT" if strict else "default", xlabel="bytes per key (log scale)", xscale="log")
        ax.set_xlim(left=60)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " ")))
        _share_axis(ax)
    axes[0].set_ylabel("share of wrong decisions")
    handles, labels = axes[0].get_legend_handles_labels()
    star = Line2D([], [], color="#555555", marker="*", markersize=11, linestyle="")
    figure.legend([*handles, star], [*labels, "exact log"], loc="outside lower center", ncols=len(labels) + 1)
    return figure


def timeline(player, limit=20, window=MINUTE, subintervals=12):
    """What two counters, a ring and the exact log make of the same requests."""
    offered = _timeline_requests()
    end = 7 * MINUTE
    limiters = [("two counters (N = 1)", TWO, _granted(player, Limiter(limit, window, window), offered)),
                (f"ring (N = {subintervals})", RING,
                 _granted(player, Limiter(limit, window, window // subintervals), offered)),
                ("exact log", LOG, [request for request, decision in
                                    zip(offered, exact_log.decide(offered, limit, window)) if decision.granted])]
    figure = Figure(figsize=(10, 5.4))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.1))
    instants = range(0, end, SECOND // 4)
    for name, colour, granted in limiters:
        top.plot([at / SECOND for at in instants], _counts(granted, instants, window), color=colour, label=name,
                 drawstyle="steps-post", linewidth=2.2 if colour == LOG else 1.6)
    top.axhline(limit, color="#999999", linewidth=1, linestyle="--")
    top.text(end / SECOND, limit, " L", va="center", color="#666666")
    top.set(ylabel=f"units granted in the last {window // SECOND} s", ylim=(0, 2 * limit),
            title=f"what each has granted within W ({limit} per minute)")
    top.legend(loc="upper left")
    rows = [("asked for", "#999999", offered), *limiters]
    for row, (_, colour, requests) in enumerate(reversed(rows)):
        # One line with gaps: as many lines would take ten times the bytes.
        seconds = [second for request in requests for second in [(request.at - START) / SECOND] * 2 + [nan]]
        bottom.plot(seconds, [row - 0.36, row + 0.36, nan] * len(requests), color=colour, linewidth=0.9)
    bottom.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)])
    bottom.tick_params(axis="y", length=0)
    bottom.grid(visible=False, axis="y")
    bottom.set(xlabel="seconds", title="requests granted", xlim=(0, end / SECOND))
    bottom.set_xticks(range(0, end // SECOND + 1, 30))
    return figure


def bounds(survey):
    """What an adversary gets within a span, against the length of the span."""
    figure = Figure(figsize=(8, 4.2))
    ax = figure.subplots()
    default = [one for one in survey.bounds if not one[0].strict]
    for (limiter, reached), colour in zip(default[:-1], COLOURS):
        _bound(ax, limiter, reached, colour, "o", f"N = {limiter.subintervals}")
    strict = next(one for one in survey.bounds if one[0].strict and one[0].subintervals == 12)
    _bound(ax, *strict, LOG, "s", "STRICT, any N")
    ax.set(xlabel="length of the span, as a multiple of W", ylabel="granted within it, as a multiple of L",
           xlim=(0, 1.05), ylim=(0.9, 2.1), title="most that any span can see (lines: proved, marks: reached)")
    ax.legend(loc="upper left")
    return figure


def _bound(ax, limiter, reached, colour, marker, label):
    spans = [0, *(one.instants / limiter.window for one in reached), 1.05]
    multiples = [1, *(one.bound / limiter.limit for one in reached), 2]
    ax.plot(spans, multiples, color=colour)
    ax.plot([one.instants / limiter.window for one in reached], [one.units / limiter.limit for one in reached],
            color=colour, marker=marker, linestyle="", label=label)


def _timeline_requests():
    """Twice a burst and then a request every 2 s: first late in a minute, then, when all is forgotten, early in one."""
    late = [50_000 + 500 * number for number in range(20)] + [60_000 + 2000 * number for number in range(45)]
    early = [240_000 + 500 * number for number in range(20)] + [250_000 + 2000 * number for number in range(45)]
    return [Request(START + at, 0) for at in late + early]


def _granted(player, limiter, requests):
    return [request for request, answer in zip(requests, player.allow(limiter, requests)) if answer.granted]


def _counts(granted, instants, window):
    """Units granted in the window up to each of these instants (ms since START)."""
    log, waiting, counts = ExactLog(window), iter([*granted, None]), []
    following = next(waiting)
    for instant in instants:
        while following and following.at <= START + instant:
            log.add(following.at, following.cost)
            following = next(waiting)
        counts.append(log.count(START + instant))
    return counts


def _styled(loads):
    return zip(loads, COLOURS, MARKERS)


def _share_axis(ax):
    """Shares on a log scale that has a place for 0 too."""
    ax.set_yscale("symlog", linthresh=LEAST_SHARE, linscale=0.5)
    ticks = [0, 1e-4, 1e-3, 1e-2, 1e-1, 1]
    ax.set_yticks(ticks, [f"{100 * tick:g} %" if tick else "0" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, 1)
