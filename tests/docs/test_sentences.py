"""No fact stands on two pages: a sentence stands once, and other pages lead to it."""

import re
from collections import defaultdict

from docs.pages import PAGES, page_named, place_of, prose
from support.server import ROOT

LEAST = 9  # words; shorter sentences may be anybody's
# What each of them begins with: a reader needs one of them only.
OPENINGS = {page_named(f"{language}.md") for language in ("python", "node", "rust", "go")} | {ROOT / "README.md"}


def sentences(page):
    """The sentences of a page's paragraphs and lists, as words; those of tables name what the row is about."""
    text = prose(page).partition("\n## ")[2] if page in OPENINGS else prose(page)
    text = re.sub(r"<!--.*?-->|\*\*Next:\*\*.*", "", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^ *(\|.*|\[.*\]: .*|#.*)$", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        for sentence in re.split(r"(?<=[.:;!?])\s+", " ".join(paragraph.split())):
            words = re.findall(r"[\w`/.]+", sentence.lower())
            if len(words) >= LEAST:
                yield " ".join(words).rstrip(".")


def test_a_sentence_stands_once():
    places = defaultdict(set)
    for page in PAGES:
        for sentence in sentences(page):
            places[sentence].add(place_of(page))
    assert len(places) > 2000
    assert {sentence: sorted(pages) for sentence, pages in places.items() if len(pages) > 1} == {}
