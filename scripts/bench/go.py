"""What a decision costs a program in Go, and what limiters in Go cost the server, each through its own library.

CPU of the process, in rounds that alternate, so that a busy machine meets all alike.
"""

import json
import re
import subprocess

from support.server import ROOT

from . import stores
from .cpu import rounded, spread
from .load import start_server

PROGRAM = "target/bench/go-bench"  # from the top, where all of this runs
LABELS = {"swlimit": "`swlimit`", "swlimit-direct": "`swlimit`, `Mode(Direct)`", "redisrate": "`swlimit/redisrate`",
          "redis_rate": "`go-redis/redis_rate`", "ulule": "`ulule/limiter`"}
DECISIONS = {"denied": ("a denial that is known", "≤ 150"), "local": ("only local, granted", "≤ 150"),
             "rate": ("`golang.org/x/time/rate`, which has one key", "")}


def version(name):
    """The release of a module that the comparison needs."""
    return re.search(rf"{name}(?:/v\d+)? v(\S+)", (ROOT / "scripts/bench/go/go.mod").read_text())[1]


def label(name):
    """How a limiter is called in tables."""
    shown = LABELS[name]
    return shown if "swlimit" in shown else f"{shown} {version(shown.strip('`'))}"


def command(*words):
    """How the program is started."""
    return {"args": [PROGRAM, *map(str, words)], "cwd": ROOT}


def measure(rounds):
    """What decisions cost the process, and what they cost the server by load and limiter."""
    with start_server() as server:
        print("go: the process", flush=True)
        own = json.loads(subprocess.check_output(**command("costs", server.port, rounds)))
    return own, stores.cpu(LABELS, command, rounds)


def table(own, found):
    """What came out, as Markdown tables."""
    rows = ["| the server decides, CPU of the process | `Limiter`, µs | go-redis' `Do`, µs | ÷ | wanted |",
            "|---|---:|---:|---:|---:|"]
    for tasks, pairs in own["asking"].items():
        ours, theirs = (rounded(spread(side)[1]) for side in zip(*pairs))
        low, middle, high = spread([mine / other for mine, other in pairs])
        rows.append(f"| {tasks} at a time | {ours} | {theirs} | {middle:.2f} ({low:.2f}–{high:.2f}) | ≤ 1.15 |")
    rows += ["", "| no server is asked, CPU of the process | ns | allocations | wanted |", "|---|---:|---:|---:|"]
    for name, (what, wanted) in DECISIONS.items():
        cost = own["deciding"][name]
        low, middle, high = spread(cost["Nanoseconds"])
        rows.append(f"| {what} | {middle:.0f} ({low:.0f}–{high:.0f}) | {cost['Allocations']} | {wanted} |")
    return [*rows, "", *stores.table("limiter", found, label)]
