"""Measure what swlimit costs, and say what came out: scripts/bench/RESULTS.md, after a full run."""

import argparse
import sys

from support.server import ROOT

from . import instructions, peers, readme, report
from .load import awake
from .sections import SECTIONS, lacking

PUBLISHED = ROOT / "scripts/bench"
ELSEWHERE = ROOT / ".cache/bench/report"


def main():
    options = arguments().parse_args()
    skipped = [f"{name}: {why}" for name, why in peers.missing()]
    results = {}
    for name in options.only:
        if missing := lacking(name):
            skipped.append(f"{name}: no {missing[0]} here")
            print(f"bench: {skipped[-1]}", file=sys.stderr, flush=True)
            continue
        with awake():
            results[name] = SECTIONS[name].measure(options)
        print("\n".join(["", *SECTIONS[name].table(results[name]), ""]), flush=True)
    for one in skipped:
        print(f"bench: left out: {one}", file=sys.stderr)
    full = not options.quick and not options.against and options.only == list(SECTIONS)
    folder = PUBLISHED if full else ELSEWHERE
    words = ["FILE" if word == options.log else word for word in sys.argv[1:]]
    report.write(folder, results, skipped, " ".join(["scripts/benchmark", *words]) if words else "make bench")
    if full:
        readme.main()
    print(f"bench: wrote {(folder / 'RESULTS.md').relative_to(ROOT)}")
    return guard(results["instructions"], options.accept) if "instructions" in results else 0


def arguments():
    parser = argparse.ArgumentParser(prog="benchmark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds: a first look, nothing to publish")
    parser.add_argument("--only", type=sections, default=list(SECTIONS), metavar="SECTION,…",
                        help=f"only these of {', '.join(SECTIONS)}")
    parser.add_argument("--against", metavar="REVISION", help="compare instructions with this revision's (a commit, a "
                        "tag), built here and counted in the same run; fails if a command takes over 1 %% more of the "
                        "module's own, so that a feature which is not used costs nothing")
    parser.add_argument("--log", metavar="FILE", help="an access log, to compare decisions with those of an "
                        "exact log of timestamps; .gz is fine")
    parser.add_argument("--accept", action="store_true",
                        help="record the instructions counted as the ones to compare with")
    return parser


def sections(text):
    """The sections that are named, in the order in which they are measured."""
    named = text.split(",")
    if unknown := set(named) - set(SECTIONS):
        raise argparse.ArgumentTypeError(f"no such section: {', '.join(sorted(unknown))}")
    return [name for name in SECTIONS if name in named]


def guard(counts, accept):
    """Say which counts differ, record them if that is wanted; the exit code."""
    for line in counts.differences():
        print(f"bench: {line}")
    if accept:
        counts.record()
        print(f"bench: recorded in {instructions.RECORDED.name}")
    for case in counts.grown():
        print(f"bench: {case}: more than 1 % above {counts.revision or 'what is recorded'}", file=sys.stderr)
    return 1 if counts.grown() else 0


sys.exit(main())
