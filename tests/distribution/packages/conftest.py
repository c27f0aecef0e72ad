"""The packages that `make package` has left in dist/."""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from support.server import ROOT

PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}  # by Debian's names


class Packages(NamedTuple):
    """What is published: where it is, and which version it must be. Only of these targets, if any are named."""

    folder: Path
    version: str
    targets: tuple

    def has(self, target):
        """Whether packages of this target were to be built."""
        return not self.targets or target in self.targets

    def _built(self, target):
        if not self.has(target):
            pytest.skip(f"NOT BUILT: {target}")

    def tarball(self, target, name="swlimit"):
        """The tarball for one of Rust's targets, of the module or of `swlimitd`."""
        self._built(target)
        return self.folder / f"{name}-v{self.version}-{target}.tar.gz"

    def debian(self, architecture, name="swlimit"):
        """The Debian package for an architecture, as Debian calls it."""
        self._built(f"{PROCESSORS[architecture]}-unknown-linux-gnu")
        return self.folder / f"{name}_{self.version}-1_{architecture}.deb"

    def rpm(self, processor, name="swlimit"):
        """The package for Fedora and its relatives, for a processor."""
        self._built(f"{processor}-unknown-linux-gnu")
        return self.folder / f"{name}-{self.version}-1.{processor}.rpm"

    def node(self):
        """The package for Node.js, which tests/clients/node tries."""
        return self.folder / f"swlimit-{self.version}.tgz"


@pytest.fixture(scope="session")
def packages():
    """All packages, with the version that the sources have."""
    identity = subprocess.run(["cargo", "pkgid", "--package", "swlimit"], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout
    targets = os.environ.get("SWLIMIT_TARGETS", "").split()
    return Packages(ROOT / "dist", re.search(r"[#@](\d+\.\d+\.\d+)$", identity.strip())[1], tuple(targets))


@pytest.fixture
def unpacked(packages, tmp_path):
    """Unpack the tarball for a target; the folder in it."""

    def unpacked(target, name="swlimit"):
        archive = packages.tarball(target, name)
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", tmp_path], check=True)
        return tmp_path / archive.name.removesuffix(".tar.gz")

    return unpacked


@pytest.fixture
def module_for(unpacked):
    """Unpack the tarball for a target; the module in it."""
    return lambda target: unpacked(target) / "swlimit.so"
