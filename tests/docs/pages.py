"""The documentation as its readers get it: pages, and the fenced blocks in them."""

import re
import textwrap
from dataclasses import dataclass

from support.server import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")),
         *sorted((ROOT / "src").glob("clients/*/README.md"))]
FENCED = re.compile(r"(?:^ *<!-- (?P<comment>.*?) -->\n)?^(?P<indent> *)```(?P<language>.*)\n"
                    r"(?P<text>(?:.*\n)*?)^(?P=indent)```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block, with the comment just above it, if any."""

    place: str  # such as README.md:12
    language: str
    text: str
    comment: str

    @property
    def excused(self):
        """Whether the page says why the block is not run, or names a test of its own that runs it."""
        test = re.fullmatch(r"run by (\S+)", self.comment)
        return self.comment.startswith("not run: ") or test is not None and (ROOT / test[1]).is_file()

    @property
    def is_output(self):
        """Whether this is what the program above it prints."""
        return self.language == "text" and self.comment == "output"


def page_named(name):
    """The page or picture of this name, in whichever folder of docs/ it is."""
    found, = (ROOT / "docs").rglob(name)
    return found


def place_of(page):
    """Where the page is, such as docs/kinds-of-limits/recipes.md."""
    return str(page.relative_to(ROOT))


def blocks(page):
    """The blocks of a page, in order."""
    text = page.read_text()
    return [Block(f"{place_of(page)}:{text.count(chr(10), 0, found.start('language')) + 1}", found["language"],
                  textwrap.dedent(found["text"]), found["comment"] or "") for found in FENCED.finditer(text)]


def prose(page):
    """The page without its blocks."""
    return FENCED.sub("", page.read_text())
