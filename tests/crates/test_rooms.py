"""The rooms of a crate, its modules directly in the crate, stand on each other: no import leads back up."""

import re
from graphlib import CycleError, TopologicalSorter

import pytest

from support.server import ROOT

TESTS = re.compile(r"#\[cfg\(test\)\]\s*(pub(\(\w+\))? )?(mod \w+;|mod \w+ \{.*|use [^;]+;)", re.DOTALL)


def rooms(crate):
    """The rooms that each room names in its code, its tests left out."""
    below = {}
    for path in (ROOT / "src" / crate).rglob("*.rs"):
        room = path.relative_to(ROOT / "src" / crate).parts[0].removesuffix(".rs")
        if room in ("lib", "main", "examples", "tests", "simulation", "build"):
            continue
        code = re.sub(r"//.*", "", TESTS.sub("", path.read_text()))
        named = re.findall(r"\bcrate::(\w+)", code)
        for group in re.findall(r"\bcrate::\{([^;]*)\}", code):
            named += re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\{[^{}]*\}", "", group))
        below.setdefault(room, set()).update(named)
    return {room: {other for other in named if other != room and other in below} for room, named in below.items()}


@pytest.mark.parametrize("crate", ["clients/rust", "daemon", "server/module"])
def test_no_room_stands_on_itself(crate):
    below = rooms(crate)
    assert sum(map(len, below.values())) > 10
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" stands on ".join(reversed(error.args[1])))
