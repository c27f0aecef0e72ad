"""`make demo`: what it prints works, and Ctrl-C ends all of it."""

import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

from support import proxies
from support.lacking import lacking
from support.releases import Unavailable
from support.server import MODULE, ROOT


@pytest.fixture
def demo(start_daemon, tmp_path):  # which says if there is no swlimitd
    """The demo, and the commands that it tells to try."""
    assert MODULE.exists(), "run make build"
    try:
        proxies.obtain("nginx")
    except Unavailable as reason:
        lacking(f"nginx: {reason}")
    # In a group of its own, as in a terminal, where Ctrl-C is for all of it.
    process = subprocess.Popen([ROOT / "scripts/demo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)}, start_new_session=True)
    watchdog = threading.Timer(120, os.killpg, [process.pid, signal.SIGKILL])
    watchdog.start()
    printed = ""
    try:
        while "Ctrl-C ends all of it" not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        yield process, re.findall(r"^  (.*curl.*)$", printed, re.MULTILINE)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_demo(demo, tmp_path):
    if not shutil.which("curl"):
        lacking("curl")
    process, commands = demo
    assert len(commands) == 3
    printed = [subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30).stdout
               for command in commands]
    assert re.findall(r"^HTTP/1.1 (\d+)", printed[0], re.MULTILINE) == ["200"] * 5 + ["429"]
    assert printed[0].count("Hello from the application.") == 5
    assert 'RateLimit: "per-client-10s";r=4;' in printed[0] and "Retry-After: " in printed[0]
    assert printed[1].startswith("HTTP/1.1 200") and '"granted":1' in printed[1]
    assert '"granted":1,"limit":100,"remaining":99' in printed[2]

    ports = set(re.findall(r"127\.0\.0\.1:(\d+)", " ".join(commands)))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == 0
    assert not list(tmp_path.iterdir())
    for port in ports:
        assert subprocess.run(["curl", "--silent", f"http://127.0.0.1:{port}/"]).returncode == 7  # nobody is there
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left
