"""Append-only files."""

import re

from .contents import info
from .resp import INCOMPLETE, parser
from .waiting import eventually


def written(server):
    """The part of the append-only file that a server is writing."""
    path, = (server.folder / "appendonlydir").glob("*.incr.aof")
    return path


def commands(server):
    """The commands written since the file's base, each as a list of words, without SELECT."""
    reader, found = parser(), []
    reader.feed(re.sub(rb"^#.*\r?\n", b"", written(server).read_bytes(), flags=re.MULTILINE))
    while (words := reader.gets()) is not INCOMPLETE:
        found.append([word.decode("latin-1") for word in words])
    return [words for words in found if words[0].upper() != "SELECT"]


def rewrite(server):
    """Rewrite the file and wait until that is done."""
    server.cli("BGREWRITEAOF")
    rewriting = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    eventually(lambda: any(info(server, "persistence")[name] for name in rewriting), False, 60)
    assert info(server, "persistence")["aof_last_bgrewrite_status"] == "ok"
