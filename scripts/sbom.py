"""What is in the published files that others wrote: their licences, and a bill of materials (CycloneDX) for each file.

`sbom.py notices PACKAGE TARGET` prints the licences of the crates that a program for that target is made of.
`sbom.py bills FOLDER` writes a bill beside each file in the folder, as FILE.cdx.json. All that it says follows from the
files, from the sources and from SOURCE_DATE_EPOCH.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "https://github.com/swlimit/swlimit"
LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice|unlicense)")
# Of a published file: the crate, and where it runs.
TARBALL = re.compile(r"(swlimitd?)-v[\d.]+-(.+)\.tar\.gz")
DEBIAN = re.compile(r"(swlimitd?)_[\d.]+-1_(amd64|arm64)\.deb")
RPM = re.compile(r"(swlimitd?)-[\d.]+-1\.(x86_64|aarch64)\.rpm")
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}


def output(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@cache
def crates(package, target):
    """What cargo knows of the crates that are linked into a package, without those that only run while it is built."""
    tree = output("cargo", "tree", "--locked", "--package", package, "--target", target, "--edges",
                  "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}")
    used = {tuple(line.split()[:2]) for line in tree.splitlines()}
    known = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    found = {crate["id"]: crate for crate in known["packages"] if (crate["name"], f"v{crate['version']}") in used}
    needs = {node["id"]: sorted(set(node["dependencies"]) & set(found)) for node in known["resolve"]["nodes"]}
    return found, needs


def licence(crate):
    return re.sub(r" */ *", " OR ", crate["license"] or "NOASSERTION")


def standard_library():
    """It is linked into each program."""
    version = output("rustc", "--version").split()[1]
    return {"type": "library", "bom-ref": f"rust-std@{version}", "name": "rust-std", "version": version,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "externalReferences": [{"type": "vcs", "url": "https://github.com/rust-lang/rust"}]}


def notices(package, target):
    """The licences, each text once, with the crates that have it."""
    found, _ = crates(package, target)
    others = [crate for crate in found.values() if crate["source"]]
    lines = [f"{package} contains the software below.", ""]
    holders = {}
    for crate in sorted(others, key=lambda crate: (crate["name"], crate["version"])):
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"{name}: {licence(crate)}, {crate['repository'] or 'https://crates.io/crates/' + crate['name']}")
        files = sorted(path for path in Path(crate["manifest_path"]).parent.iterdir()
                       if LICENCE.match(path.name) and path.is_file())
        for path in files:
            text = path.read_text(errors="replace").strip()
            holders.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    standard = standard_library()
    lines.append(f"{standard['name']} {standard['version']}: MIT OR Apache-2.0, https://github.com/rust-lang/rust")
    for text, names in holders.values():
        lines += ["", "=" * 100, "Of " + ", ".join(dict.fromkeys(names)) + ":", "", text]
    return "\n".join(lines) + "\n"


def rust(package, target):
    """The component of a program, its parts, and which part needs which."""
    found, needs = crates(package, target)
    checksums = {(crate["name"], crate["version"]): crate.get("checksum")
                 for crate in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    references = {identity: f"{crate['name']}@{crate['version']}" for identity, crate in found.items()}
    components = []
    for identity, crate in found.items():
        component = {"type": "library", "bom-ref": references[identity], "name": crate["name"],
                     "version": crate["version"], "licenses": [{"expression": licence(crate)}]}
        if crate["source"]:
            checksum = checksums[crate["name"], crate["version"]]
            component |= {"purl": f"pkg:cargo/{crate['name']}@{crate['version']}",
                          "hashes": [{"alg": "SHA-256", "content": checksum}]}
        if crate["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
        components.append(component)
    own = next(component for component in components if component["name"] == package)
    components.remove(own)
    standard = standard_library()
    dependencies = [{"ref": references[identity], "dependsOn": [references[need] for need in needs[identity]]}
                    for identity in found]
    next(one for one in dependencies if one["ref"] == own["bom-ref"])["dependsOn"].append(standard["bom-ref"])
    return {**own, "type": "application"}, [*components, standard], dependencies


def npm():
    """As npm itself says; what is only needed to build and test is left out."""
    words = ["npm", "sbom", "--sbom-format", "cyclonedx", "--omit", "dev", "--omit", "peer", "--omit", "optional",
             "--package-lock-only"]
    bill = json.loads(subprocess.run(words, cwd=ROOT / "src/clients/node", capture_output=True, text=True, check=True,
                                     env={**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}).stdout)
    return {**bill["metadata"]["component"], "name": "swlimit"}, bill["components"], bill["dependencies"]


def python():
    """What is installed beside it is chosen by pip: the bill says which versions may be."""
    project = tomllib.loads((ROOT / "src/clients/python/pyproject.toml").read_text())["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/clients/python/swlimit/__init__.py").read_text())[1]
    components = []
    for needed in project["dependencies"]:
        name = re.match(r"[\w.-]+", needed)[0]
        components.append({"type": "library", "bom-ref": name, "name": name, "purl": f"pkg:pypi/{name}",
                           "properties": [{"name": "swlimit:requirement", "value": needed}]})
    own = {"type": "library", "bom-ref": f"swlimit@{version}", "name": "swlimit", "version": version,
           "purl": f"pkg:pypi/swlimit@{version}", "licenses": [{"expression": project["license"]}]}
    return own, components, [{"ref": own["bom-ref"], "dependsOn": [one["bom-ref"] for one in components]}]


def parts_of(path):
    if match := TARBALL.fullmatch(path.name):
        return rust(*match.groups())
    if match := DEBIAN.fullmatch(path.name) or RPM.fullmatch(path.name):
        return rust(match[1], f"{PROCESSORS.get(match[2], match[2])}-unknown-linux-gnu")
    return npm() if path.suffix == ".tgz" else python()


def bill(path):
    """What the file is made of."""
    own, components, dependencies = parts_of(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    own = {**own, "hashes": [{"alg": "SHA-256", "content": digest}],
           "externalReferences": [{"type": "vcs", "url": SOURCE}],
           "properties": [{"name": "swlimit:file", "value": path.name}]}
    instant = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    return {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX",
            "specVersion": "1.6", "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{SOURCE}#{digest}").urn,
            "version": 1, "metadata": {"timestamp": instant.isoformat().replace("+00:00", "Z"), "component": own},
            "components": sorted(components, key=lambda one: one["bom-ref"]),
            "dependencies": sorted(dependencies, key=lambda one: one["ref"])}


def main(task, *words):
    if task == "notices":
        print(notices(*words), end="")
        return
    for path in sorted(Path(words[0]).iterdir()):
        path.with_name(path.name + ".cdx.json").write_text(json.dumps(bill(path), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
