"""The picture in ACCURACY.md."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

import svg

STYLE = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.7,
    "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.5, "lines.markersize": 4.5,
    "figure.constrained_layout.use": True,
}
# Okabe and Ito's colours, which the colour-blind distinguish.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#777777")
MARKERS = "osD^vPX"
LEAST_SHARE = 1e-4  # below this, shares are drawn on a linear scale down to 0


def draw(survey, folder):
    """Draw it into this folder, as SVG."""
    with matplotlib.rc_context(STYLE):
        svg.save(error_by_subintervals(survey), folder / "error_by_subintervals.svg")


def error_by_subintervals(survey):
    """Wrong decisions against N, one line a load."""
    panels = [("default: wrongly granted", "wrongly_granted", False),
              ("default: wrongly denied", "wrongly_denied", False),
              ("STRICT: wrongly denied", "wrongly_denied", True)]
    figure = Figure(figsize=(10, 3.8))
    axes = figure.subplots(1, len(panels), sharey=True)
    for ax, (title, name, strict) in zip(axes, panels):
        for load, colour, marker in zip(survey.traffic, COLOURS, MARKERS):
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


def _share_axis(ax):
    """Shares on a log scale that has a place for 0 too."""
    ax.set_yscale("symlog", linthresh=LEAST_SHARE, linscale=0.5)
    ticks = [0, 1e-4, 1e-3, 1e-2, 1e-1, 1]
    ax.set_yticks(ticks, [f"{100 * tick:g} %" if tick else "0" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, 1)
