"""The documentation's links lead somewhere, its shape is as agreed, and it leaves nothing out that the programs say."""

import re
import subprocess

import pytest

from bench import readme
from book import house, moving, window
from docs.pages import PAGES, page_named, place_of, prose
from module.commands.declared import COMMANDS, syntax
from support.server import ROOT

ALL_PAGES = [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
FOLDERS = [folder for folder in (ROOT / "docs").iterdir() if folder.is_dir()]
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


def links(page):
    """The files of this repository that a page links to, by their place or by the address they are published at."""
    published = "https://github.com/swlimit/swlimit/blob/main/"
    for target in re.findall(r"\]\((.*?)\)", prose(page)):
        if target.startswith(published):
            yield ROOT / target.removeprefix(published).partition("#")[0]
        elif not target.startswith(("http:", "https:", "#")):
            yield (page.parent / target.partition("#")[0]).resolve()


@each_page
def test_published_links_lead_to_files(page):
    assert [file for file in links(page) if not file.exists()] == []


def test_every_page_can_be_reached_from_the_readme():
    found, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        found.add(page)
        left += [file for file in links(page) if file.suffix == ".md" and file not in found]
    assert {*map(place_of, (ROOT / "docs").rglob("*.md"))} - {*map(place_of, found)} == set()


@pytest.mark.parametrize("folder", [ROOT / "docs", *FOLDERS], ids=place_of)
def test_a_folder_lists_its_pages(folder):
    missing = {*folder.glob("*.md")} - {*links(folder / "README.md")} - {folder / "README.md"}
    assert not missing


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=place_of)
def test_a_page_says_what_it_is_for_and_where_to_go_on(page):
    _, opening, *_, end = page.read_text().strip().split("\n\n")
    assert re.match(r"[\w*`[]", opening), "behind its title, a page says in words what it is for"
    assert page.parent == ROOT / "docs" or re.match(r"\*\*Next:\*\* .*\]\(", end, re.DOTALL)


@each_page
def test_tables_begin_with_their_headers(page):
    """A blank line ends a table: the rows behind it would be shown as words."""
    tables = re.findall(r"(?:^ *\|.*\n)+", prose(page), re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n *\|[-:| ]+\|\n", table)] == []


@pytest.mark.parametrize("page", [page_named("design.md"), ROOT / "CONTRIBUTING.md"], ids=place_of)
def test_files_and_folders_that_are_named_are_there(page):
    """`NAME` in a name stands for any."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = re.findall(r"`([a-z][\w./-]*(?:/|\.(?:rs|py|lua|ts|json|yml)))`", prose(page))
    assert len(named) > 10

    def is_there(name):
        pattern = re.escape(name).replace("NAME", "[a-z_-]+") + ("" if name.endswith("/") else "$")
        return re.search(rf"(^|/){pattern}", files, re.MULTILINE)

    assert [name for name in named if not is_there(name)] == []


@each_page
def test_tables_have_at_most_six_columns(page):
    rows = re.findall(r"^\|.*\|$", prose(page), re.MULTILINE)
    assert all(len(re.split(r"(?<!\\)\|", row)) - 2 <= 6 for row in rows)


def test_every_command_is_shown_as_it_is_declared():
    shown = re.findall(r"^```text\n(SWLIMIT.*?)\n```", page_named("commands.md").read_text(), re.MULTILINE | re.DOTALL)
    assert sorted(shown) == sorted(on_the_page(name, about["arguments"]) for name, about in COMMANDS.items())


def on_the_page(name, arguments):
    """A command's arguments; quotas and clauses, which repeat and are long, are shown below, once."""
    clauses = [one for one in arguments if "multiple" in one and len(one.get("arguments", [])) > 2]
    named = [one | {"type": "string"} if one in clauses else one for one in arguments]
    lines = [f"{name} {syntax(named, '…', ' | ')}"]
    lines += [f"{one['name']}: {syntax([one | {'multiple': False}], other=' | ')}" for one in clauses]
    return "\n".join(lines)


def test_every_statistic_is_documented(server):
    text = page_named("operating.md").read_text()
    for field in re.findall(r"^(swlimit_\w+):", server.cli("INFO", "swlimit"), re.MULTILINE):
        assert f"`{field}`" in text


def test_the_table_of_the_readme_is_from_the_results():
    text = readme.README.read_text()
    assert readme.renewed(text, readme.RESULTS.read_text()) == text, "renew it by `python -m bench.readme`"


@pytest.mark.parametrize("drawn", [window, house], ids=lambda drawn: drawn.__name__)
def test_a_picture_is_as_drawn(drawn):
    assert drawn.FILE.read_text() == drawn.picture(), f"draw it by `python -m {drawn.__name__}`"


@pytest.mark.parametrize("file", moving.PICTURES, ids=lambda file: file.name)
def test_pictures_of_limits_that_move_are_as_computed(file):
    assert file.read_text() == moving.PICTURES[file](), "draw it by `python -m book.moving`"
