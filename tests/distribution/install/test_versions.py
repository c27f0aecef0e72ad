"""All parts have one version, and no command says that it came with a later one."""

import json
import re
import tomllib

import pytest

from support.server import ROOT

WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
VERSION = WORKSPACE["package"]["version"]
# Of crates beside the workspace: which of its own they take, besides what these take.
OTHER_LOCKS = {"scripts/bench": ["server/budget", "clients/rust", "server/window"],
               "tests/fuzz": ["server/budget", "server/effect", "server/hold", "server/window"]}


def test_every_part_has_the_version_of_the_workspace():
    found = {name: crate["version"] for name, crate in WORKSPACE["dependencies"].items() if "path" in crate}
    for lock in (ROOT / folder / "Cargo.lock" for folder in (".", *OTHER_LOCKS)):
        packages = tomllib.loads(lock.read_text())["package"]
        found |= {f"{lock}: {package['name']}": package["version"] for package in packages
                  if package["name"].startswith("swlimit")}
    found["package.json"] = json.loads((ROOT / "src/clients/node/package.json").read_text())["version"]
    for folder, package in (("src/clients/node", ""), *((f"tests/clients/{name}", "../../../src/clients/node")
                                                        for name in ("node", "ai-sdk"))):
        lock = f"{folder}/package-lock.json"
        found[lock] = json.loads((ROOT / lock).read_text())["packages"][package]["version"]
    python = (ROOT / "src/clients/python/swlimit/__init__.py").read_text()
    found["Python"] = re.search(r'__version__ = "(.+)"', python)[1]
    packaging = ROOT / "src/daemon/packaging"
    for file in (*packaging.glob("kubernetes/*.yaml"), *(ROOT / "docs").rglob("*.md")):
        for image, version in re.findall(r"/(swlimit[\w-]*):(\d+\.\d+\.\d+)", file.read_text()):
            found[f"{image} in {file.name}"] = version
    for name, version in re.findall(r"^(version|appVersion): (.*)", (packaging / "chart/Chart.yaml").read_text(), re.M):
        found[f"{name} of the chart"] = version
    assert len(found) > 20
    assert found == dict.fromkeys(found, VERSION)


def test_one_rust_builds_the_module_and_one_all_the_rest():
    """The manifests say which: pages and the recipe of the image name no other."""
    manifests = {path.parent.name: tomllib.loads(path.read_text())["package"]["rust-version"]
                 for pattern in ("*/Cargo.toml", "*/*/Cargo.toml") for path in (ROOT / "src").glob(pattern)}
    rest, = {manifests.pop("rust"), manifests.pop("daemon")}
    assert len(manifests) > 3 and all(needed == {"workspace": True} for needed in manifests.values())
    files = [ROOT / "src/daemon/packaging/Containerfile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = re.compile(r"\b[Rr]ust[ :](1\.\d+)")
    found = {(file.name, version) for file in files for version in named.findall(file.read_text())}
    assert found == {(name, rest) for name in ("Containerfile", "README.md", "swlimitd.md", "rust.md")} | {
        ("rust.md", WORKSPACE["package"]["rust-version"])}


def test_the_changelog_begins_with_this_version():
    assert re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == VERSION


def test_no_command_came_with_a_later_version():
    def numbers(version):
        return [int(part) for part in version.split(".")]

    found = {file.name: re.search(r'since: c"(.+)"', file.read_text())
             for file in (ROOT / "src/server/module/commands").glob("*.rs")}
    since = {name: numbers(match[1]) for name, match in found.items() if match}
    assert len(since) > 15
    assert not [name for name, version in since.items() if version > numbers(VERSION)]


@pytest.mark.parametrize("folder", OTHER_LOCKS)
def test_the_lock_files_beside_the_workspace_are_of_these_manifests(folder):
    """Else `make bench` or `make fuzz` refuses it: after a new dependency, `cargo update --workspace` there."""
    locked = {package["name"]: {name.split()[0] for name in package.get("dependencies", ())}
              for package in tomllib.loads((ROOT / folder / "Cargo.lock").read_text())["package"]}
    manifests = [ROOT / f"src/{part}/Cargo.toml" for part in OTHER_LOCKS[folder]]
    for path in [*manifests, *(ROOT / folder).glob("*/Cargo.toml")]:
        manifest = tomllib.loads(path.read_text())
        parts = [manifest, *manifest.get("target", {}).values()]
        needed = {name for part in parts for name, how in part.get("dependencies", {}).items()
                  if isinstance(how, str) or not how.get("optional")}
        assert locked[manifest["package"]["name"]] == needed, path
