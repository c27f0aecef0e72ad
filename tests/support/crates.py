"""The programs of the workspace's crates, to be tested from outside."""

import json
import subprocess

import pytest

from .server import ROOT


def buildable():
    """The crates that this machine's Rust builds, as cargo's arguments, and what it says about those left out."""
    asked = subprocess.run([ROOT / "scripts/crates"], capture_output=True, text=True, check=True)
    return asked.stdout.split(), asked.stderr.strip()


def built(crate, *target):
    """The program that cargo makes of a crate's target, such as `--example axum`.

    `make build-all` has made it, so that cargo only says where it is: asked for one crate alone, cargo would build its
    dependencies again, because it chooses features for all crates that it is asked for. Skips the test, and says why,
    where this machine's Rust is too old for the crate: that is no defect of it.
    """
    crates, left_out = buildable()
    if crate in crates:
        pytest.skip(left_out)
    (_, program), = made("build", *crates, *target)
    return program


def made(*words):
    """What cargo makes with these words, from which manifest, each as often as there are programs."""
    done = subprocess.run(["cargo", *words, "--message-format", "json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    messages = map(json.loads, done.stdout.splitlines())
    return [(message["manifest_path"], message["executable"]) for message in messages if message.get("executable")]
