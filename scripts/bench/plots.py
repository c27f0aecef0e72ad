"""The pictures beside RESULTS.md."""

from statistics import median

import matplotlib

from . import client, daemon, latency, scale
from .cpu import spread

matplotlib.use("svg")
matplotlib.rcParams |= {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
                        "figure.constrained_layout.use": True}
import matplotlib.pyplot as plt  # noqa: E402  (after its settings)
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter  # noqa: E402

OWN, OTHER = "#1f6fb2", "#a8a8a8"


def draw_cpu(result):
    """Bars of CPU per command, with quartiles."""
    spent, everyone = result
    return draw_bars([plain(one.label) for one in everyone], [spread(spent[one.key]) for one in everyone],
                     [one.label.startswith(OWN_LABELS) for one in everyone], "server CPU per command (ns)", "{:,.0f}")


def draw_memory(result):
    """Bars of bytes per key, those of a few counts."""
    used, everything = result
    shown = [layout for layout in everything if used[layout.key] < 2_500]
    return draw_bars([plain(layout.label) for layout in shown], [[used[layout.key]] * 3 for layout in shown],
                     [layout.label.startswith(OWN_LABELS) for layout in shown], "bytes per key", "{:,.0f}")


OWN_LABELS = tuple(f"`{command}`" for command in ("ALLOW", "PEEK", "RECORD", "MALLOW"))


def plain(label):
    """A label without Markdown."""
    return label.replace("`", "")


def draw_bars(labels, quartiles, own, axis, number):
    """Horizontal bars with whiskers from the lower to the upper quartile."""
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.29 * len(labels)))
    lows, middles, highs = zip(*quartiles)
    whiskers = [[middle - low for low, middle in zip(lows, middles)],
                [high - middle for middle, high in zip(middles, highs)]]
    places = range(len(labels))
    axes.barh(places, middles, color=[OWN if mine else OTHER for mine in own], xerr=whiskers,
              error_kw={"elinewidth": 1, "ecolor": "#333333"})
    for place, middle, high in zip(places, middles, highs):
        axes.text(high + max(highs) * 0.01, place, number.format(middle), va="center", fontsize=9)
    axes.set_yticks(places, labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, max(highs) * 1.08)
    axes.set_xlabel(axis)
    axes.grid(axis="x", color="#dddddd")
    return figure


def draw_latency(result):
    """Percentiles of each contender: one panel for each number of connections."""
    seen, everyone = result
    figure, panels = plt.subplots(1, len(latency.REQUESTS), figsize=(10, 0.9 + 0.34 * len(everyone)), sharey=True)
    for axes, connections in zip(panels, latency.REQUESTS):
        for place, contender in enumerate(everyone):
            numbers = latency.middle(seen[contender.key, connections])
            color = OWN if contender.label.startswith(OWN_LABELS) else "#777777"
            axes.plot(numbers, [place] * len(numbers), color=color, linewidth=1, zorder=1)
            for value, marker, filled in zip(numbers, "osD", (True, False, False)):
                axes.scatter(value, place, s=34, marker=marker, color=color if filled else "white", edgecolors=color)
        axes.set_xscale("log")
        axes.set_xlabel("latency (µs, logarithmic)")
        axes.set_title(f"{connections} connection{'s' * (connections > 1)}", fontsize=11)
        axes.grid(axis="x", which="both", color="#eeeeee")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_yticks(range(len(everyone)), [plain(one.label) for one in everyone])
    panels[0].invert_yaxis()
    handles = [plt.Line2D([], [], marker=marker, linestyle="", color="#555555", label=label,
                          markerfacecolor="#555555" if marker == "o" else "white")
               for marker, label in zip("osD", ("p50", "p99", "p99.9"))]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def draw_scale(spent):
    """CPU per command over the number of keys, with the quartiles as bands."""
    figure, axes = plt.subplots(figsize=(8, 4.2))
    sizes = list(dict.fromkeys(keys for _, keys in spent))
    for (command, label), color, marker in zip(scale.LABELS.items(), ("#777777", "#c8742b", OWN), "sDo"):
        lows, middles, highs = zip(*(spread(spent[command, keys]) for keys in sizes))
        axes.plot(sizes, middles, color=color, marker=marker, label=plain(label))
        axes.fill_between(sizes, lows, highs, color=color, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{keys:,}" for keys in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("keys (logarithmic)")
    axes.set_ylabel("server CPU per command (ns)")
    axes.grid(color="#dddddd")
    axes.legend(frameon=False, loc="upper left")
    return figure


def draw_client(found):
    """The most that is granted in a span and its bound: over the number of clients, and over the interval."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    usual, many = client.USUAL, client.MANY
    cases = [(clients, usual, 0) for clients in client.CLIENTS], [(many, interval, 0) for interval in client.INTERVALS]
    labels = (f"clients, synchronized every {usual} ms", f"ms between synchronizations of {many} clients")
    for axes, shown, of, label in zip(panels, cases, (0, 1), labels):
        places = [case[of] for case in shown]
        measured, bounds = zip(*(found["overshoot"][case] for case in shown))
        axes.plot(places, bounds, color="#777777", marker="s", label="bound")
        axes.plot(places, measured, color=OWN, marker="o", label="background, measured")
        if not of:
            leases = [found["overshoot"][clients, None, 0.1][0] for clients in places]
            axes.plot(places, leases, color="#c8742b", marker="D", label="leases, measured")
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.set_xlabel(f"{label} (logarithmic)")
        axes.grid(color="#dddddd")
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("most in a span, of the limit")
    panels[0].legend(frameon=False, loc="lower right")
    return figure


def draw_daemon(result):
    """Bars of CPU per request, the service's and behind it Redis's: one panel for each number of requests at a time."""
    seen, _ = result
    cases = list(daemon.CASES)
    figure, panels = plt.subplots(1, len(daemon.TASKS), figsize=(10, 1 + 0.3 * len(cases)), sharey=True)
    for axes, tasks in zip(panels, daemon.TASKS):
        service, redis = ([median(one[part] for one in seen[case, tasks]) for case in cases]
                          for part in ("service", "redis"))
        axes.barh(cases, service, color=[OWN if case.startswith("swlimitd") else OTHER for case in cases])
        axes.barh(cases, redis, left=service, color="#c8742b")
        axes.set_xlabel(f"CPU per request (µs), {tasks} at a time")
        axes.grid(axis="x", color="#dddddd")
    panels[0].set_yticks(range(len(cases)), [plain(case) for case in cases])
    panels[0].invert_yaxis()
    figure.legend([plt.Rectangle((0, 0), 1, 1, color=color) for color in (OWN, OTHER, "#c8742b")],
                  ["swlimitd", "another service", "Redis"], loc="outside lower center", ncols=3, frameon=False)
    return figure
