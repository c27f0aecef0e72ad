"""What the documentation says of uninstalling holds: its commands are run as they are shown."""

import re
import subprocess
import time

import pytest

from docs.pages import page_named
from support.server import Server
from support.waiting import eventually


@pytest.fixture(scope="module")
def documented():
    """The two blocks of commands that uninstalling takes: to delete the windows, and to write the files again."""
    chapter = page_named("install.md").read_text().split("\n## Uninstalling\n")[1]
    deleting, writing = re.findall(r"^ *```sh\n(.*?)^ *```$", chapter, re.MULTILINE | re.DOTALL)
    return deleting, writing


def run(commands, server):
    """What commands print that were written for a server on the usual port."""
    commands = commands.replace("redis-cli", f'"{server.binaries.cli}" -p {server.port}')
    return subprocess.run(["sh", "-ec", commands], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("appendonly", ["no", "yes"])
def test_a_server_starts_without_the_module_once_its_windows_are_deleted(binaries, documented, appendonly, tmp_path):
    """Before that it refuses. All of our keys go, in all databases, whatever their names; other keys stay."""
    deleting, writing = documented
    options = {"appendonly": appendonly, "save": "3600 1"}
    bare = Server(binaries, options=options, module=None, folder=tmp_path)
    with Server(binaries, options=options, folder=tmp_path) as server:
        for db in (0, 3):
            client = server.client(db=db)
            client.mset({f"other:{number}": number for number in range(2500)})
            for number in range(2500):
                client.execute_command("SWLIMIT.RECORD", b"a b\n\xff*%d" % number, 1, "1h", "1m")
            client.execute_command("SWLIMIT.HOLD", "hold", 1, "1h", "id")
            client.execute_command("SWLIMIT.BUDGET", "budget", 1, int(time.time() * 1000) + 3_600_000)
    try:
        bare.spawn().process.wait(20)
        assert re.search(r"module data I can't load|[Uu]nknown command 'SWLIMIT", bare.log), bare.log

        with Server(binaries, options=options, folder=tmp_path) as server:
            left = run(deleting, server)
            assert re.findall(r"swlimit_(\w*keys):0", left) == ["keys", "hold_keys", "budget_keys"], left
            assert run(writing, server).endswith("OK\n")
            eventually(lambda: server.client().info("persistence")["aof_rewrite_in_progress"], 0)
        client = bare.start().client()
        assert "swlimit" not in str(client.execute_command("MODULE", "LIST"))
        assert [database["keys"] for database in client.info("keyspace").values()] == [2500, 2500]
    finally:
        bare.close()
