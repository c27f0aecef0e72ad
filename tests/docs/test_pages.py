"""The documentation's links lead somewhere, its shape is as agreed, and it leaves nothing out that the server knows."""

import json
import re

import pytest

from docs.pages import PAGES, page_named, place_of, prose
from support.server import ROOT

ALL_PAGES = [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
each_page = pytest.mark.parametrize("page", ALL_PAGES, ids=place_of)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)(.*?)\)", prose(page)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@each_page
def test_tables_have_at_most_six_columns(page):
    rows = re.findall(r"^\|.*\|$", prose(page), re.MULTILINE)
    assert all(len(re.split(r"(?<!\\)\|", row)) - 2 <= 6 for row in rows)


def test_every_command_and_option_is_documented(server):
    text = page_named("commands.md").read_text()
    syntaxes = {syntax.split()[0]: syntax for syntax in re.findall(r"^```text\n(SWLIMIT.*)", text, re.MULTILINE)}
    names = server.cli("COMMAND", "LIST", "FILTERBY", "MODULE", "swlimit").split()
    assert sorted(syntaxes) == sorted(name.upper() for name in names)
    for name, about in json.loads(server.cli("COMMAND", "DOCS", *names, flags=["-3", "--json"])).items():
        for token in re.findall(r'"token": "(\w+)"', json.dumps(about)):
            assert re.search(rf"(\[|\| ){token}\b", syntaxes[name.upper()]), f"{name} takes {token}"


def test_every_statistic_is_documented(server):
    text = page_named("operating.md").read_text()
    for field in re.findall(r"^(swlimit_\w+):", server.cli("INFO", "swlimit"), re.MULTILINE):
        assert f"`{field}`" in text
