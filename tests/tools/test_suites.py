"""Which failures of other libraries' tests are excused: those of tests that are named, with the error that is said."""

import sys

from support.server import ROOT

sys.path.append(str(ROOT / "scripts"))

from suites.explained import difference, named  # noqa: E402

SLIDES = difference("a window slides", r"'\d+' !== '\d+'", """
headers are sent
""")


def test_only_named_tests_are_excused_and_only_with_their_error():
    good = "headers are sent[1]\nerror: '61' !== '60'"
    assert named([good], [SLIDES]) == ("1: a window slides", [])
    for bad in ("headers are sent\nerror: 429 !== 200", "other headers are sent\nerror: '61' !== '60'"):
        assert named([good, bad], [SLIDES])[1] == [bad]
