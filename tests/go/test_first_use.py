"""What the page for Go says, from its first line to a denial, as a reader copies it."""

import re
import shutil

from docs.pages import blocks, page_named
from support import golang
from support.server import ROOT


def test_page(server, tmp_path):
    (tmp_path / "swlimit").symlink_to(ROOT)
    page = blocks(page_named("go.md"))
    commands, = (block.text for block in page if "go mod init" in block.text)
    printed = [running(server, tmp_path / f"first{at}", commands, block.text)
               for at, block in enumerate(page) if block.language == "go"]
    welcome, holding = printed
    *granted, denied = welcome.splitlines()
    assert granted == [f"welcome, {left} are left" for left in (2, 1, 0)] and denied.startswith("come back in ")
    assert holding == "streaming true\n"


def patient(program):
    """The same program, for a busy machine."""
    return re.sub(r"(New(?:Holds)?\(conn, .*)\)\n", r"\1, swlimit.Timeout(20*time.Second))\n", program)


def running(server, folder, commands, program):
    """What a program prints."""
    folder.mkdir()
    (folder / "main.go").write_text(patient(program.replace(":6379", f":{server.port}")))
    for line in (*commands.splitlines(), "go mod tidy", "go run ."):
        name, *words = line.split()
        assert name == "go"
        done = golang.run(*words, cwd=folder, env={"GOFLAGS": "-mod=mod", "GOWORK": "off"})
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder)
    return done.stdout
