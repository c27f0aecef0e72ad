"""The picture of the design is true: its rooms are there, and each imports only from those below it."""

from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from book import house
from clients.node.test_imports import imports
from clients.python.test_imports import IMPORTS
from crates.test_rooms import rooms as rooms_of_crate
from support.server import ROOT

FILES = {"src/clients/python/swlimit": IMPORTS, "src/clients/node": imports()}
"""The files that each file of a package imports."""


def rooms_of_package(folder):
    """The rooms that each room imports from, in Python or TypeScript."""
    below = {}
    for path, others in FILES[folder].items():
        room, *named = (one.relative_to(ROOT / folder).parts[0] for one in (path, *others))
        below.setdefault(room, set()).update(named)
    return below


@pytest.mark.parametrize("name, folder, shown", house.PARTS, ids=[folder for _, folder, _ in house.PARTS])
def test_rooms_import_from_below(name, folder, shown):
    shown = [room for room, _ in shown]
    assert [room for room in shown if not (ROOT / folder / room).exists()] == []
    if name == "Go client":
        return  # one package
    if folder in ("src/daemon", "src/clients/rust"):
        below = rooms_of_crate(Path(folder).relative_to("src"))
    else:
        below = rooms_of_package(folder)
        TopologicalSorter({room: others - {room} for room, others in below.items()}).prepare()  # or there is a circle
    assert sum(map(len, below.values())) > 10
    assert {room: up for place, room in enumerate(shown) if (up := below[room] & {*shown[:place]})} == {}


def test_the_server_s_rooms_are_there():
    shown = [folder for folder, _ in house.SERVER + house.ARITHMETIC]
    assert [folder for folder in shown if not (ROOT / folder).is_dir()] == []
    folders = {path.relative_to(ROOT).parts[2] for path in (ROOT / "src/server").iterdir() if path.is_dir()}
    assert folders == {Path(folder).parts[2] for folder in shown}
