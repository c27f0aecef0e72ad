"""The package's folders: no module imports from a folder above its own, and no imports form a circle."""

import ast
from graphlib import TopologicalSorter

from support.server import ROOT

PACKAGE = ROOT / "src/clients/python/swlimit"
ADAPTERS = {path.stem for path in (PACKAGE / "contrib").glob("*.py")} - {"__init__"}
FOLDERS = ["errors", "_core", "_protocol", "_transport", "limiters", "contrib", "adapters"]
"""From the bottom to the top. The modules outside of folders are limiters, or lead to an adapter in `contrib`."""


def height(path):
    place = path.parent.name if path.parent != PACKAGE else path.stem
    return FOLDERS.index(place if place in FOLDERS else "adapters" if place in ADAPTERS else "limiters")


def imported(path):
    """The modules that a module imports, types included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            own = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            modules = [folder / f"{alias.name}.py" for alias in node.names]
            yield from (one if one.exists() else own for one in modules)


IMPORTS = {path: set(imported(path)) for path in PACKAGE.rglob("*.py")}


def test_nothing_imports_from_above():
    assert all(path.exists() for others in IMPORTS.values() for path in others)
    assert [f"{path.name} imports {other.name}" for path, others in IMPORTS.items() for other in others
            if height(path) < height(other)] == []


def test_no_imports_form_a_circle():
    TopologicalSorter(IMPORTS).prepare()
