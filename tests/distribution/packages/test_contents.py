"""What is in the packages: programs with the rights they need, stripped, and fit for the systems they are named for."""

import hashlib
import json
import platform
import re
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from support.server import ROOT

MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
TARGETS = [f"{processor}-unknown-linux-{library}" for processor in MACHINES for library in ("gnu", "musl")]
FOLDERS = [ROOT / "src/daemon/packaging" / name for name in ("chart", "kubernetes")]
IN_FOLDERS = {str(path.relative_to(folder.parent)) for folder in FOLDERS for path in (folder, *folder.rglob("*"))}
# What is built, and the texts beside it.
LICENCES = {"LICENSE", "THIRD-PARTY-NOTICES"}
CONTENTS = {"swlimit": ("swlimit.so", {*LICENCES, "install.md", "redis_exporter.lua"}),
            "swlimitd": ("swlimitd", {*LICENCES, "install-swlimitd.md", "swlimitd.yaml", "limits.yaml",
                                      "swlimitd.service", "prometheus-alerts.yaml", "grafana-dashboard.json",
                                      *IN_FOLDERS})}
# What a Debian package holds, besides its copyright.
INSTALLED = {"swlimit": {("-rwxr-xr-x", "usr/lib/redis/modules/swlimit.so"),
                         ("-rw-r--r--", "usr/share/doc/swlimit/THIRD-PARTY-NOTICES"),
                         ("-rw-r--r--", "usr/share/doc/swlimit/install.md"),
                         ("-rw-r--r--", "usr/share/doc/swlimit/redis_exporter.lua")},
             "swlimitd": {("-rwxr-xr-x", "usr/bin/swlimitd"), ("-rw-r--r--", "etc/swlimitd/swlimitd.yaml"),
                          ("-rw-r--r--", "etc/swlimitd/limits.yaml"),
                          ("-rw-r--r--", "usr/lib/systemd/system/swlimitd.service"),
                          ("-rw-r--r--", "usr/share/doc/swlimitd/THIRD-PARTY-NOTICES"),
                          ("-rw-r--r--", "usr/share/doc/swlimitd/prometheus-alerts.yaml"),
                          ("-rw-r--r--", "usr/share/doc/swlimitd/grafana-dashboard.json"),
                          ("-rw-r--r--", "usr/share/doc/swlimitd/install-swlimitd.md")}}
# What such a system has whatever else it lacks, under the names of its files.
ALWAYS_THERE = {"gnu": r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-[\w-]+\.so\.\d", "musl": r"libc\.so"}
OLDEST_GLIBC = (2, 17)

each_tarball = pytest.mark.parametrize("name, target", [(name, target) for name in CONTENTS for target in TARGETS])


def output(*words):
    """What a command prints."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def test_dist_holds_these_packages_and_their_checksums(packages):
    expected = {packages.node()}
    for name in CONTENTS:
        expected |= {packages.tarball(target, name) for target in TARGETS if packages.has(target)}
        for processor, architecture in DEBIAN_NAMES.items():
            if packages.has(f"{processor}-unknown-linux-gnu"):
                expected |= {packages.debian(architecture, name), packages.rpm(processor, name)}
    expected |= {packages.folder / f"swlimit-{packages.version}{end}" for end in (".tar.gz", "-py3-none-any.whl")}
    expected |= {package.with_name(f"{package.name}.cdx.json") for package in expected}
    sums = packages.folder / "SHA256SUMS"
    assert set(packages.folder.iterdir()) == expected | {sums}
    assert sorted(sums.read_text().splitlines()) == sorted(
        f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}" for package in expected)


@each_tarball
def test_a_tarball_holds_what_was_built_its_licence_and_how_to_install_it(name, target, packages):
    with tarfile.open(packages.tarball(target, name)) as archive:
        found = {entry.name: entry for entry in archive}
    folder = packages.tarball(target, name).name.removesuffix(".tar.gz")
    built, texts = CONTENTS[name]
    assert set(found) == {folder, *(f"{folder}/{file}" for file in (built, *texts))}
    # The chart has its alerts, not a link to nothing.
    assert all(file.isfile() or file.isdir() for file in found.values())
    assert {file.mode for file in found.values() if file.isfile() and not file.name.endswith(built)} == {0o644}
    assert found[f"{folder}/{built}"].mode == 0o755
    assert {(entry.uid, entry.gid) for entry in found.values()} == {(0, 0)}


def test_the_packages_of_languages_hold_the_licence(packages):
    licence = (ROOT / "LICENSE").read_bytes()
    name = f"swlimit-{packages.version}"
    for package, folder in ((packages.node(), "package"), (packages.folder / f"{name}.tar.gz", name)):
        with tarfile.open(package) as archive:
            assert archive.extractfile(f"{folder}/LICENSE").read() == licence
    with zipfile.ZipFile(packages.folder / f"{name}-py3-none-any.whl") as wheel:
        assert wheel.read(f"{name}.dist-info/licenses/LICENSE") == licence


@each_tarball
def test_what_was_built_is_stripped_and_needs_only_what_its_systems_have(name, target, unpacked):
    built = unpacked(target, name) / CONTENTS[name][0]
    processor, library = target.split("-unknown-linux-")
    assert MACHINES[processor] in output("readelf", "--file-header", built)
    assert not re.search(r"\.symtab|\.debug_", output("readelf", "--sections", "--wide", built))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", built))
    is_static = (name, library) == ("swlimitd", "musl")
    assert bool(needed) != is_static and all(re.fullmatch(ALWAYS_THERE[library], name) for name in needed), needed
    assert not (is_static and "INTERP" in output("readelf", "--program-headers", built))
    wanted = re.findall(r"GLIBC_([\d.]+)", output("readelf", "--version-info", built))
    wanted = {tuple(int(part) for part in version.split(".")) for version in wanted}
    assert max(wanted) <= OLDEST_GLIBC if library == "gnu" else not wanted


@each_tarball
def test_what_was_built_does_not_tell_where(name, target, unpacked):
    built = (unpacked(target, name) / CONTENTS[name][0]).read_bytes()
    home = subprocess.run("echo ${CARGO_HOME:-$HOME/.cargo}", shell=True, capture_output=True, text=True).stdout.strip()
    assert {"swlimit": b"RedisModule_OnLoad", "swlimitd": b"swlimitd_requests_total"}[name] in built
    assert str(ROOT).encode() not in built
    assert home.encode() not in built


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("processor", MACHINES)
def test_a_debian_package_holds_the_very_same_as_the_tarball(name, processor, packages, unpacked, tmp_path):
    """Its name, version and architecture are right, it needs a C library, and what was built has mode 755."""
    package = packages.debian(DEBIAN_NAMES[processor], name)
    fields = dict(re.findall(r"^([\w-]+): (.*)", output("dpkg-deb", "--field", package), re.MULTILINE))
    assert (fields["Package"], fields["Version"], fields["Architecture"], fields["Depends"]) == (
        name, f"{packages.version}-1", DEBIAN_NAMES[processor], "libc6 (>= 2.17)")
    listing = output("dpkg-deb", "--contents", package)
    assert set(re.findall(r"^(-\S+) 0/0 .* \./(\S+)$", listing, re.MULTILINE)) == {
        ("-rw-r--r--", f"usr/share/doc/{name}/copyright"), *INSTALLED[name]}
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "root"], check=True)
    folder = unpacked(f"{processor}-unknown-linux-gnu", name)
    for _, path in INSTALLED[name]:
        assert (tmp_path / "root" / path).read_bytes() == (folder / path.rpartition("/")[2]).read_bytes()


def test_a_bill_of_materials_names_its_file_and_the_notices_each_of_its_parts(packages, unpacked):
    for bill in packages.folder.glob("*.cdx.json"):
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.read_text()) is None
        package = bill.with_name(bill.name.removesuffix(".cdx.json"))
        content = json.loads(bill.read_text())
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        assert content["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    target = f"{platform.machine()}-unknown-linux-gnu"
    for name in CONTENTS:
        notices = (unpacked(target, name) / "THIRD-PARTY-NOTICES").read_text()
        bill = json.loads(Path(f"{packages.tarball(target, name)}.cdx.json").read_text())
        others = {f"{part['name']} {part['version']}" for part in bill["components"] if part.get("purl")}
        assert others and {name for name in others if f"\n{name}: " not in notices} == set()


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("processor", MACHINES)
def test_an_rpm_installs_the_very_same_as_the_tarball(name, processor, packages, unpacked, tmp_path):
    """What rpm says of it is right, its digests too, and its configuration is its administrator's."""
    package = packages.rpm(processor, name)
    assert "digests OK" in output("rpm", "--checksig", package)
    fields = "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE}"
    said = output("rpm", "--query", "--package", "--queryformat", fields, package)
    assert said == f"{name} {packages.version} 1 {processor} MIT"
    assert "glibc >= 2.17" in output("rpm", "--query", "--package", "--requires", package).splitlines()
    configuration = {f"/{path}" for _, path in INSTALLED[name] if path.startswith("etc/")}
    assert set(output("rpm", "--query", "--package", "--configfiles", package).split()) == configuration
    root, folder = tmp_path / "root", unpacked(f"{processor}-unknown-linux-gnu", name)
    subprocess.run(["rpm", "--root", root, "--install", "--nodeps", "--noscripts", "--ignorearch", package], check=True)
    licences = {("-rw-r--r--", f"usr/share/licenses/{name}/{licence}") for licence in LICENCES}
    others = {(mode, path.replace("usr/lib/redis", "usr/lib64/redis")) for mode, path in INSTALLED[name]
              if not path.endswith("NOTICES")}
    for mode, path in licences | others:
        assert stat.filemode((root / path).stat().st_mode) == mode
        assert (root / path).read_bytes() == (folder / path.rpartition("/")[2]).read_bytes()
    listing = output("rpm", "--query", "--package", "--list", package).split()
    assert set(listing) == {f"/{path}" for _, path in licences | others}


@pytest.mark.parametrize("architecture", DEBIAN_NAMES.values())
def test_the_configuration_of_swlimitd_is_its_administrators(architecture, packages):
    """Files of configuration, which are kept when they were changed."""
    assert set(output("dpkg-deb", "--info", packages.debian(architecture, "swlimitd"), "conffiles").split()) == {
        f"/{path}" for _, path in INSTALLED["swlimitd"] if path.startswith("etc/")}
