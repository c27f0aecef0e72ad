"""Measure what swlimit costs, and say what came out: scripts/bench/RESULTS.md, after a full run."""

import argparse
import sys

from support.server import ROOT

from . import contenders, cpu, instructions, latency, memory, peers, report, scale

PARTS = ("instructions", "cpu", "latency", "memory", "scale")
PUBLISHED = ROOT / "scripts/bench"
ELSEWHERE = ROOT / ".cache/bench/report"


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds: a first look, nothing to publish")
    parser.add_argument("--only", metavar="PART,…", help=f"only these parts of {', '.join(PARTS)}")
    parser.add_argument("--accept", action="store_true",
                        help="record the instructions counted as the ones to compare with")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")

    skipped = [f"{name}: {why}" for name, why in peers.missing()]
    results = {}
    for part in PARTS:
        if part not in parts:
            continue
        if why := unavailable(part):
            skipped.append(f"{part}: {why}")
            print(f"bench: {skipped[-1]}", file=sys.stderr, flush=True)
            continue
        results[part] = MEASURE[part](options.quick)
        print("\n".join(["", *report.SECTIONS[part][2](results[part]), ""]), flush=True)
    if "instructions" in results:
        instructions.compare(results["instructions"], options.accept)
    if found := report.bars(results):
        print("\n".join([*report.bar_table(found), ""]))
    for one in skipped:
        print(f"bench: left out: {one}", file=sys.stderr)
    folder = ELSEWHERE if options.quick or options.only else PUBLISHED
    command = "make bench" if folder == PUBLISHED else " ".join(["scripts/bench/run", *sys.argv[1:]])
    report.write(folder, results, skipped, command)
    print(f"bench: wrote {(folder / 'RESULTS.md').relative_to(ROOT)}")


def unavailable(part):
    """Why a part cannot be measured here, if so."""
    if part == "instructions" and not instructions.available():
        return "no valgrind here"
    if part == "latency" and not latency.available():
        return "no redis-benchmark here"
    return None


MEASURE = {  # part -> measure it, quickly or not
    "instructions": lambda quick: instructions.measure(),
    "cpu": lambda quick: cpu.measure(contenders.everything, *((7, 0.1) if quick else (15, 0.3))),
    "latency": lambda quick: latency.measure(contenders.everything, *((3, 0.2) if quick else (7, 1.0))),
    "memory": lambda quick: memory.measure(),
    "scale": lambda quick: scale.measure(*((scale.SIZES[:-1], 3, 20_000) if quick else (scale.SIZES, 9, 100_000))),
}

main()
