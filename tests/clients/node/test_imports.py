"""The package's folders: no file imports from a folder above its own, and no imports form a circle."""

import re
from graphlib import TopologicalSorter

from support.node import PACKAGE

FOLDERS = ["util", "core", "protocol", "transport", "clients", "limiters", "adapters"]
"""From the bottom to the top; `index.ts`, outside, is above them all."""


def imports():
    """The files that each file imports, types included."""
    files = [PACKAGE / "index.ts", *(path for folder in FOLDERS for path in (PACKAGE / folder).glob("*.ts"))]
    return {path: {(path.parent / name).resolve().with_suffix(".ts")
                   for name in re.findall(r'from "(\.[^"]+)"', path.read_text())} for path in files}


def test_every_file_lies_in_a_folder():
    assert {path.parent.name for path in PACKAGE.glob("*/*.ts")} == set(FOLDERS)
    assert [path.name for path in PACKAGE.glob("*.ts")] == ["index.ts"]


def test_nothing_imports_from_above():
    height = {PACKAGE / folder: at for at, folder in enumerate(FOLDERS)} | {PACKAGE: len(FOLDERS)}
    assert [f"{path.name} imports {other.name}" for path, others in imports().items() for other in others
            if height[path.parent] < height[other.parent]] == []


def test_no_imports_form_a_circle():
    TopologicalSorter(imports()).prepare()
