"""The page for Node.js, followed in a folder that holds nothing, beside a clone of the repository."""

import re
import shutil
import subprocess

from docs.pages import blocks
from support import node
from support.server import ROOT

PAGE = ROOT / "docs/node.md"
COPIED = ["LICENSE", "src/node"]


def test_two_commands_lead_to_a_denial(server, tmp_path):
    """The server is up, which is the page's first command. The second installs; then its first program is denied."""
    clone, folder = tmp_path / "swlimit", tmp_path / "mine"
    for path in COPIED:
        ignored = shutil.ignore_patterns("node_modules", "dist")
        source = ROOT / path
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, clone / path, ignore=ignored) if source.is_dir() else shutil.copy(source, clone / path)
    folder.mkdir()
    commands = [block.text for block in blocks(PAGE) if "test_first_use" in block.comment]
    program = next(block.text for block in blocks(PAGE) if block.language == "js")
    assert len(commands) == 1
    environment = node.ENVIRONMENT | {"npm_config_prefer_offline": "true", "npm_config_audit": "false"}
    done = subprocess.run(["sh", "-ec", commands[0]], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "first.mjs").write_text(program.replace("127.0.0.1:6379", f"127.0.0.1:{server.port}"))
    done = node.run("first.mjs", cwd=folder)
    assert re.fullmatch(r"(welcome, \d are left\n){3}come back in \d+ ms\n", done.stdout), done.stdout + done.stderr
