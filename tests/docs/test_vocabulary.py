"""One word for one thing, in every language, and one sentence for one event."""

import re
import subprocess
from functools import cache

import pytest

from support.server import ROOT

FILES = {"Rust": ("clients/rust", ".rs"), "Python": ("clients/python/swlimit", ".py"), "Node": ("clients/node", ".ts"),
         "Go": ("clients/go", ".go")}
TEXT = re.compile(r'"((?:[^"\\\n]|\\.|\\\n)*)"|`([^`]*)`')
HOLE = re.compile(r"\$\{[^}]*\}|\{[^{}]*\}|%[.\d]*[sdfqv]")

# What each thing was called, as a name in the source, where one word is right for all languages.
OLD_NAMES = {
    "Core, Connection": {"Rust": r"\b(Link|Line)\b", "Python": r"\b\w*Wire\b", "Node": r"\bWire\b", "Go": r"\blink\b"},
    "Server": {"Rust": r"\bNode(Health)?\b", "Go": r"\bprimary\b"},
    "DenialCache": {"Rust": r"\bDenyCache\b", "Python": r"\bDenyCache\b", "Node": r"\bDenyCache\b"},
    "Member": {"Python": r"\bPart\b", "Node": r"\bShare\b", "Go": r"\bPart\b"},
    "unavailable": {"Rust": r"\b[Aa]way\b", "Python": r"\bServerAway\b|\b[Aa]way\b", "Node": r"\b[Aa]way\b",
                    "Go": r"\b[Aa]way\b"},
    "statistics": {"Node": r"\bget counts\b|\bget denied\b"},
    "unless_blocked": {"Python": r"\bnx\b"},
    "FailurePolicy": {"Rust": r"\bOnFailure\b", "Go": r"\bDecider\b"},
    "lookout, Told, Heard": dict.fromkeys(FILES, r"\b(\w*Lookout|lookout|Told|Heard)\b"),
}
# Not renamed yet, as `thing: language`. An entry goes with the last such name; the test refuses a name that comes back.
PENDING = """
Core, Connection: Go
Server: Go
Member: Node, Go
unavailable: Python, Node, Go
statistics: Node
FailurePolicy: Rust, Go
"""
# Events that are logged by each client, in these words.
SENTENCES = ["server … is unavailable (…); on_failure decides until it answers"]
SENTENCES_PENDING = {(sentence, language) for sentence in SENTENCES for language in FILES}

# How often src/ has words that HOUSE's readers stumble over: the number only falls.
PLAIN = re.compile(r"\b(nobody|asked|goes\s+on|so\s+many|so\s+long|"
                   r"who\s+(?:waits?|asks?|is|was|has|had|comes?|gets|may))\b", re.IGNORECASE)
MOST = 1_450


@cache
def sources(language):
    """The files of a client, without its tests."""
    folder, ending = FILES[language]
    left_out = {"tests", "simulation", "examples", "node_modules", "dist"}
    return {path: path.read_text() for path in sorted((ROOT / "src" / folder).rglob(f"*{ending}"))
            if not left_out & {*path.parts} and not re.search(r"_test\.go$|/tests?\.rs$", str(path))}


def old_names():
    """Where old names stand still: by thing and language, in how many places."""
    for thing, patterns in OLD_NAMES.items():
        for language, pattern in patterns.items():
            if places := sum(len(re.findall(pattern, text)) for text in sources(language).values()):
                yield (thing, language), places


def pending():
    rows = (line.rpartition(": ") for line in PENDING.strip().splitlines())
    return {(thing, language) for thing, _, languages in rows for language in languages.split(", ")}


def test_names_are_the_same_in_every_language(report):
    found = dict(old_names())
    for (thing, language), places in found.items():
        report(f"{thing}, in {language}: {places} old names")
    assert {one: places for one, places in found.items() if one not in pending()} == {}


@cache
def texts(language):
    """What a client says in sentences: errors and log lines, with … for what is filled in."""
    found = {re.sub(r"\\\n\s*", "", "".join(match)) for text in sources(language).values()
             for match in TEXT.findall(re.sub(r'"""[\s\S]*?"""', "", text))}
    return {HOLE.sub("…", one) for one in found if len(one.split()) > 3}


def test_an_event_has_the_same_sentence(report):
    """Prints the sentences that several languages have, side by side with the number that one has alone."""
    everywhere = {text: [language for language in FILES if text in texts(language)]
                  for text in set().union(*map(texts, FILES))}
    for text, languages in sorted(everywhere.items()):
        if len(languages) > 1:
            report(f"{', '.join(languages)}: {text}")
    for language in FILES:
        report(f"{language} alone: {sum(languages == [language] for languages in everywhere.values())} texts")
    assert all(len(texts(language)) > 30 for language in FILES)
    assert {(sentence, language) for sentence in SENTENCES for language in FILES
            if language not in everywhere.get(sentence, ())} <= SENTENCES_PENDING


def test_sentences_have_subjects(report):
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = sum(len(PLAIN.findall((ROOT / name).read_text(errors="ignore"))) for name in listed.split()
                if name.endswith((".rs", ".py", ".ts", ".go", ".lua")) and (ROOT / name).is_file())
    report(f"{count} of at most {MOST}")
    assert count <= MOST


@pytest.mark.parametrize("text, expected", [("%s is away (%v)", "… is away (…)"), ("${a} of {b:?}", "… of …")])
def test_holes(text, expected):
    assert HOLE.sub("…", text) == expected
