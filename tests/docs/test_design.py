"""The picture of the design is true: its rooms are there, and each imports only from those below it."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from book import house
from crates.test_rooms import rooms as rooms_of_crate
from support.server import ROOT

IMPORTS = {".py": r"^ *from (\.+[\w.]*) import", ".ts": r'^(?:import|export)[^;]*? from "(\.[^"]+)"'}


def rooms_of_package(folder):
    """The rooms that each room imports from, in Python or TypeScript."""
    below = {}
    for path in folder.rglob("*.*"):
        room = path.relative_to(folder).parts[0]
        if path.suffix in IMPORTS and room not in ("node_modules", "dist"):
            imports = re.findall(IMPORTS[path.suffix], path.read_text(), re.MULTILINE)
            below.setdefault(room, set()).update(room_of(path, name, folder) for name in imports)
    return below


def room_of(path, name, folder):
    """The room that an import by a relative name leads to."""
    if path.suffix == ".py":
        dots = len(name) - len(name.lstrip("."))
        name = "../" * (dots - 1) + name[dots:].replace(".", "/")
    target = Path(*path.parent.joinpath(name).resolve().relative_to(folder).parts[:1])
    return target.name if (folder / target).is_dir() else f"{target.stem}{path.suffix}"


@pytest.mark.parametrize("name, folder, shown", house.PARTS, ids=[folder for _, folder, _ in house.PARTS])
def test_rooms_import_from_below(name, folder, shown):
    shown = [room for room, _ in shown]
    assert [room for room in shown if not (ROOT / folder / room).exists()] == []
    if name == "Go client":
        return  # one package
    if folder in ("src/daemon", "src/client"):
        below = rooms_of_crate(Path(folder).name)
    else:
        below = rooms_of_package(ROOT / folder)
        TopologicalSorter({room: others - {room} for room, others in below.items()}).prepare()  # or there is a circle
    assert sum(map(len, below.values())) > 10
    assert {room: up for place, room in enumerate(shown) if (up := below[room] & {*shown[:place]})} == {}


def test_the_server_s_rooms_are_there():
    assert [folder for folder, _ in house.SERVER + house.ARITHMETIC if not (ROOT / folder).is_dir()] == []
