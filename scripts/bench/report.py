"""What came out, as RESULTS.md and plots beside it: machine, versions, bars met and not met, tables."""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import matplotlib
from support.server import ROOT, Binaries, Server

from . import cpu, instructions, latency, memory, peers, scale
from .cpu import spread

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.hashsalt": "swlimit", "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False,
                        "axes.spines.right": False, "axes.axisbelow": True, "figure.constrained_layout.use": True}
import matplotlib.pyplot as plt  # noqa: E402  (after its settings)
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter  # noqa: E402

OWN, OTHER = "#1f6fb2", "#a8a8a8"
ALLOW, DENIED = "granted-60", "denied-60"
# redis-cell 0.5.0 took 3.7 µs a decision on a machine whose INCR took 0.8 µs. A decision 2.5 times as cheap would have
# taken 3.7 / 2.5 = 1.48 µs there, which is 1.48 / 0.8 = 1.85 times INCR; and INCR is measured here.
CELL_TO_INCR = 3.7 / 0.8
CELL_SHARE = 2.5


@dataclass
class Bar:
    """A bar that a measurement is held against: a ratio's quartiles, or one number three times."""

    what: str
    most: float
    quartiles: list
    unit: str = ""
    least: bool = False  # the bar is the least that is wanted, not the most

    def line(self):
        """One line of a Markdown table."""
        low, middle, high = self.quartiles
        met = middle >= self.most if self.least else middle <= self.most
        exact = "" if low == high else f" ({low:.2f}–{high:.2f})"
        number = f"{middle:.0f}" if self.unit else f"{middle:.2f}"
        return (f"| {self.what} | {'≥' if self.least else '≤'} {self.most:g}{self.unit} | {number}{self.unit}{exact} | "
                f"{'met' if met else '**not met**'} |")


def bars(results):
    """The bars that these results can be held against."""
    found = []
    if "cpu" in results:
        spent, everyone = results["cpu"]
        labels = {one.key: one.label for one in everyone}

        def against(what, one, other, most):
            found.append(Bar(what, most, cpu.ratio(spent, one, other)))

        against("`ALLOW` granted ÷ floor (aim: 1.35)", ALLOW, "floor", 1.5)
        against("`ALLOW` granted ÷ `SET k v EX` (aim: 1.0)", ALLOW, "set", 1.1)
        against("`ALLOW` denied ÷ floor", DENIED, "floor", 1.2)
        against("`ALLOW` granted ÷ the least of a grant (own aim)", ALLOW, "effect", 1.2)
        against("`ALLOW` denied ÷ the least of a denial (own aim)", DENIED, "look", 1.2)
        against("`ALLOW` granted, N = 3600 ÷ N = 1", "granted-3600", "granted-1", 1.05)
        against("`ALLOW` denied, N = 3600 ÷ N = 1", "denied-3600", "denied-1", 1.05)
        against("`ALLOW` granted, 4096 counted ÷ N = 1", "granted-full", "granted-1", 1.1)
        against("`ALLOW` granted ÷ `INCR`; 1.85 is 2.5 × cheaper than redis-cell 0.5.0", ALLOW, "incr",
                round(CELL_TO_INCR / CELL_SHARE, 2))
        if (cell := f"{peers.Cell.name}-granted") in spent:
            found.append(Bar(f"{labels[cell]} ÷ `ALLOW` granted", CELL_SHARE, cpu.ratio(spent, cell, ALLOW),
                             least=True))
        lua = [key for peer in peers.ALL if peer.kind == "Lua" and (key := f"{peer.name}-granted") in spent]
        if lua:
            best = min(lua, key=lambda key: spread(spent[key])[1])
            found.append(Bar(f"{labels[best]}, the best Lua window ÷ `ALLOW` granted", 6,
                             cpu.ratio(spent, best, ALLOW), least=True))
    if "memory" in results:
        used, _ = results["memory"]
        for layout, most, what in (("one-1", 190, "1 count, N = 1"), ("one-60", 190, "1 count, N = 60"),
                                   ("one-4096", 190, "1 count, N = 4096"), ("counts-20", 350, "20 counts, N = 20")):
            found.append(Bar(f"memory per key, {what}", most, [used[layout]] * 3, " B"))
    return found


def bar_table(found):
    """Bars, as a Markdown table."""
    return ["| bar | wanted | measured (quartiles) | |", "|---|---:|---:|---|", *(bar.line() for bar in found)]


def write(folder, results, skipped, command):
    """Write RESULTS.md and the plots."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = ["# What swlimit costs", "", *circumstances(command), *(f"- Left out: {one}" for one in skipped), ""]
    if found := bars(results):
        text += ["## Bars", "", "Nothing fails when one is not met: times depend on the machine.", "",
                 *bar_table(found), "", *BAR_NOTE, "", *CELL_NOTE, ""]
    for part, (title, note, rows, plot) in SECTIONS.items():
        if part not in results:
            continue
        text += [f"## {title}", "", *note, ""]
        if plot:
            figure = plot(results[part])
            figure.savefig(folder / f"{part}.svg", metadata={"Date": None})
            plt.close(figure)
            text += [f"![{title}]({part}.svg)", ""]
        text += [*rows(results[part]), ""]
    (folder / "RESULTS.md").write_text("\n".join(text).rstrip() + "\n")


def circumstances(command):
    """Machine, versions, date, and how to do it again."""
    with Server(Binaries.installed(), module=None) as server, server.client() as client:
        info = client.info("server")
        kind = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
        allocator = client.info("memory")["mem_allocator"]
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    rust = subprocess.check_output(["rustc", "--version"], text=True, cwd=ROOT).split()[1]
    kernel = platform.release().split("-")[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"- Date: {date.today()}; repeat it with `{command}`.",
        f"- Machine: {processor()}, {os.cpu_count()} cores, {gib:.0f} GiB; {platform.system()} {kernel}. The server "
        "has one core for itself, the load generator another.",
        f"- Server: {kind}, {allocator}; swlimit {version}, built by Rust {rust}.",
    ]


def processor():
    """The processor's name, as Linux has it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


BAR_NOTE = [
    "A bar that lies below what the server asks for the least of a grant or of a denial (next table) is out of reach "
    "for any module that opens a key, reads the clock and replicates each grant as the effect it had; the own aims "
    "compare with that least."]

CELL_NOTE = [
    "redis-cell 0.5.0, which is not on crates.io, is not measured here. Where `INCR` took 0.8 µs, a granted decision "
    f"of it took 3.7 µs, {CELL_TO_INCR:.4g} × as much. To be {CELL_SHARE} × cheaper than that is to take at most "
    f"{CELL_TO_INCR:.4g} ÷ {CELL_SHARE} = {CELL_TO_INCR / CELL_SHARE:.2f} × `INCR`, and `INCR` is measured in the "
    "same run."]

CPU_NOTE = [
    "CPU time of the server's main thread (`schedstat`) per command, 32 commands a pipeline, 8 clients, 1000 keys. "
    "All contenders take turns on one server, round after round; ratios are taken within a round. The floor is a "
    "module command with the arguments and the reply of `ALLOW` that does nothing.",
    "",
    "The Lua windows are what each library itself sends (`EVALSHA` with its keys and arguments). The scripts of "
    "`@upstash/ratelimit` begin with the flag `allow-key-locking`, which Redis 7.0 refuses; it is removed, the rest is "
    "unchanged."]

LATENCY_NOTE = [
    "No pipelining; medians over the rounds. One connection is a Python client's, some µs slower than a compiled "
    "one's; 50 are `redis-benchmark`'s, in steps of 8 µs, and keep the server busy all the time: latency is then the "
    "time that the others' commands take. A 99.9th percentile says as much about the machine as about the command."]

MEMORY_NOTE = [
    f"Growth of `used_memory` per key, {memory.KEYS:,} keys with names of 16 bytes and a TTL (fewer keys with 60 and "
    "4096 counts). A sorted-set log keeps one member a request, swlimit one count a subinterval, however many requests "
    "that counts. Two counters are what a two-counter window keeps from its second window on, with names as short."]

SCALE_NOTE = [
    f"CPU per command with keys in random order (seed {scale.SEED}), one count a key; `INCR` on keys with a TTL. What "
    "grows is the price of memory that no cache holds, whatever the command."]

INSTRUCTIONS_NOTE = [
    "Counted by valgrind's callgrind, one key, no pipeline: no time plays a part. The module's own count repeats "
    "exactly and is compared exactly; what the server does for the module differs by up to 1 %, and so is only shown."]


def instruction_rows(costs):
    """What was counted."""
    return instructions.table(costs)


def cpu_plot(result):
    """Bars of CPU per command, with quartiles."""
    spent, everyone = result
    return bar_plot([plain(one.label) for one in everyone], [spread(spent[one.key]) for one in everyone],
                    [one.label.startswith(OWN_LABELS) for one in everyone], "server CPU per command (ns)", "{:,.0f}")


def memory_plot(result):
    """Bars of bytes per key, those of a few counts."""
    used, everything = result
    shown = [layout for layout in everything if used[layout.key] < 2_500]
    return bar_plot([plain(layout.label) for layout in shown], [[used[layout.key]] * 3 for layout in shown],
                    [layout.label.startswith(OWN_LABELS) for layout in shown], "bytes per key", "{:,.0f}")


OWN_LABELS = tuple(f"`{command}`" for command in ("ALLOW", "PEEK", "RECORD", "MALLOW"))


def plain(label):
    """A label without Markdown."""
    return label.replace("`", "")


def bar_plot(labels, quartiles, own, axis, number):
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


def latency_plot(result):
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


def scale_plot(spent):
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


SECTIONS = {
    "cpu": ("CPU per command", CPU_NOTE, lambda result: cpu.table(*result), cpu_plot),
    "latency": ("Latency", LATENCY_NOTE, lambda result: latency.table(*result), latency_plot),
    "memory": ("Memory per key", MEMORY_NOTE, lambda result: memory.table(*result), memory_plot),
    "scale": ("From a thousand keys to millions", SCALE_NOTE, scale.table, scale_plot),
    "instructions": ("Instructions per command", INSTRUCTIONS_NOTE, instruction_rows, None),
}
