"""What the published files hold of others is named, with its licence: `scripts/sbom.py`."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from support.server import ROOT

SBOM = [sys.executable, ROOT / "scripts/sbom.py"]
FILES = ["swlimit-v0.2.0-x86_64-unknown-linux-gnu.tar.gz", "swlimitd-v0.2.0-aarch64-unknown-linux-musl.tar.gz",
         "swlimitd_0.2.0-1_arm64.deb", "swlimit-0.2.0-1.x86_64.rpm", "swlimit-0.2.0.tgz", "swlimit-0.2.0.tar.gz",
         "swlimit-0.2.0-py3-none-any.whl"]


@pytest.fixture(scope="module")
def bills(tmp_path_factory):
    """The bill of each of these files, by the file's name."""
    return made(tmp_path_factory.mktemp("dist"))


def made(folder):
    for name in FILES:
        (folder / name).write_text(name)
    subprocess.run([*SBOM, "bills", folder], check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"})
    return {path.name.removesuffix(".cdx.json"): path.read_text() for path in folder.glob("*.cdx.json")}


def names(bill):
    return {component["name"] for component in json.loads(bill)["components"]}


def test_each_file_has_a_valid_one_that_depends_on_nothing_else(bills, tmp_path):
    assert set(bills) == set(FILES)
    for name, bill in bills.items():
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None, name
        component = json.loads(bill)["metadata"]["component"]
        assert component["hashes"][0]["content"] == hashlib.sha256(name.encode()).hexdigest()
        assert component["name"] == ("swlimitd" if name.startswith("swlimitd") else "swlimit")
    assert made(tmp_path) == bills


def test_they_name_what_is_linked_and_not_what_only_builds_or_tests(bills):
    module, daemon = (names(bills[name]) for name in FILES[:2])
    assert {"redis-module", "swlimit-window", "foldhash", "rust-std"} <= module
    assert {"swlimit-client", "tonic", "ring", "mimalloc", "rust-std"} <= daemon
    assert not {"proptest", "stateright", "bindgen", "serde_derive"} & (module | daemon)
    assert not {name for name in daemon if name.startswith("windows")}
    assert names(bills["swlimit-0.2.0.tgz"]) == {"cluster-key-slot"}
    assert "redis" in names(bills["swlimit-0.2.0-py3-none-any.whl"])


def test_what_is_linked_has_a_licence_that_may_be_linked(bills):
    """Of several to choose from, one suffices. `cargo deny` says the same of what only builds, too."""
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    for bill in (json.loads(bills[name]) for name in FILES[:4]):
        for component in bill["components"]:
            expression = component["licenses"][0]["expression"]
            each = [re.split(r" OR ", part.strip("() ")) for part in expression.split(" AND ")]
            assert all(allowed & {one.strip("() ") for one in ones} for ones in each), (component["name"], expression)


def test_all_crates_come_from_the_registry():
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sources = {package.get("source") for package in packages if not package["name"].startswith("swlimit")}
    assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}


@pytest.mark.parametrize("package, file", [("swlimit", FILES[0]), ("swlimitd", FILES[1])])
def test_the_notices_have_the_licence_of_each_part(package, file, bills):
    target = re.search(r"0-(.+)\.tar", file)[1]
    text = subprocess.run([*SBOM, "notices", package, target], capture_output=True, text=True, check=True).stdout
    for component in json.loads(bills[file])["components"]:
        if not component["name"].startswith("swlimit"):
            assert re.search(rf"(?m)^{component['name']} {re.escape(component['version'])}: ", text), component
    assert "Permission is hereby granted" in text
    assert "Apache License" in text
