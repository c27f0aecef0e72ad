"""No text of Rust's `Debug`, which is for programmers, is displayed, logged or replied."""

import re

from support.server import ROOT

SOURCES = [path for part in ("clients/rust", "daemon", "server")
           for path in (ROOT / "src" / part).rglob("*.rs")
           if not {"tests", "simulation"} & {*path.relative_to(ROOT).parts} and path.stem not in ("tests", "vectors")]
# For programmers: what says that the program itself is wrong.
PROGRAMMERS = re.compile(r"\b(assert\w*|debug_assert\w*|panic|unreachable|todo|prop_assert\w*)!\([^;]*?;", re.DOTALL)
DEBUG = re.compile(r"\{[\w.]*:#?\?\}")


def debug_texts(source):
    """Each use of `Debug` in a text for others, in what is not a test."""
    source = re.split(r"^#\[cfg\(test\)\]\n(?:pub\(crate\) )?mod \w+ \{", source, flags=re.MULTILINE)[0]
    return DEBUG.findall(PROGRAMMERS.sub("", re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)))


def test_no_debug_text_is_displayed():
    assert len(SOURCES) > 100
    assert {str(path.relative_to(ROOT)): found for path in SOURCES if (found := debug_texts(path.read_text()))} == {}


def test_what_is_found():
    assert debug_texts('format!("not {name:?}"); write!(f, "{:#?}", it)') == ["{name:?}", "{:#?}"]
    assert debug_texts('assert!(a, "{a:?}"); panic!("{b:?}");\n#[cfg(test)]\nmod tests {\nformat!("{c:?}")}') == []
