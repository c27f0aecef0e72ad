"""Servers that die under holders: never more of them live than the limit, and nothing held for longer than its ttl."""

import pytest

from support.hold_load import HoldLoad, all_end, crash, kept, one_more_fits
from support.load import to
from support.replication import PROMPT, replica_of, synchronised
from support.waiting import eventually

pytestmark = [pytest.mark.as_run, pytest.mark.long]

KEYS = [f"seats:{number}" for number in range(4)]
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
MINUTES = 60


def test_crashes_under_load(start, report):
    """kill -9 with `appendfsync always`, again and again: who has an answer goes on holding, and tokens grow."""
    server = start(options=ALWAYS)
    with HoldLoad(to(server), KEYS, ttl=4.0) as load:
        crash(load, server)
    client = server.client(socket_timeout=60)
    relied_on = kept(load, lambda key: client)
    all_end(load, lambda key: client)
    report(f"{load.granted} holds over 3 crashes, {relied_on} relied on at the end: none lost, none too many")


@pytest.mark.parametrize("skew", [0, -5 * MINUTES], ids=["same", "behind"])
def test_a_promoted_replica_knows_the_holders(start, skewed, report, skew):
    """A primary is killed under load, and its replica promoted, also with a clock that is behind: every hold that WAIT
    has confirmed is held, and tokens go on growing."""
    primary = start(options=PROMPT, env=skewed(0))
    replica = start(options=replica_of(primary), env=skewed(skew))
    synchronised(replica)
    with HoldLoad(to(primary), KEYS, ttl=20.0, wait=True) as load:
        load.reach(300)
        primary.kill()
        eventually(lambda: load.failures)
    client = replica.client(socket_timeout=60)
    client.replicaof("NO", "ONE")
    relied_on = kept(load, lambda key: client)
    one_more_fits(load, client)
    report(f"{load.granted} holds confirmed, {relied_on} relied on when the replica took over: none lost")
