"""One binary on every server release, and what each of them writes is read by every newer one of its family.

The releases are those that are installed or that `scripts/servers` has fetched.
"""

import re
import shutil
from unittest.mock import ANY

import pytest

from support import aof, releases
from support.contents import same_data
from support.lacking import needed
from support.server import Server

NOW = 1_800_000_000_123
HUGE = 2**53 - 1
FAMILIES = {family: [name for name, release in releases.RELEASES.items() if release.family == family]
            for family in ("redis", "valkey")}
OLDER_AND_NEWER = [(older, newer) for names in FAMILIES.values() for number, older in enumerate(names)
                   for newer in names[number:]]
OLDER_AND_NEWER += [("redis-7.0", newer) for newer in FAMILIES["valkey"]]  # Valkey reads what Redis 7 has written

TRANSCRIPT = [
    (("SWLIMIT.ALLOW", "k", 10, 60, 5, "AT", NOW), [1, 10, 9, 0, 64877]),
    (("swlimit.allow", "k", 10, "1m", "5s", "COST", 4, "AT", NOW + 10_000), [4, 10, 5, 0, 64877]),
    (("SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 6, "AT", NOW + 10_000), [0, 10, 5, 54877, 64877]),
    (("SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 9, "PARTIAL", "STRICT", "AT", NOW + 10_000), [5, 10, 0, 0, 64877]),
    (("SWLIMIT.PEEK", "k", 10, 60, 5, "AT", NOW + 62_377), [0, 10, 0, 2500, 12500]),
    (("SWLIMIT.RECORD", "k", 10, 60, 5, "COST", 2, "AT", NOW + 10_000), [0, 10, 0, 61241, 64877]),
    (("SWLIMIT.REFUND", "k", 3, "AT", NOW + 10_000), 3),
    (("SWLIMIT.MALLOW", 2, "k", "m", 10, 60, 5, 1, 5, "1h", "1h", 5, "AT", NOW + 10_000),
     [1, [1, 10, 0, 0, 64877], [5, 5, 0, 0, 7_189_877]]),
    (("SWLIMIT.INFO", "k"), ANY),
    (("TYPE", "k"), b"sw-window"),
    (("SWLIMIT.HOLD", "h", 1, "1h", "a", "AT", NOW), [1, 1, 0, 0, 3_600_000, NOW * 1_000]),
    (("SWLIMIT.HOLD", "h", 1, "1h", "b", "AT", NOW + 5), [0, 1, 0, 3_599_995, 0, 0]),
    (("SWLIMIT.RENEW", "h", "2h", "a", "b", "AT", NOW + 5), [1, 0]),
    (("SWLIMIT.HOLDERS", "h", "AT", NOW + 5), [[b"a", 1, 5, 7_200_000, NOW * 1_000]]),
    (("SWLIMIT.RELEASE", "h", "a", "AT", NOW + 5), 1),
    (("SWLIMIT.BUDGET", "b", 5, NOW + 1_000, "COST", 4, "AT", NOW), [4, 5, 1, 0, 1_000]),
    (("SWLIMIT.ADMIT", 3, "o", "r", "p", "HOLD", 2, "1h", "a", 1, "RATE", 10, "1h", "1h", 4, "BUDGET", 9, NOW + 5, 2,
      "AT", NOW), [1, [1, 2, 1, 0, 3_600_000, NOW * 1_000], [4, 10, 6, 0, 7_199_877], [2, 9, 7, 0, 5]]),
    (("SWLIMIT.SETTLE", 3, "o", "r", "p", "a", 1, 5, "AT", NOW + 1), [1, -3, 3]),
    (("SWLIMIT.SETTLE", 3, "o", "r", "p", "a", 1, 5, "AT", NOW + 1), [0]),
    (("SWLIMIT.BUDGET", "b", 5, NOW + 9_000, "COST", 4, "PARTIAL", "AT", NOW + 1), [1, 5, 0, 0, 999]),
]


@pytest.mark.parametrize("name", releases.RELEASES)
def test_one_binary_serves_every_release(name, report):
    """The module loads and answers the same on each release, which is really the one it is called."""
    binaries = needed(name)
    with Server(binaries) as server:
        client = server.client()
        info = client.info("server")
        version = info["valkey_version"] if binaries.family == "valkey" else info["redis_version"]
        assert f"{binaries.family}-{version}".startswith(f"{name}.")
        replies = [client.execute_command(*command) for command, _ in TRANSCRIPT]
        for (command, expected), reply in zip(TRANSCRIPT, replies):
            assert reply == expected, command
        fields = dict(zip(replies[8][::2], replies[8][1::2]))
        assert fields[b"counts"] == [[NOW - 123, 1], [NOW - 123 + 10_000, 9]]
        assert client.info("swlimit")["swlimit_granted_units"] == 1 + 4 + 5 + 6 + 1 + 4 + 1 + 7
        listed = {name for name in client.execute_command("COMMAND LIST") if re.match(rb"(?i)swlimit\.", name)}
        assert listed == {f"swlimit.{name}".encode() for name in (
            "acquire", "admit", "allow", "apply", "block", "budget", "hold", "holders", "info", "mallow", "peek",
            "record", "refund", "release", "renew", "settle", "top", "unblock")}
    report(f"{version}: {len(TRANSCRIPT)} commands answered as expected")


def fill(client):
    """Windows of all sorts: sparse and dense, tiny and huge units, one to 4096 subintervals, any bytes as a name."""
    pipeline = client.pipeline(transaction=False)
    for number in range(200):
        pipeline.execute_command("SWLIMIT.ALLOW", f"dense:{number % 3}", 10**6, "1h", "10s", "COST", 1 + number,
                                 "AT", NOW + number * 10_000)
    for name, units, window, resolution in [("one", 1, "1ms", "1ms"), ("single", 7, "1d", "1d"),
                                            ("widest", 9, "3650d", "1d"), ("most", 3, "4096s", "1s"),
                                            ("huge", HUGE, "1h", "1m"), (b"\x00\xff\r\n", 5, "5m", "1m")]:
        pipeline.execute_command("SWLIMIT.RECORD", name, 10, window, resolution, "COST", units, "AT", NOW)
    pipeline.execute_command("SWLIMIT.REFUND", "single", 2, "AT", NOW)
    pipeline.execute_command("SWLIMIT.MALLOW", 2, "single", "second", 100, "1d", "1d", 2, 100, "5m", "1m", 8, "AT", NOW)
    pipeline.execute()
    client.delete("one")  # would expire at once


def contents(client):
    """All keys with their fields, when they expire, and how a further request would be answered."""
    found = {}
    for key in sorted(client.scan_iter()):
        fields = client.execute_command("SWLIMIT.INFO", key)
        ends = client.pexpiretime(key)
        peek = client.execute_command("SWLIMIT.PEEK", key, 100, "1h", "1m", "COST", 3, "AT", NOW + 1_900_000)
        found[key] = (fields, ends, peek)
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with what a release has written: an RDB, a plain AOF, one with an RDB preamble; and what was in them."""
    made = {}

    def written(name):
        if name in made:
            return made[name]
        folder = tmp_path_factory.mktemp(name)
        options = {"appendonly": "yes", "appendfsync": "no", "auto-aof-rewrite-percentage": 0}
        with Server(needed(name), options=options, folder=folder) as server:
            client = server.client()
            fill(client)
            client.save()
            kinds = {"rdb": None, "aof-as-written": None, "aof-plain": "no", "aof-preamble": "yes"}
            for kind, preamble in kinds.items():
                if preamble:
                    client.config_set("aof-use-rdb-preamble", preamble)
                    aof.rewrite(server)
                (folder / kind).mkdir()
                if kind == "rdb":
                    shutil.copy(folder / "dump.rdb", folder / kind)
                else:  # everything has been written by the time a command is answered
                    shutil.copytree(folder / "appendonlydir", folder / kind / "appendonlydir")
            made[name] = folder, list(kinds), contents(client), same_data(server)
        return made[name]

    return written


@pytest.mark.parametrize("older, newer", OLDER_AND_NEWER, ids=[" to ".join(pair) for pair in OLDER_AND_NEWER])
def test_what_a_release_writes_a_newer_one_reads(older, newer, written, report, tmp_path):
    """The RDB and the AOFs of a release are read by itself and every newer one of its family: the same counts, the
    same answers, and the same instants of expiry."""
    binaries = needed(newer)
    folder, kinds, expected, digest = written(older)
    assert len(expected) == 9
    for kind in kinds:
        copy = shutil.copytree(folder / kind, tmp_path / kind)
        with Server(binaries, options={"appendonly": "no" if kind == "rdb" else "yes"}, folder=copy) as server:
            client = server.client()
            found = contents(client)
            assert found == expected, kind
            assert same_data(server) == digest, kind
            assert client.execute_command("SWLIMIT.ALLOW", "single", 8, "1d", "1d", "AT", NOW)[:3] == [1, 8, 0]
    report(f"{', '.join(kinds)}: equal")
