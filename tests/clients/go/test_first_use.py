"""What the pages for Go say, from their first line to a denial, as a reader copies it."""

import shutil

import pytest

from docs.pages import blocks, page_named
from support import golang
from support.server import ROOT


@pytest.mark.parametrize("module", [True, False], ids=["module", "plain"])
def test_page(server, start, tmp_path, module):
    """On any server."""
    server = server if module else start(module=None)
    welcome, holding, spending = results("go.md", server, tmp_path)
    *granted, denied = welcome.splitlines()
    assert granted == [f"welcome, {left} are left" for left in (2, 1, 0)] and denied.startswith("come back in ")
    assert holding == "streaming true\n"
    assert spending.startswith("tokens: come back in ") and spending.count("\n") == 1


def test_redis_rate(server, tmp_path):
    shown, = (block.text for block in blocks(page_named("coming-from-redis_rate.md")) if block.is_output)
    assert results("coming-from-redis_rate.md", server, tmp_path) == [shown]


def test_testing(tmp_path):
    """The page's test passes, and fails where the limit is another one."""
    program, = (block.text for block in blocks(page_named("testing.md")) if block.language == "go")
    for text, passes in [(program, True), (program.replace("Limit: 1", "Limit: 2"), False)]:
        golang.copy_module(tmp_path)
        (tmp_path / "main_test.go").write_text(text)
        done = golang.run("test", ".", cwd=tmp_path)
        assert (done.returncode == 0) is passes and "FAIL" in done.stdout + "FAIL" * passes, done.stdout + done.stderr


def results(name, server, folder):
    """What the programs of a page print, but those that serve."""
    (folder / "swlimit").symlink_to(ROOT)
    page = blocks(page_named(name))
    commands, = (block.text for block in page if "go mod init" in block.text)
    return [running(server, folder / f"first{at}", commands, block.text)
            for at, block in enumerate(page) if block.language == "go" and 'limit"' not in block.text]


def running(server, folder, commands, program):
    """What a program prints."""
    folder.mkdir()
    (folder / "main.go").write_text(golang.patient(program.replace(":6379", f":{server.port}")))
    for line in (*commands.splitlines(), "go mod tidy", "go run ."):
        name, *words = line.split()
        assert name == "go"
        done = golang.run(*words, cwd=folder, env={"GOFLAGS": f"-mod=mod {golang.RACE}", "GOWORK": "off"})
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder)
    return done.stdout
