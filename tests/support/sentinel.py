"""A sentinel, with what it watches."""

from typing import NamedTuple

from .server import MODULE, Binaries, Server
from .waiting import eventually


class Watched(NamedTuple):
    """A sentinel, and the master and the replica that it knows."""

    sentinel: Server
    master: Server
    replica: Server


def watched(start, binaries, folder, name, *settings, module=MODULE, of_master=None):
    """Start the three; the master is called by this name. Each setting is a name and its value."""
    options = {"repl-diskless-sync-delay": 0}
    master = start(options=options | (of_master or {}), module=module)
    replica = start(options=options | {"replicaof": ("127.0.0.1", master.port)}, module=module)
    eventually(lambda: replica.client().info("replication")["master_link_status"], "up")
    sentinel = watching(start, binaries, folder, name, master, *settings)
    eventually(lambda: len(sentinel.client().execute_command("SENTINEL", "REPLICAS", name)), 1)
    return Watched(sentinel, master, replica)


def watching(start, binaries, folder, name, master, *settings):
    """Start a sentinel, with its configuration in this folder."""
    configuration = folder / "sentinel.conf"
    configuration.write_text("".join([f"sentinel monitor {name} 127.0.0.1 {master.port} 1\n",
                                      *(f"sentinel {setting} {name} {value}\n" for setting, value in settings)]))
    words = [*binaries.command, str(configuration), "--sentinel"]
    return start(binaries=Binaries("sentinel", words, binaries.cli, binaries.env), module=None)
