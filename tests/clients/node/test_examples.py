"""Each example in JavaScript or TypeScript, of the pages and of doc comments, compiles as part of a strict program."""

import json
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from docs.pages import PAGES, blocks
from support import node
from support.server import ROOT

pytestmark = pytest.mark.skipif(bool(os.environ.get("SWLIMIT_SERVERS")), reason="depends on no release")

AI_SDK = node.MODULES.with_name("ai-sdk")
NEXT = node.MODULES / "next-server.d.ts"
ADAPTERS = [node.PACKAGE / f"adapters/{name.removeprefix('./')}.ts"
            for name in json.loads((node.PACKAGE / "package.json").read_text())["exports"] if name != "."]
DOCUMENTED = re.compile(r"^(?:/\*\*(?P<comment>(?:(?!\*/)[\s\S])*)\*/\n)?"
                        r"export (?:async )?(?:function|class) (?P<name>\w+)", re.MULTILINE)
EXAMPLE = re.compile(r"^ \* @example\n(?P<text>(?: \*(?! @).*\n)*)", re.MULTILINE)
GIVEN = """
import { createClient } from "redis";
import { BudgetLimiter, HoldLimiter, Limiter, Limits } from "swlimit";
const client = createClient();
"""
"""What the examples of doc comments leave out."""
OPTIONS = ["--ignoreConfig", "--noEmit", "--strict", "--experimentalDecorators", "--skipLibCheck", "--target", "es2022",
           "--module", "nodenext", "--types", "node", "--typeRoots", node.MODULES / "node_modules/@types"]


@dataclass(frozen=True)
class Example:
    place: str
    text: str

    @property
    def folder(self):
        """Where the packages are that it imports."""
        return AI_SDK if '"swlimit/ai-sdk"' in self.text else node.MODULES


def of_pages():
    return [Example(block.place, block.text) for page in PAGES for block in blocks(page)
            if block.language in ("js", "ts")]


def of_adapters():
    """Of each exported function and class but errors and results; without a text where there is no example."""
    for source in ADAPTERS:
        seen = set()
        for found in DOCUMENTED.finditer(source.read_text()):
            name = found["name"]
            if name in seen or name.endswith(("Error", "Res")):
                continue
            seen.add(name)
            texts = EXAMPLE.findall(found["comment"] or "")
            for at, text in enumerate(texts or [""], 1):
                program = re.sub(r"^ \* ?", "", text, flags=re.MULTILINE)
                yield Example(f"{source.relative_to(ROOT)}:{name}:{at}", program and GIVEN + program)


EXAMPLES = [*of_pages(), *of_adapters()]


@cache
def errors(folder):
    """What the compiler says of all examples in a folder, by their places."""
    node.build()
    found = {}
    with tempfile.TemporaryDirectory(dir=folder) as programs:
        for at, example in enumerate(EXAMPLES):
            if example.folder == folder:
                Path(programs, f"{at}.mts").write_text(example.text)
        done = node.run(node.TSC, *OPTIONS, NEXT, *Path(programs).glob("*.mts"), cwd=folder)
    for line in done.stdout.splitlines():
        if at := re.match(r"\S*?(\d+)\.mts\(", line):
            found.setdefault(EXAMPLES[int(at[1])].place, []).append(line)
        else:
            assert line.startswith(" "), done.stdout
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_example_compiles(example):
    assert example.text, "its doc comment has no @example"
    assert errors(example.folder).get(example.place, []) == []
