"""Values as bytes: those of each layout are in `data`, written down once. They are written so and loaded for ever.

Layout 1 is what module version 0.1.0 writes, which refuses every other one: no block, no other bytes.
"""

import json
from pathlib import Path

import pytest

from support.bounds import MAX
from support.cli import ask, batch, stored
from support.payloads import Frame

NOW = 1_111_112 * 3_600_000
DATA = Path(__file__).with_name("data")
CASES = {(layout, name): case for layout in (1, 2)
         for name, case in json.loads((DATA / f"layout_{layout}.json").read_text()).items()}
WITHOUT_BLOCK = [case for (layout, _), case in CASES.items() if layout == 1]


@pytest.fixture
def client(server):
    """A connection for payloads, which redis-cli cannot spell, to a server that leaves their checksums alone."""
    server.cli("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
    yield server.client()
    server.cli("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 0)


def frame(server, client):
    """What the server puts around a value. The encoding version in it is 1, whatever the layout."""
    ask(server, "SWLIMIT.RECORD", "frame", 5, 60, 5)
    payload = client.dump("frame")
    assert payload[1:10].hex() == "81b30fb08a7768c001"
    return Frame(payload)


def make(server, case):
    batch(server, [command.split() for command in case["commands"]])


def value(client, server, key="k"):
    """The bytes of a value, without the frame."""
    payload, around = client.dump(key), frame(server, client)
    return payload[len(around.body(b"")) - 2 + (1 if payload[11] < 64 else 2):-11].hex()


@pytest.mark.parametrize("case", CASES.values(), ids=[f"{layout} {name}" for layout, name in CASES])
def test_values_are_written_and_loaded(server, client, case):
    make(server, case)
    assert value(client, server) == case["value"]
    payload = frame(server, client).around(bytes.fromhex(case["value"]))
    client.restore("loaded", 60_000, payload)
    assert stored(server, "loaded") | {"memory": 0} == stored(server, "k") | {"memory": 0}  # room to grow is not kept
    assert client.dump("loaded") == client.dump("k")
    server.cli("PEXPIRE", "k", 60_000)
    assert server.cli("DEBUG", "DIGEST-VALUE", "loaded") == server.cli("DEBUG", "DIGEST-VALUE", "k")


@pytest.mark.parametrize("case", WITHOUT_BLOCK, ids=lambda case: case["value"][:30])
def test_a_lifted_block_leaves_no_byte(server, client, case):
    """An older module reads the key again."""
    make(server, case)
    newest = stored(server, "k")["newest"]
    ask(server, "SWLIMIT.BLOCK", "k", "1h", "AT", newest)
    assert value(client, server).startswith("0002")
    assert ask(server, "SWLIMIT.UNBLOCK", "k", "AT", newest) == [1]
    assert value(client, server) == case["value"]


def test_a_value_without_a_block_takes_no_more_memory(server):
    """What 0.1.0 says its windows take."""
    ask(server, "SWLIMIT.RECORD", "k", 10, 60, 5, "AT", NOW)
    assert stored(server, "k")["memory"] == 32
    ask(server, "SWLIMIT.RECORD", "k", 10, 60, 5, "COST", MAX - 1, "AT", NOW)
    assert stored(server, "k")["memory"] == 32
