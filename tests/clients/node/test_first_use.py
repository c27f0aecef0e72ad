"""The page for Node.js, followed in a folder that holds nothing, beside a clone of the repository."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from docs.pages import blocks, page_named
from support import node
from support.server import ROOT, free_port

pytestmark = pytest.mark.long

PAGE = page_named("node.md")
COPIED = ["LICENSE", "src/server/script", "src/clients/node"]
ENVIRONMENT = node.ENVIRONMENT | {"npm_config_prefer_offline": "true", "npm_config_audit": "false"}
INSTALL = 'npm install --install-links "$(npm pack --silent ../swlimit/src/clients/node)" redis'
DENIED = {
    "bullmq": r"call 1\ncall 2\ncall 3\n",
    "@nestjs": r'(welcome\n){3}\{"statusCode":429,.*\}\n',
    "": r"(welcome\n){3}Too many requests, please try again later\.\n",
}
"""What a section's packages have in their names -> what its second command prints."""


def sections():
    """Of each section with commands: what it installs, its second command if it has one, and its program."""
    every = blocks(PAGE)
    for at, block in enumerate(every):
        if "test_first_use" in block.comment and block.language == "sh":
            install, *others = block.text.splitlines()
            assert install.startswith(INSTALL), "they differ in what they install, so that one command does"
            yield install.removeprefix(INSTALL), others, every[at + 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of one's own beside a clone, after the first commands of all sections, as one."""
    clone = tmp_path_factory.mktemp("newcomer") / "swlimit"
    for path in COPIED:
        ignored = shutil.ignore_patterns("node_modules", "dist")
        source = ROOT / path
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, clone / path, ignore=ignored) if source.is_dir() else shutil.copy(source, clone / path)
    mine = clone.parent / "mine"
    mine.mkdir()
    done = subprocess.run(["sh", "-ec", INSTALL + "".join(packages for packages, _, _ in sections())], cwd=mine,
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return mine


def written(folder, name, program, server, port=3000):
    """Write a program as a reader would, but that it waits for as long as a busy machine takes."""
    text = program.text.replace("6379", str(server.port)).replace("3000", str(port))
    slow = re.sub(r"new (Limiter|SwlimitThrottlerStorage)\(\{", r'\g<0> timeout: "20s",', text)
    slow = slow.replace('"3/minute")', '"3/minute", { timeout: "20s" })')
    (folder / name).write_text(slow)


def test_two_commands_lead_to_a_denial(folder, server):
    """The server is up, which is the page's first command. The second installs; then its first program is denied."""
    (_, others, program), *_ = sections()
    assert not others
    written(folder, "first.mjs", program, server)
    done = node.run("first.mjs", cwd=folder)
    assert re.fullmatch(r"(welcome, \d are left\n){3}come back in \d+ ms\n", done.stdout), done.stdout + done.stderr


def test_so_they_do_in_every_framework(folder, server):
    frameworks = list(sections())[1:]
    assert len(frameworks) == 6
    for packages, (command,), program in frameworks:
        server.cli("FLUSHALL")
        port = free_port()
        written(folder, "app.mts" if program.language == "ts" else "app.mjs", program, server, port)
        running = subprocess.Popen(["sh", "-c", command.replace("3000", str(port))], cwd=folder, env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        expected = next(text for part, text in DENIED.items() if part in packages)
        try:
            printed = "".join(running.stdout.readline() for _ in range(3 if "bullmq" in packages else 4))
        finally:
            os.killpg(running.pid, signal.SIGKILL)
        assert re.fullmatch(expected, printed), f"{packages}: {printed}{running.communicate()}"
