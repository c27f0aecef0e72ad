"""when-it-goes-wrong.md says what to do about every error and log line that the programs have."""

import re

import pytest

from docs.pages import page_named
from support.server import ROOT

SPANS = re.findall(r"`([^`\n]+)`", page_named("when-it-goes-wrong.md").read_text().replace(r"\|", "|"))
CODES = "ERR|WRONGTYPE|OOM|NOPERM|CROSSSLOT|TRYAGAIN|UNBLOCKED|CLUSTERDOWN|MOVED|ASK"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
HOLE = re.compile(r"\{[^{}]*\}|%[.\d]*[sdfqv]|\$\{[^{}]*\}")

# The server says it in its own words; and a note on a variable, which says itself what to do.
THEIR_OWN = {"ERR wrong number of arguments", "{note}"}


def sources(folder, ending):
    """The texts of the programs in a folder, without their tests."""
    for file in sorted((ROOT / "src" / folder).rglob(f"*{ending}")):
        if not {"tests", "fake", "node_modules", "dist"} & {*file.parts} and not re.search(r"tests?\.\w+$", file.name):
            yield file.read_text().partition("#[cfg(test)]\nmod tests {")[0]


def is_explained(text):
    """Whether the page has this text; what is filled into it may be anything there."""
    text = re.sub(r"\\\n\s*", "", text)
    pattern = re.compile(".+".join(re.escape(part) for part in HOLE.split(text)))
    return any(pattern.fullmatch(span) for span in SPANS)


def errors_of_the_module():
    return {text for source in sources("server/module", ".rs") for text in LITERAL.findall(source)
            if re.match(rf"({CODES}) \S", text)}


def log_lines_of_rust():
    """The message of each: the last text in its macro that is no part of an expression."""
    for folder in ("clients/rust", "daemon"):
        for source in sources(folder, ".rs"):
            for begin in re.finditer(r"tracing::(?:error|warn|info)!\(", source):
                inside = source[begin.end():end_of(source, begin.end())]
                yield LITERAL.findall(inside)[-1].replace(r'\"', '"')


def end_of(source, begin):
    """Where the parenthesis ends that is open at `begin`."""
    depth = 1
    for at in range(begin, len(source)):
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if not depth:
            return at
    raise AssertionError(source[begin:begin + 80])


def log_lines_of_python():
    return {text for source in sources("clients/python", ".py")
            for text in re.findall(r'log\.(?:warning|error)\(\s*"(.*?)"', source)}


def log_lines_of_node():
    """Texts of warnings, which stand in the call or in a constant before it."""
    return {text for source in sources("clients/node", ".ts") if "emitWarning(" in source
            for text in re.findall(r"(?:emitWarning\(|const text =)\s*`(.*?)`", source)}


def log_lines_of_go():
    """The message is the first argument, or a variable `text` before the call; it has holes where it is not text."""
    begins = r"\b(?:log\(\)|log|slog)\.(?:Error|Warn|Info)\((?:fmt\.Sprintf\()?|\btext := fmt\.Sprintf\("
    for source in sources("clients/go", ".go"):
        for begin in re.finditer(begins, source):
            message = re.match(r'(?:"(?:[^"\\]|\\.)*"|[^",])*', source[begin.end():])[0]
            if message != "text":
                yield re.sub(r'"\s*\+[^"]*(?:"|$)', "{}", message).strip('"')


ALL = {"errors of the module": errors_of_the_module, "log lines of Rust": log_lines_of_rust,
       "log lines of Python": log_lines_of_python, "log lines of Node.js": log_lines_of_node,
       "log lines of Go": log_lines_of_go}


@pytest.mark.parametrize("kind", ALL)
def test_every_text_is_explained(kind):
    texts = {*ALL[kind]()} - THEIR_OWN
    assert len(texts) > 4
    assert {text for text in texts if not is_explained(text)} == set()


def test_every_error_of_commands_is_explained():
    table = page_named("commands.md").read_text().partition("\n## Errors\n")[2]
    errors = [re.sub(r"\d+ subintervals, above (\S+) \(\d+\)", r"… subintervals, above \1 (…)", error)
              for error in re.findall(r"^\| `([A-Z]+ [^`]+)`", table, re.MULTILINE)]
    assert len(errors) > 20
    missing = {error for error in errors if not is_explained(re.sub(r"'WORD'|holds \d+|…", "{}", error))}
    assert missing == set()


@pytest.mark.parametrize("place, pattern", [("clients/rust/error.rs", r"^    (\w+)(?:\(.*\))?,$"),
                                            ("clients/python/swlimit/errors.py", r"^class (\w+)\("),
                                            ("clients/node/core/errors.ts", r"^export class (\w+)"),
                                            ("clients/go/errors.go", r"^\t(Err\w+) +=|^type ([A-Z]\w+)")])
def test_every_error_of_a_client_is_explained(place, pattern):
    found = re.finditer(pattern, (ROOT / "src" / place).read_text(), re.MULTILINE)
    names = [next(filter(None, one.groups())) for one in found]
    said = " ".join(SPANS)
    assert names and [name for name in names if not re.search(rf"\b{name}\b", said)] == []
