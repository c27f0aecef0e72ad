"""Pictures are small, and what they say can be read and searched."""

import re
import subprocess

import pytest
from matplotlib.figure import Figure

import svg
from support.server import ROOT

LISTED = subprocess.run(["git", "ls-files", "*.svg"], cwd=ROOT, capture_output=True, text=True, check=True)
LARGEST = 30_000  # bytes


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
