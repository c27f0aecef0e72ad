"""Rust's own tests, which need no server: units, properties, simulations, and the examples of its documentation."""

import subprocess
from pathlib import Path

import pytest

from support.crates import buildable, made
from support.server import ROOT

# The folder of each crate, by its name there.
CRATES = {manifest.parent.name: manifest.parent for manifest in sorted((ROOT / "src").rglob("Cargo.toml"))
          if "node_modules" not in manifest.parts}


@pytest.fixture(scope="session")
def programs():
    """The programs of the crates' own tests, by the crate's name in `CRATES`; those left out are missing."""
    crates, _ = buildable()
    found = made("test", "--no-run", *crates, "--lib", "--bins")
    return {Path(manifest).parent.name: program for manifest, program in found}


@pytest.mark.parametrize("crate", CRATES)
def test_units(crate, programs, report):
    if crate not in programs:
        pytest.skip(buildable()[1])
    done = subprocess.run([programs[crate]], cwd=CRATES[crate], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report(done.stdout.splitlines()[-2])


@pytest.mark.long
def test_simulation(programs, report):
    """Seeds that nobody has seen: the first is printed, and the one that fails, which repeats the failure."""
    done = simulate(programs, "runs::any_number_of_events")
    report("; ".join(done.stderr.splitlines()[:2]))


@pytest.mark.long
def test_leases_on_a_grid(programs):
    """A choice of the cases of `scripts/simulate --leases`."""
    simulate(programs, "leases::a_choice_of_the_grid_keeps_its_promises")


def simulate(programs, test):
    if "rust" not in programs:
        pytest.skip(buildable()[1])
    words = [programs["rust"], f"simulation::{test}", "--exact", "--ignored", "--nocapture"]
    done = subprocess.run(words, cwd=CRATES["rust"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("crate", ["rust", "hold", "window"])
def test_large_models(crate, programs, report):
    """Every state within the larger bounds of the page of promises."""
    if crate not in programs:
        pytest.skip(buildable()[1])
    done = subprocess.run([programs[crate], "::all_", "--ignored"], cwd=CRATES[crate], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report(done.stdout.splitlines()[-2])


def test_documentation():
    crates, _ = buildable()
    done = subprocess.run(["cargo", "test", "--quiet", *crates, "--doc"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
