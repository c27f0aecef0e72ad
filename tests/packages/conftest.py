"""The packages that `make package` has left in dist/."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from support.server import ROOT


class Packages(NamedTuple):
    """What is published: where it is, and which version it must be."""

    folder: Path
    version: str

    def tarball(self, target, name="swlimit"):
        """The tarball for one of Rust's targets, of the module or of `swlimitd`."""
        return self.folder / f"{name}-v{self.version}-{target}.tar.gz"

    def debian(self, architecture, name="swlimit"):
        """The Debian package for an architecture, as Debian calls it."""
        return self.folder / f"{name}_{self.version}-1_{architecture}.deb"

    def node(self):
        """The package for Node.js, which tests/node tries."""
        return self.folder / f"swlimit-{self.version}.tgz"


@pytest.fixture(scope="session")
def packages():
    """All packages, with the version that the sources have."""
    identity = subprocess.run(["cargo", "pkgid", "--package", "swlimit"], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout
    return Packages(ROOT / "dist", re.search(r"[#@](\d+\.\d+\.\d+)$", identity.strip())[1])


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
