"""What is in the packages: the module with the rights it needs, stripped, and fit for the systems it is named for."""

import hashlib
import re
import subprocess
import tarfile

import pytest

from support.server import ROOT

MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
TARGETS = [f"{processor}-unknown-linux-{library}" for processor in MACHINES for library in ("gnu", "musl")]
# What such a system has whatever else it lacks, under the names of its files.
ALWAYS_THERE = {"gnu": r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-[\w-]+\.so\.\d", "musl": r"libc\.so"}
OLDEST_GLIBC = (2, 17)


def output(*words):
    """What a command prints."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def test_dist_holds_these_packages_and_their_checksums(packages):
    expected = {packages.node(), *(packages.tarball(target) for target in TARGETS)}
    expected |= {packages.debian(architecture) for architecture in DEBIAN_NAMES.values()}
    expected |= {packages.folder / f"swlimit-{packages.version}{end}" for end in (".tar.gz", "-py3-none-any.whl")}
    sums = packages.folder / "SHA256SUMS"
    assert set(packages.folder.iterdir()) == expected | {sums}
    assert sorted(sums.read_text().splitlines()) == sorted(
        f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}" for package in expected)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tarball_holds_the_module_its_licence_and_how_to_install_it(target, packages):
    with tarfile.open(packages.tarball(target)) as archive:
        found = {entry.name: entry for entry in archive}
    folder = packages.tarball(target).name.removesuffix(".tar.gz")
    assert set(found) == {folder, *(f"{folder}/{name}" for name in ("swlimit.so", "LICENSE", "install.md"))}
    assert found[f"{folder}/swlimit.so"].mode == 0o755
    assert {(entry.uid, entry.gid) for entry in found.values()} == {(0, 0)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_module_is_stripped_and_needs_only_what_its_systems_have(target, module_for):
    module = module_for(target)
    processor, library = target.split("-unknown-linux-")
    assert MACHINES[processor] in output("readelf", "--file-header", module)
    assert not re.search(r"\.symtab|\.debug_", output("readelf", "--sections", "--wide", module))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", module))
    assert needed and all(re.fullmatch(ALWAYS_THERE[library], name) for name in needed), needed
    wanted = re.findall(r"GLIBC_([\d.]+)", output("readelf", "--version-info", module))
    wanted = {tuple(int(part) for part in version.split(".")) for version in wanted}
    assert max(wanted) <= OLDEST_GLIBC if library == "gnu" else not wanted


@pytest.mark.parametrize("target", TARGETS)
def test_a_module_does_not_tell_where_it_was_built(target, module_for):
    module = module_for(target).read_bytes()
    home = subprocess.run("echo ${CARGO_HOME:-$HOME/.cargo}", shell=True, capture_output=True, text=True).stdout.strip()
    assert b"RedisModule_OnLoad" in module
    assert str(ROOT).encode() not in module
    assert home.encode() not in module


@pytest.mark.parametrize("processor", MACHINES)
def test_a_debian_package_holds_the_very_module_of_the_tarball(processor, packages, module_for, tmp_path):
    """Its name, version and architecture are right, it needs a C library, and the module's mode is 755."""
    package = packages.debian(DEBIAN_NAMES[processor])
    fields = dict(re.findall(r"^([\w-]+): (.*)", output("dpkg-deb", "--field", package), re.MULTILINE))
    assert (fields["Package"], fields["Version"], fields["Architecture"], fields["Depends"]) == (
        "swlimit", f"{packages.version}-1", DEBIAN_NAMES[processor], "libc6 (>= 2.17)")
    listing = output("dpkg-deb", "--contents", package)
    assert set(re.findall(r"^(-\S+) 0/0 .* \./(\S+)$", listing, re.MULTILINE)) == {
        ("-rwxr-xr-x", "usr/lib/redis/modules/swlimit.so"), ("-rw-r--r--", "usr/share/doc/swlimit/copyright"),
        ("-rw-r--r--", "usr/share/doc/swlimit/install.md")}
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "root"], check=True)
    module = tmp_path / "root/usr/lib/redis/modules/swlimit.so"
    assert module.read_bytes() == module_for(f"{processor}-unknown-linux-gnu").read_bytes()
