"""The command line of scripts/measure-accuracy: measure, print the tables, and write page and pictures."""

import argparse
import re
import sys
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from replay import ReplayError
from support.server import Server

from . import loads, picture, report
from .play import Player
from .survey import SUBINTERVALS, GuaranteeBroken, Survey

HOME = Path(__file__).resolve().parent
PAGE = HOME / "ACCURACY.md"
LOADS = "LOADS.md"  # not in the repository
UNITS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
QUICK_SCALE = 0.05
TELL = Console(stderr=True)


def main():
    options = arguments().parse_args()
    try:
        run(options)
    except (ReplayError, GuaranteeBroken) as error:
        TELL.print(f"[red]accuracy: {error}[/]", highlight=False)
        return 2 if isinstance(error, ReplayError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def arguments():
    parser = argparse.ArgumentParser(prog="measure-accuracy", description="""Play traffic through the module and
        through an exact sliding log, and compare. Without options: all loads; then ACCURACY.md and its pictures
        are written again. With --quick or --log nothing is written but what --output asks for.""")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="generated loads only, with few clients")
    choice.add_argument("--log", metavar="FILE", help="this access log or auth.log, and no other load; .gz is fine")
    parser.add_argument("--key", default="address", help="what tells the log's clients apart: fields, separated by "
                        "commas, or all (default: %(default)s)")
    parser.add_argument("--limit", type=positive, default=10, help="units per window, for the log (default: 10)")
    parser.add_argument("--window", type=duration, default="60s", help="for the log: 60, 30s, 5m, 1h (default: 60s)")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="write page and pictures into this folder")
    return parser


def run(options):
    chosen, missing = choose(options)
    output = options.output or (None if options.quick or options.log else HOME)
    with Server() as server, server.client() as client:
        player = Player(client)
        survey = Survey(player, describe(client.info()), missing)
        with progress(sum(len(survey.ways(load)) for load in chosen)) as advance:
            for load in chosen:
                survey.play(load, advance)
        survey.attack()
        tables = report.tables(survey)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            picture.draw(survey, output)
    for name, table in tables.items():
        print(f"\n## {name}\n\n{table}")
    if output:
        (output / PAGE.name).write_text(report.fill(PAGE.read_text(), tables))
        (output / LOADS).write_text(f"# Each load\n\n{tables['loads']}\n")


def choose(options):
    """The loads to play, and the names of those that are not there."""
    if options.log:
        load = loads.log(options.log, options.key, options.limit, options.window)
        for subintervals in SUBINTERVALS:
            if options.window % subintervals:
                TELL.print(f"[yellow]accuracy: N = {subintervals} is left out, it does not divide the window.[/]")
        return [load], []
    if options.quick:
        return loads.generated(QUICK_SCALE), []
    real, missing = [], []
    for file, load in loads.real_logs():
        if load:
            real.append(load)
        else:
            missing.append(file)
            TELL.print(f"[bold yellow]accuracy: {loads.DATA / file} is not there, so it is not measured.[/]")
    return real + loads.generated(), missing


def describe(info):
    """A server's name and version."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version", info["redis_version"])
    return f"{name} {version}, {info['mem_allocator']}, {info['arch_bits']} bits"


@contextmanager
def progress(steps):
    """A bar on the terminal; gives the function that advances it."""
    columns = TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=TELL, transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda: bar.advance(task)


def duration(text):
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)?", text.lower())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is no duration such as 60, 30s, 5m or 1h")
    return int(match[1]) * UNITS[match[2] or ""]


def positive(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no positive integer")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
