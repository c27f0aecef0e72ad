"""Crashes: what was acknowledged is there afterwards, and a torn AOF gives the state before the tear."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from support import aof
from support.load import LIMIT, Load, nothing_lost, only_the_rest, to
from support.waiting import eventually

pytestmark = pytest.mark.as_run

NOW = 1_800_000_000_123
ALWAYS = {"appendonly": "yes", "appendfsync": "always", "aof-load-truncated": "yes"}
SINGLE = [f"single:{number}" for number in range(20)]
PAIRS = [(f"left:{number}", f"right:{number}") for number in range(10)]
TIGHT = ("tight:a", "tight:b")


def crash(server, seed, options):
    """Kill the server without warning under load, start it again, and compare.

    Returns how many units were acknowledged, and how many more are held.
    """
    limits = dict.fromkeys(TIGHT, 300)
    with Load(to(server), [*SINGLE, *TIGHT], PAIRS, limits, batch=options["batch"], seed=seed) as load:
        load.reach(options["units"])
        server.kill()
        eventually(lambda: load.failures)
    server.start()
    client = server.client()
    doubtful = nothing_lost(load, lambda key: client)
    only_the_rest(client, limits)
    acknowledged = load.acknowledged.total()
    client.flushall()
    client.close()
    return acknowledged, doubtful


def crashes(start, report, times, **options):
    server = start(options=ALWAYS | options)
    acknowledged = doubtful = 0
    for seed in range(times):
        units, unsure = crash(server, seed, {"batch": (1, 4, 32)[seed % 3], "units": 500 + 700 * (seed % 5)})
        acknowledged += units
        doubtful += unsure
    report(f"{times} crashes, {acknowledged} units acknowledged, 0 lost, {doubtful} unacknowledged units were kept")
    return server


def test_a_crash_under_load_loses_nothing_acknowledged(start, report):
    """kill -9 during load with `appendfsync always`: every acknowledged grant is held afterwards, no MALLOW is half
    counted, and limits go on exactly where they were."""
    crashes(start, report, 3)


@pytest.mark.long
@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_many_crashes_lose_nothing_acknowledged(start, report, preamble):
    """The same many times over, with rewrites of the AOF in between, in both of its formats."""
    server = crashes(start, report, 50, **{"aof-use-rdb-preamble": preamble, "auto-aof-rewrite-min-size": "100kb",
                                           "auto-aof-rewrite-percentage": 10})
    base, = (server.folder / "appendonlydir").glob("*.base.*")
    assert not base.name.startswith("appendonly.aof.1."), "nothing was rewritten"


def state(client):
    """All that the module says about the keys below."""
    pipeline = client.pipeline(transaction=False)
    for key in KEYS:
        pipeline.exists(key)
        pipeline.execute_command("SWLIMIT.INFO", key)
        pipeline.execute_command("SWLIMIT.PEEK", key, LIMIT, "60", "5", "AT", NOW)
    return [str(reply) if isinstance(reply, Exception) else reply for reply in pipeline.execute(raise_on_error=False)]


KEYS = ["a", "b", "c", "blocked"]
EARLIER = [
    ("SWLIMIT.ALLOW", "a", 100, 60, 5, "COST", 3, "AT", NOW - 20_000),
    ("SWLIMIT.ALLOW", "a", 100, 60, 5, "COST", 4, "AT", NOW - 10_000),
    ("SWLIMIT.RECORD", "b", 100, 60, 5, "COST", 9, "AT", NOW - 10_000),
    ("SWLIMIT.BLOCK", "blocked", "1h", "AT", NOW),
]
LAST = {
    "allow": ("SWLIMIT.ALLOW", "a", 100, 60, 5, "COST", 5, "AT", NOW),
    "allow-new-window": ("SWLIMIT.ALLOW", "a", 100, "2m", "1s", "AT", NOW),
    "allow-block": ("SWLIMIT.ALLOW", "a", 5, 60, 5, "BLOCK", "1h", "AT", NOW),
    "record-block": ("SWLIMIT.RECORD", "a", 5, 60, 5, "COST", 2, "BLOCK", "1h", "AT", NOW),
    "block": ("SWLIMIT.BLOCK", "c", "1h", "AT", NOW),
    "unblock": ("SWLIMIT.UNBLOCK", "blocked", "AT", NOW),
    "record": ("SWLIMIT.RECORD", "c", 0, 60, 5, "COST", 12, "AT", NOW),
    "refund": ("SWLIMIT.REFUND", "a", 5, "AT", NOW),
    "mallow": ("SWLIMIT.MALLOW", 3, "a", "b", "c", 100, 60, 5, 1, 100, 60, 5, 2, 100, "1h", "1m", 3, "AT", NOW),
}


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_an_aof_cut_anywhere_in_its_last_command_holds_the_state_before(start, report, last, step):
    """With `aof-load-truncated yes`, a server starts from an AOF that ends at any byte of its last command, and holds
    exactly the state before it; of a MALLOW whose keys are of several slots, which is a MULTI/EXEC group there, all or
    nothing. At every `step`th byte, and the last."""
    server = start(options=ALWAYS)
    client = server.client()
    for command in EARLIER:
        client.execute_command(*command)
    before, intact = state(client), aof.written(server).read_bytes()
    client.execute_command(*last)
    after, whole = state(client), aof.written(server).read_bytes()
    assert before != after and whole.startswith(intact) and len(whole) > len(intact) + 20
    assert (b"MULTI" in whole) == (last == LAST["mallow"])

    def loaded(server, contents):
        server.kill()
        aof.written(server).write_bytes(contents)
        with server.start().client() as client:
            return state(client)

    def wrong(cuts):
        """Those of these cuts that give another state, tried one after the other on a server of their own."""
        server = start(options=ALWAYS)
        assert loaded(server, whole) == after
        return [cut for cut in cuts if loaded(server, whole[:cut]) != before]

    cuts = [*range(len(intact), len(whole) - 1, step), len(whole) - 1]
    with ThreadPoolExecutor(4) as workers:
        found = sum(workers.map(wrong, (cuts[first::4] for first in range(4))), [])
    assert not found, [whole[len(intact):cut] for cut in found]
    report(f"{len(cuts)} cuts, each loaded by a starting server: the state before each time")
