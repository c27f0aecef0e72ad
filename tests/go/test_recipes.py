"""The programs for chi, gin and echo serve, and limit their clients."""

import subprocess
import time

import pytest

from docs.pages import blocks, page_named
from support import golang
from support.http import fetch
from support.server import free_port

PROGRAMS = [block.text for block in blocks(page_named("go.md")) if "httplimit" in block.text]


@pytest.mark.parametrize("program", PROGRAMS, ids=["chi", "gin", "echo"])
def test_recipe(program, server, tmp_path):
    golang.copy_module(tmp_path)
    port = free_port()
    program = program.replace("127.0.0.1:6379", f"127.0.0.1:{server.port}").replace(":8080", f":{port}")
    (tmp_path / "main.go").write_text(golang.patient(program))
    built = golang.run("build", "-o", "recipe", ".", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    server.cli("FLUSHALL")  # all of them count the same address
    with subprocess.Popen([tmp_path / "recipe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            responses = [answer(serving, f"http://127.0.0.1:{port}/") for _ in range(4)]
        finally:
            serving.kill()
    assert [(response.status, response.body.strip()) for response in responses] == [
        *[(200, "welcome")] * 3, (429, "Too Many Requests")]
    assert [response.headers["RateLimit"].split(";")[1] for response in responses] == ["r=2", "r=1", "r=0", "r=0"]
    assert 0 < int(responses[3].headers["Retry-After"]) <= 65 and not responses[0].headers["Retry-After"]


def answer(serving, url):
    """The response, as soon as the program listens."""
    while serving.poll() is None:
        try:
            return fetch(url)
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the program has ended")
