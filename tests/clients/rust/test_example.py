"""The axum example is what its own text says: some requests, then 429."""

import re
import subprocess
import time

import pytest

from support.crates import built
from support.http import fetch
from support.server import ROOT

LIMIT, WINDOW = 5, 10  # as in the example


@pytest.fixture(scope="module")
def program():
    """The example's program."""
    return built("swlimit-client", "--example", "axum")


@pytest.fixture
def url(program, server):
    """Where a service listens that asks the server."""
    words = [program, f"redis://127.0.0.1:{server.port}/", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as service:
        try:
            yield re.fullmatch(r"listening on (http://\S+)\n", service.stdout.readline())[1]
        finally:
            service.kill()


def test_each_path_has_its_limit(url, server):
    began = time.monotonic()
    for left in reversed(range(LIMIT)):
        status, headers, body = fetch(f"{url}/a")
        assert (status, body) == (200, "hello a\n")
        assert headers["RateLimit-Policy"] == f'"default";q={LIMIT};w={WINDOW}'
        assert re.fullmatch(rf'"default";r={left};t=1[01]', headers["RateLimit"])
    for _ in range(2):
        status, headers, body = fetch(f"{url}/a")
        assert (status, body) == (429, "too many requests\n")
        assert re.fullmatch(r'"default";r=0;t=\d+', headers["RateLimit"])
        assert 1 <= int(headers["Retry-After"]) <= WINDOW + 1
    assert fetch(f"{url}/b")[0] == 200
    assert time.monotonic() < began + WINDOW - 1, "too slow to tell"
    # It is the server that counts.
    assert server.cli("SWLIMIT.PEEK", "path:/a", LIMIT, "10s", "1s").startswith(f"0\n{LIMIT}\n0\n")


def test_the_loop_that_it_shows(url):
    text = (ROOT / "src/clients/rust/examples/axum.rs").read_text()
    loop = re.search(r"^//! (for .*)$", text, re.MULTILINE)[1].replace("http://127.0.0.1:3000", url)
    done = subprocess.run(["bash", "-c", loop], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["200"] * 5 + ["429"] * 2
