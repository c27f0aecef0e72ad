"""Fuzzing by coverage: libFuzzer on the crate in tests/fuzz, which stable Rust compiles with coverage counted, and what
Go's own fuzzing runs of the Go client.

An input that makes a target fail is printed, and stays in .cache/fuzz/found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "tests/fuzz"
KEPT = ROOT / ".cache/fuzz"
TARGETS = sorted(path.stem for path in HOME.glob("*.rs"))
LONGEST = 100  # of what is kept in the repository
GO_TARGETS = {"replies": "FuzzReplies"}
# As cargo-fuzz does without a sanitizer; what nightly Rust alone has is not needed for code without `unsafe`.
COUNTED = ["-Cpasses=sancov-module", *(f"-Cllvm-args=-sanitizer-coverage-{flag}" for flag in (
    "level=4", "inline-8bit-counters", "pc-table", "trace-compares")), "-Ccodegen-units=1", "--cfg=fuzzing"]


class Outcome(NamedTuple):
    """What became of a run: how often the target ran, and what the corpus reaches."""

    runs: int
    edges: int
    inputs: int
    failure: str | None


def corpus(target):
    """The inputs in the repository, one in hexadecimal digits on each line."""
    return [bytes.fromhex(line) for line in (HOME / f"{target}.corpus").read_text().split("\n")[:-1]]


def built():
    """The folder with the programs."""
    if not shutil.which("c++"):
        sys.exit("fuzz: libFuzzer needs a C++ compiler, such as g++")
    version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    host = re.search(r"host: (\S+)", version)[1]
    folder = ROOT / "target/fuzz"
    # With a target named, what runs only while it is built counts nothing.
    subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", HOME / "Cargo.toml",
                    "--target", host], check=True,
                   env=os.environ | {"RUSTFLAGS": " ".join(COUNTED), "CARGO_TARGET_DIR": str(folder)})
    return folder / host / "release"


def fuzz(program, seconds):
    """Runs a target on its corpus, and on what comes of that."""
    inputs, found = KEPT / program.name, KEPT / "found"
    for folder in (inputs, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus(program.name)):
        (inputs / f"corpus-{number}").write_bytes(data)
    done = subprocess.run([program, inputs, f"-max_total_time={seconds:.0f}", "-timeout=10", "-rss_limit_mb=2048",
                           f"-artifact_prefix={found}/{program.name}-"], stderr=subprocess.PIPE, text=True,
                          errors="replace")
    last = re.findall(r"#(\d+)\s+\w+\s+cov: (\d+) ft: \d+ corp: (\d+)", done.stderr)[-1:]
    failure = None if done.returncode == 0 else done.stderr[-3_000:]
    return Outcome(*map(int, last[0] if last else (0, 0, 0)), failure)


def fuzz_go(test, seconds):
    """Whether Go's fuzzing finds nothing; what it does is printed. Go keeps its corpus with what it has built."""
    words = ["test", "-run", f"{test}$", "-fuzz", f"{test}$", "-fuzztime", f"{seconds:.0f}s", "."]
    done = subprocess.run([ROOT / ".venv/bin/go", *words], cwd=ROOT / "src/clients/go",
                          env=os.environ | {"GOTOOLCHAIN": "local"})
    return done.returncode == 0


def keep(program):
    """Takes what reaches more than the corpus of the repository into it, the smallest inputs that do."""
    smallest = KEPT / f"{program.name}-smallest"
    smallest.mkdir(exist_ok=True)
    for path in smallest.iterdir():
        path.unlink()
    subprocess.run([program, "-merge=1", smallest, KEPT / program.name], check=True, stderr=subprocess.DEVNULL)
    found = {path.read_bytes() for path in smallest.iterdir() if path.stat().st_size <= LONGEST}
    (HOME / f"{program.name}.corpus").write_text("".join(
        f"{data.hex()}\n" for data in sorted(found, key=lambda data: (len(data), data))))


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="for each target (default: 10)")
    parser.add_argument("--keep", action="store_true", help="add to the corpus in tests/fuzz what reaches more")
    every = [*TARGETS, *GO_TARGETS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(every)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.targets) - {*every}:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    chosen, failed = options.targets or every, False
    folder = built() if {*chosen} & {*TARGETS} else None
    for target in chosen:
        if target in GO_TARGETS:
            failed |= not fuzz_go(GO_TARGETS[target], 60 * options.minutes)
            continue
        outcome = fuzz(folder / target, 60 * options.minutes)
        print(f"{target}: {outcome.runs} runs, {outcome.edges} edges reached by {outcome.inputs} inputs", flush=True)
        if outcome.failure:
            print(outcome.failure, file=sys.stderr)
            failed = True
        elif options.keep:
            keep(folder / target)
    return failed


if __name__ == "__main__":
    sys.exit(main())
