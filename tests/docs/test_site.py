"""The site holds every page, its links lead somewhere in it, and it fetches nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from docs.pages import place_of
from support import browser as browsers
from support.server import ROOT

OUTSIDE = re.compile(r"(https?:)?//")
FETCHING = {"script": "src", "img": "src", "source": "srcset", "link": "href", "iframe": "src", "use": "href"}

TABLES = """
return [...document.querySelectorAll("main table")].map((table) => [
  table.rows[1].innerText, table.parentElement.clientWidth, table.parentElement.scrollWidth,
  Math.max(...[...table.rows].map((row) => row.offsetHeight))])"""


class Page(HTMLParser):
    """What a page of the site links to, what it fetches, and the places in it that can be linked to."""

    def __init__(self, file):
        super().__init__()
        self.links, self.fetched, self.places = [], [], {""}
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places.add(found.get("id"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if target := found.get(FETCHING.get(tag)):
            self.fetched.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "site"
    subprocess.run([sys.executable, "-m", "book", folder], cwd=ROOT / "scripts", check=True)
    return folder


def test_it_holds_every_page_and_finds_words(site):
    pages = {place_of(page) for page in (ROOT / "docs").rglob("*.md")}
    made = {page.replace("README.md", "index.md").replace(".md", ".html") for page in pages}
    assert {place for place in made if not (site / place).exists()} == set()
    index, = site.glob("searchindex*.js")
    assert "mallow" in index.read_text()


def test_links_and_pictures_are_there_and_nothing_is_fetched_from_elsewhere(site):
    pages = {file: Page(file) for file in site.rglob("*.html")}
    for file, page in pages.items():
        assert [target for target in page.fetched if OUTSIDE.match(target)] == [], file
        for target in (*page.links, *page.fetched):
            path, _, place = target.partition("#")
            if re.match(r"\w+:", target) or file.name in ("404.html", "print.html", "toc.html"):
                continue
            other = (file.parent / unquote(path)).resolve() if path else file
            assert other.is_file(), (file, target)
            assert other not in pages or unquote(place) in pages[other].places, (file, target)
    for file in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", file.read_text()), file


@pytest.mark.long
def test_tables_can_be_read(site):
    """In a window of 1280 pixels none has to be scrolled sideways, and no row fills a quarter of the screen."""
    browser = browsers.start()
    try:
        browser.set_window_size(1280, 900)
        tables = 0
        for file in {*site.rglob("*.html")} - {site / name for name in ("404.html", "print.html", "toc.html")}:
            browser.get(file.as_uri())
            for begins, width, needed, highest in browser.execute_script(TABLES):
                assert needed <= width and highest <= 225, (file, begins, width, needed, highest)
                tables += 1
        assert tables > 100
    finally:
        browser.quit()
