"""Pages, comments and texts of programs have no words that readers from everywhere stumble over: scripts/prose."""

import re
import subprocess
from collections import Counter

import pytest
import yaml
from pygments.lexers import BashLexer, get_lexer_for_filename
from pygments.token import Comment, String, Whitespace
from pygments.util import ClassNotFound

from docs.pages import prose
from support.server import ROOT

HOME = ROOT / "scripts/prose"
WORDS = {rule["pattern"]: rule["expected"] for rule in yaml.safe_load((HOME / "words.yml").read_text())}
PATTERNS = [re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE) for pattern in WORDS]
ROUGHLY = [re.compile(pattern.replace(" ", r"\W+"), re.IGNORECASE) for pattern in WORDS]
CODE = "\0"  # stands for what nobody reads as words, so that nothing is found across it
# The words of its time, those that are refused, others' words, and a copy.
LEFT_OUT = re.compile(r"CHANGELOG\.md|LICENSE|scripts/prose/.*|.*/test_prose\.py|tests/tools/data/.*|"
                      r"src/clients/go/swlimit\.lua|.*\.(lock|svg|png|json|sum|gz)")


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if not LEFT_OUT.fullmatch(name) and (ROOT / name).is_file()]


def words(path):
    """What a reader reads of a file, at the places where it stands."""
    if path.suffix == ".md":
        return re.sub(r"`[^`]*`", CODE, prose(path))
    text = path.read_text() + "\n"  # which some lexers need behind a comment
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = BashLexer()
    return "".join(read(kind, token) for _, kind, token in lexer.get_tokens_unprocessed(text))


def read(kind, token):
    if kind in Comment or kind in String.Doc:
        return re.sub(r"^\s*(//[/!]?|/\*+|\*+/?|#|--)", " ", token, flags=re.MULTILINE)
    if kind in String and not re.fullmatch(r"\W*", token):
        return token
    return token if kind in Whitespace or token.isspace() else CODE * len(token)


def found(path):
    """The words that are refused, each as often as it stands there."""
    if not any(pattern.search(path.read_text()) for pattern in ROUGHLY):
        return Counter()  # most files, which so need not be read as what they are
    text = words(path)
    return Counter(" ".join(match[0].split()).lower() for pattern in PATTERNS for match in pattern.finditer(text))


def test_readers_know_the_words():
    assert len(files()) > 500
    refused = {name: dict(words) for name in files() if (words := found(ROOT / name))}
    assert not refused, f"scripts/prose/words.yml says what to write: {WORDS}"


@pytest.mark.parametrize("name, text, expected", [
    ("a.rs", "/// It is told\n/// of them.\nfn anew() {}", ["told of", "is told"]),
    ("a.rs", 'fn f() { error("as of whosoever"); } // upon', ["upon", "whosoever"]),
    ("a.py", '"""Made anew."""\nanew = "in vain"  # whence\n', ["anew", "in vain", "whence"]),
    ("a.ts", "// lest\nconst upon = `hence ${upon}`;", ["lest", "hence"]),
    ("a.lua", "-- whoever\nlocal upon = 'anew'", ["whoever", "anew"]),
    ("a", "#!/bin/sh\n# anew\nanew\n", ["anew"]),
    ("a.md", "Anew, `anew`.\n\n```sh\nanew\n```\n", ["anew"]),
    ("a.rs", 'fn f() { g("he is", "told"); }', []),
])
def test_what_is_read(name, text, expected, tmp_path):
    (tmp_path / name).write_text(text)
    assert sorted(found(tmp_path / name).elements()) == sorted(expected)
