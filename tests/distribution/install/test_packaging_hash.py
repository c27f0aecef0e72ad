"""What makes .ci/run build the packages of all targets: a change of how they are built, and nothing else."""

import subprocess

import pytest

from support.server import ROOT


@pytest.fixture
def clone(tmp_path):
    """A clone without a past, as CI has it."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", folder], check=True)
    return folder


def hash_in(folder):
    return subprocess.run([folder / ".ci/packaging-hash"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name, matters", [
    ("scripts/package", True), ("scripts/sbom.py", True), ("src/daemon/rpm.yaml", True), ("Cargo.toml", True),
    ("Cargo.lock", True), ("src/daemon/Cargo.toml", True),
    ("src/clients/node/package.json", True), ("src/clients/node/package-lock.json", True),
    ("src/clients/python/pyproject.toml", True),
    ("README.md", False), ("src/daemon/main.rs", False), ("tests/clients/node/package-lock.json", False),
])
def test_what_decides_how_packages_are_built(clone, name, matters):
    before = hash_in(clone)
    assert len(before) == 65
    with open(clone / name, "a") as file:
        file.write("\n")
    assert (hash_in(clone) != before) == matters
    subprocess.run(["git", "-C", clone, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--all",
                    "--message", "Change"], check=True)
    assert (hash_in(clone) != before) == matters
