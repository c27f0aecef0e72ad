"""The rooms of a crate, its modules directly in the crate, stand on each other, and so do its files: no circles."""

import re
from graphlib import CycleError, TopologicalSorter

import pytest

from support.server import ROOT

TESTS = re.compile(r"#\[cfg\(test\)\]\s*(pub(\(\w+\))? )?(mod \w+;|mod \w+ \{.*|use [^;]+;)", re.DOTALL)
USE = re.compile(r"(?m)^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);")


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


def leaves(tree):
    """The paths of a `use`: `a::{b, c::d}` is `a::b` and `a::c::d`."""
    head, brace, inner = tree.partition("{")
    if not brace:
        return [head.partition(" as ")[0].strip()]
    parts, depth = [""], 0
    for character in inner[:inner.rindex("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [head.strip() + leaf for part in parts if part.strip() for leaf in leaves(part)]


def files(crate):
    """The files that each file names in its code, by module. What `mod.rs` says of its own folder is no import."""
    root, modules = ROOT / "src" / crate, {}
    for path in root.rglob("*.rs"):
        *folders, name = path.relative_to(root).with_suffix("").parts
        if not {"examples", "tests", "simulation", "models", "lib", "main", "build"} & {*folders, name}:
            modules[tuple(folders) if name == "mod" else (*folders, name)] = path
    below = {}
    for module, path in modules.items():
        if path.name == "mod.rs":
            continue
        code = re.sub(r"//.*", "", TESTS.sub("", path.read_text()))
        paths = [leaf for tree in USE.findall(code) for leaf in leaves(tree)]
        below[module] = set()
        for words in (one.split("::") for one in paths + re.findall(r"\b(?:crate|super)(?:::\w+)+", code)):
            ups = words.count("super")
            place = () if words[0] == "crate" else module[:len(module) - ups] if ups else None
            if place is not None:
                place += tuple(word for word in words if word not in ("crate", "super", "self"))
                found = next((place[:end] for end in range(len(place), 0, -1) if place[:end] in modules), module)
                below[module] |= {found} - {module} if modules[found].name != "mod.rs" else set()
    return below


@pytest.mark.parametrize("crate", ["clients/rust", "daemon", "server/module"])
def test_no_files_form_a_circle(crate):
    below = files(crate)
    assert sum(map(len, below.values())) > 100
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join("/".join(module) for module in reversed(error.args[1])))


@pytest.mark.parametrize("crate", ["clients/rust", "daemon", "server/module"])
def test_no_room_stands_on_itself(crate):
    below = rooms(crate)
    assert sum(map(len, below.values())) > 10
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" stands on ".join(reversed(error.args[1])))
