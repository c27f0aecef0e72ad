"""The workspace's other crates, built to be tested from outside."""

import subprocess

import pytest

from .server import ROOT


def needs(crate):
    """Skip the test, and say why, where this machine's Rust is too old for a crate: that is no defect of it."""
    asked = subprocess.run([ROOT / "scripts/crates"], capture_output=True, text=True, check=True)
    if crate in asked.stdout.split():
        pytest.skip(asked.stderr.strip())


def built(crate, path, *arguments):
    """The path, below `target`, of what cargo builds of a crate."""
    needs(crate)
    subprocess.run(["cargo", "build", "--quiet", "--package", crate, *arguments], cwd=ROOT, check=True)
    return ROOT / "target" / path
