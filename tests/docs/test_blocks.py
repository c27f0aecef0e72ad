"""Every block of the documentation does what its page says, run as a reader would copy it.

Changed are only the port (readers have 6379) and the path of the module. What a page types into redis-cli, a
shell or Python runs in the page's order against one server; each other block runs by itself.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from docs.pages import PAGES, blocks, place_of
from support import node, releases
from support.crates import built
from support.server import MODULE, ROOT, Binaries, Server, free_port

BLOCKS = {page: blocks(page) for page in PAGES}
OUTPUTS = {block: after.text for page in BLOCKS.values() for block, after in pairwise(page) if after.is_output}
SHELL = ("sh", "console")
TYPED = ("redis", "python", *SHELL)
BY_THEMSELVES = ("conf", "ini", "js", "ts", "rust", "go")
HARMLESS = re.compile(r"(redis-cli|scripts/replay) [^;&|`$<>]*$")  # the shell commands that may be run where tests run
BY_THE_CLOCK = re.compile(r"SWLIMIT\.(ALLOW|ACQUIRE|PEEK|RECORD|MALLOW) (?!.* AT )")
PROMPTS = {"redis": "redis> ", "console": "$ "}


def typed(block):
    """The lines of a block that a reader types, and whether the block also shows what comes back."""
    prompt = PROMPTS.get(block.language)
    lines = block.text.splitlines()
    if not prompt or not lines[0].startswith(prompt):
        return lines, False
    return [line.removeprefix(prompt) for line in lines if line.startswith(prompt)], True


def is_typed(block):
    """Whether the block must run in its page's order."""
    return not block.excused and block.language in TYPED and (
        block.language not in SHELL or all(map(HARMLESS.match, typed(block)[0])))


def of_language(*languages):
    """A parametrization: all blocks in these languages that must run."""
    return pytest.mark.parametrize("block", [
        pytest.param(block, id=block.place) for page in PAGES for block in BLOCKS[page]
        if block.language in languages and not block.excused])


@pytest.mark.parametrize("page", PAGES, ids=place_of)
def test_every_block_is_run_or_says_why_not(page):
    fences = re.findall(r"^ *```", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(BLOCKS[page]), "a fence is not closed as it was opened"
    left = [block.place for block in BLOCKS[page]
            if not (block.excused or is_typed(block)) and block.language not in ("text", *BY_THEMSELVES)]
    assert not left, "neither run nor marked `<!-- not run: why -->` or `<!-- run by FILE -->`"


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_typed, BLOCKS[page]))],
                         ids=place_of)
def test_what_a_page_types(page, start):
    server = start()
    for block in filter(is_typed, BLOCKS[page]):
        printed = type_in(server, block)
        if block in OUTPUTS:
            assert_printed(OUTPUTS[block], printed, block.place)


def type_in(server, block):
    """What a block prints; if it shows the replies itself, they are compared."""
    lines, shows_replies = typed(block)
    printed = RUNNERS[block.language](server, "".join(f"{line}\n" for line in lines))
    if shows_replies:
        shown = re.sub(rf"^{re.escape(PROMPTS[block.language])}.*\n", "", block.text, flags=re.MULTILINE)
        assert_printed(shown, printed, block.place, loosely=any(map(BY_THE_CLOCK.match, lines)))
    else:
        assert "(error)" not in printed, f"{block.place} prints:\n{printed}"
    return printed


def redis_cli(server, text):
    return server.cli(flags=["--no-raw"], stdin=text.encode())


def shell(server, text):
    script = f'redis-cli() {{ command redis-cli -p {server.port} "$@"; }}\n{with_port(server, text)}'
    return run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=os.environ | {"COLUMNS": "120"})


def python(server, text):
    return run([sys.executable, "-c", with_port(server, text)],
               env=os.environ | {"PYTHONPATH": str(ROOT / "src/clients/python")})


RUNNERS = {"redis": redis_cli, "python": python} | dict.fromkeys(SHELL, shell)


def run(words, **options):
    """What a program prints that ends well."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_port(server, text):
    return re.sub(r"\b6379\b", str(server.port), text)


def assert_printed(shown, printed, place, loosely=False):
    """A line `…` in what is shown stands for any lines. Loosely: times, in ms, may be off by a tenth."""
    def tidy(text):
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    pattern = "\n".join(re.escape(line) for line in tidy(shown)).replace(re.escape("…") + "\n", "(?:.*\n)*")
    times = []
    if loosely:
        pattern = re.sub(r"\d{4,}", lambda time: times.append(int(time[0])) or r"(\d{4,})", pattern)
    found = re.fullmatch(pattern, "\n".join(tidy(printed)))
    assert found, f"{place} shows\n{shown}\nbut this was printed:\n{printed}"
    assert [int(time) for time in found.groups()] == [pytest.approx(time, rel=0.1) for time in times], place


@of_language("conf")
def test_configuration_files(block, start, binaries, tmp_path):
    conf = tmp_path / "redis.conf"
    conf.write_text(with_module(block.text))
    server = start(binaries=Binaries("conf", [*binaries.command, str(conf)], binaries.cli, binaries.env), module=None)
    assert server.cli("SWLIMIT.PEEK", "k", 5, 60, 5).startswith("1\n5\n5\n")
    for value in re.findall(r"max-subintervals (\d+)", block.text):
        assert server.cli("CONFIG", "GET", "swlimit.max-subintervals").split("\n")[1] == value


def with_module(text):
    """The text with the path of the module that is tested; it names one."""
    text, count = re.subn(r"/\S*swlimit\.so", str(MODULE), text)
    assert count, text
    return text


@of_language("ini")
def test_systemd_drop_ins(block, tmp_path):
    """systemd starts what the distribution's unit starts, and the module besides, and hears that it is ready."""
    text = re.sub(r"\\\n\s*", "", block.text)  # lines that go on
    emptied, line = re.findall(r"^ExecStart=(.*)", text, re.MULTILINE)
    name = Path(line.split()[0]).name
    own = shlex.split(re.search(r"^ExecStart=(.*)", distributed_unit(name), re.MULTILINE)[1])
    words = shlex.split(with_module(line))
    assert (emptied, words) == ("", [*own, "--loadmodule", str(MODULE), *words[len(own) + 2:]])

    conf = tmp_path / "server.conf"
    conf.write_text("daemonize yes\n")  # as the distribution's own says
    fetched = releases.CACHE.glob(f"*/bin/{name}")
    program = shutil.which(name) or next(fetched, None) or lacking(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        with Server(Binaries("drop-in", [str(program), str(conf), *words[2:]]), module=None,
                    env={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            while "READY=1" not in systemd.recv(4096).decode():
                pass


def distributed_unit(name):
    """The text of Debian's unit for this server: that of the installed package, or of one fetched to test with."""
    places = [Path("/usr/lib/systemd/system"), *releases.CACHE.glob("*/root/usr/lib/systemd/system")]
    found = [place / f"{name}.service" for place in places if (place / f"{name}.service").exists()]
    return found[0].read_text() if found else lacking(f"Debian's unit of {name}")


def lacking(what):
    """Skip the test and say what it lacks; in CI, which must lack nothing, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks {what}", pytrace=False)
    pytest.skip(f"LACKING {what}")


ASK = "const got = await fetch('http://127.0.0.1:3000/'); console.log(await got.text()); process.exit(got.ok ? 0 : 1);"


@of_language("js", "ts")
def test_node(block):
    """An application that listens, on port 3000, is asked for its page."""
    text = block.text + (ASK if re.search(r"\.listen\(|\bserve\(", block.text) else "")
    with Server() as server:
        text = re.sub(r"\b3000\b", str(free_port()), with_port(server, text))
        text = re.sub(r"new (\w*Limiter|Limits|RateLimiterSwlimit)\(\{", r'\g<0> timeout: "20s",', text)
        done = node.run(f"--input-type={'module-typescript' if block.language == 'ts' else 'module'}", "-e", text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout, done.stderr
    if block in OUTPUTS:
        assert_printed(OUTPUTS[block], done.stdout, block.place)


@pytest.mark.long
@of_language("rust")
def test_rust(block):
    """Each is one of the client's examples while it runs, because what the client's own need has been built."""
    name = "docs_" + re.sub(r"\W", "_", block.place.lower())
    program = ROOT / f"src/clients/rust/examples/{name}.rs"
    with Server() as server:
        program.write_text(with_port(server, block.text))
        try:
            run([built("swlimit-client", "--example", name)])
        finally:
            program.unlink()


@pytest.mark.long
@of_language("go")
def test_go(block, tmp_path):
    if not shutil.which("go"):
        pytest.skip("LACKING Go")
    with Server() as server:
        (tmp_path / "main.go").write_text(with_port(server, block.text))
        (tmp_path / "go.mod").write_text("module example\n")
        if subprocess.run(["go", "mod", "tidy"], cwd=tmp_path).returncode:
            pytest.skip("LACKING Go's modules")
        assert run(["go", "run", "."], cwd=tmp_path)
