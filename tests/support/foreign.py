"""Servers for another processor or C library than this machine's, made once and kept in the cache of releases.

Those for arm64 are Debian's, run by qemu. Those for musl, the C library of Alpine, are built with zig from Debian's
source, because no registry has any that load modules; they run through the loader of Debian's package of musl.
"""

import functools
import os
import platform
import shutil
import subprocess
import tarfile

from .releases import BOOKWORM_LIBRARIES, CACHE, LIBC, TRIXIE_LIBRARIES, download_packages
from .server import ROOT, Binaries

DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
LIBRARIES = {"bookworm": BOOKWORM_LIBRARIES, "trixie": TRIXIE_LIBRARIES}
ZIG = (ROOT / ".cache/package/zig/bin/python3", "-m", "ziglang")  # where scripts/package keeps it


def debian_server(suite, processor):
    """The redis-server of a Debian suite with its C library."""
    root = _unpacked(suite, ("redis-server", "redis-tools", *LIBRARIES[suite]), processor)
    server = root / "usr/bin/redis-server"
    return Binaries(f"{suite}'s redis-server on {processor}", [*_emulator(processor, root), server])


def program(path, processor):
    """The command that runs a program: one for another processor with the C library of Debian 12, if it needs one."""
    if processor == platform.machine():
        return [path]
    return [*_emulator(processor, _unpacked("bookworm", LIBC, processor)), path]


def musl_server(processor):
    """A redis-server that was built for musl."""
    root = _unpacked("bookworm", ("musl",), processor)
    loader = root / f"lib/{processor}-linux-musl/libc.so"
    server = _made(f"redis-musl-{processor}", functools.partial(_build_for_musl, processor)) / "redis-server"
    return Binaries(f"redis-server on {processor} with musl", [*_emulator(processor, root), loader, server])


def _emulator(processor, root):
    """What runs programs of another processor that find their libraries below `root`; nothing for this one's."""
    if processor == platform.machine():
        return []
    qemu = _unpacked("bookworm", ("qemu-user-static",), platform.machine()) / f"usr/bin/qemu-{processor}-static"
    return [qemu, "-L", root]


def _unpacked(suite, packages, processor):
    """A folder with the contents of packages of a Debian suite."""

    def unpack(folder):
        (folder / "usr/lib").mkdir(parents=True)
        (folder / "lib").symlink_to("usr/lib")  # where programs look for their loader
        for archive in download_packages(suite, packages, folder / "downloads", DEBIAN_NAMES[processor]):
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        shutil.rmtree(folder / "downloads")

    return _made(f"{packages[0]}-{suite}-{processor}", unpack)


def _build_for_musl(processor, folder):
    archive, = download_packages("bookworm", ("redis",), folder / "downloads", "source")
    with tarfile.open(archive) as files:
        files.extractall(folder / "source", filter="data")
    makefile, = folder.glob("source/*/src/Makefile")
    zig = " ".join(str(word) for word in ZIG)
    subprocess.run(["make", "-C", makefile.parent, f"-j{os.cpu_count()}", "redis-server", "MALLOC=libc", "OPT=-O1",
                    f"uname_M={processor}", f"CC={zig} cc -target {processor}-linux-musl -dynamic -w", f"AR={zig} ar",
                    "ARFLAGS=rcs", f"RANLIB={zig} ranlib"], check=True, stdout=subprocess.DEVNULL)
    shutil.move(makefile.parent / "redis-server", folder)
    shutil.rmtree(folder / "downloads")
    shutil.rmtree(folder / "source")


def _made(name, make):
    """The cache's folder of this name, with what `make` puts into it; one that failed is made again."""
    folder, unfinished = CACHE / name, CACHE / f"{name}.unfinished"
    if not folder.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder
