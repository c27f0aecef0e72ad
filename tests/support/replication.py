"""Primaries and their replicas."""

from .contents import info
from .waiting import eventually

PROMPT = {  # neither wait for further replicas before a copy, nor for replicas when ending
    "repl-diskless-sync-delay": 0, "shutdown-timeout": 0}


def replica_of(primary, **options):
    """The options of a server that replicates `primary`."""
    return {"replicaof": ("127.0.0.1", primary.port)} | PROMPT | options


def synchronised(replica, seconds=30):
    """Wait until a replica follows its primary."""
    eventually(lambda: info(replica, "replication")["master_link_status"], "up", seconds, lambda: replica.log[-2000:])


def follow(replica, primary):
    """Make `replica` replicate `primary` and wait until it is in step."""
    replica.cli("REPLICAOF", "127.0.0.1", primary.port)
    in_step(replica, primary)


def in_step(replica, primary):
    """Wait until a replica has everything its primary has sent."""
    def state():
        sent = info(primary, "replication")["master_repl_offset"]
        received = info(replica, "replication")
        return received.get("master_link_status"), received.get("slave_repl_offset") == sent
    eventually(state, ("up", True))
