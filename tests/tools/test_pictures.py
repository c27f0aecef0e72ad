"""Pictures are small, and what they say can be read and searched."""

import re
import subprocess

import pytest
from matplotlib.figure import Figure

import svg
from support.server import ROOT

LISTED = subprocess.run(["git", "ls-files", "*.svg"], cwd=ROOT, capture_output=True, text=True, check=True)
LARGEST = 16_000  # bytes


@pytest.mark.parametrize("file", LISTED.stdout.split())
def test_a_picture_is_small_and_its_text_is_text(file):
    path = ROOT / file
    assert path.stat().st_size <= LARGEST
    assert path.stem == "icon" or len(re.findall(r"<text[^>]*>[^<]", path.read_text())) > 3


def test_a_figure_loses_nothing_that_it_says(tmp_path):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 0.001, 1], [0, 0.12345, 3])
    axes.set_yticks([0, 3], ["0.001 %", "a & b"])
    axes.set_title('5.25 < 6.125, "k"')
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        svg.save(figure, file)
    text, again = (file.read_text() for file in files)
    assert text == again
    for said in (">0.001 %<", ">a &amp; b<", '>5.25 &lt; 6.125, "k"<'):
        assert said in text


def test_what_looks_alike_is_said_once():
    """Lines of one look are one path, tick marks among them, below the texts; a look of several is a class."""
    line, text = 'fill="none" stroke="#112233"', 'font-size="9px"'
    picture = svg.shared(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"><style>*{}</style>'
        f'<path d="m1 2v3" {line}/><text {text}>a</text><defs><path id="t" d="m0 0v3.5"/></defs>'
        f'<use x="4" y="5" stroke="#112233" xlink:href="#t"/><path d="m6 7h8" {line} x="1"/><text {text}>b</text>'
        '</svg>')
    assert picture == (
        '<svg xmlns="http://www.w3.org/2000/svg"><style>*{}.a{fill:none;stroke:#123}.b{font-size:9px}</style>'
        '<path class="a" d="m1 2v3M4 5v3.5"/><text class="b">a</text><path class="a" d="m6 7h8" x="1"/>'
        '<text class="b">b</text></svg>\n')
