"""The account of the commands: what it says is what a server takes, finds in it, and replies."""

import json
import struct

import pytest

from support.resp import Connection, Failed
from support.script import load, sha, unpacked
from vectors.commands import NOW
from vectors.make import HERE

ENTRIES = json.loads((HERE / "commands.json").read_text())


def as_text(entry):
    return " ".join(map(str, entry["words"]))


each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=as_text)


def as_bytes(word):
    return bytes.fromhex(word["hex"]) if isinstance(word, dict) else word.encode()


def sent(words):
    return [as_bytes(word) for word in words]


def shape(reply):
    return [shape(one) for one in reply] if isinstance(reply, list) else type(reply)


@pytest.fixture
def pipe(server):
    with Connection(server.port) as pipe:
        pipe.call("CONFIG", "SET", "swlimit.max-subintervals", 10_000)
        yield pipe


@pytest.fixture(scope="module")
def plain(starting):
    """A server without the module, which knows the script."""
    with starting() as start, Connection(start(module=None).port) as plain:
        load(plain)
        yield plain


def is_as_told(entry, reply):
    """Not an error, and of the kind that the undo knows."""
    return not isinstance(reply, Failed) and all(
        shape(reply) == shape(case["reply"]) for case in entry["undo"][:1])


@each_entry
def test_the_module_takes_the_words(pipe, entry):
    if entry["command"] == "INFO":
        pipe.call("SWLIMIT.RECORD", *sent(entry["keys"]), 10, 60, 5)
    reply = pipe.call(*sent(entry["words"]))
    assert is_as_told(entry, reply), reply


@each_entry
def test_the_server_finds_the_keys(pipe, entry):
    found = pipe.call("COMMAND", "GETKEYS", *sent(entry["words"]))
    keys = sent(entry["keys"])
    assert found == keys if keys else found == "ERR The command has no key arguments"
    (_, _, flags, *_), = pipe.call("COMMAND", "INFO", entry["words"][0])
    assert {b"readonly", b"write"} & set(flags) == {b"readonly" if entry["reads"] else b"write"}


@pytest.mark.parametrize("entry", [one for one in ENTRIES if one["script"]], ids=as_text)
def test_the_script_takes_both_spellings(plain, entry):
    """One packed argument decides as the words do."""
    script, keys = entry["script"], sent(entry["keys"])
    rest = sent(entry["words"])[1 + (entry["command"] in ("MALLOW", "ADMIT")) + len(keys):]
    words = [entry["command"].encode(), *rest]
    assert script.get("words") is None or sent(script["words"]) == words

    def reply(*arguments):
        plain.call("FLUSHALL")
        if entry["command"] in ("ALLOW", "PEEK", "INFO"):  # of a window that slides, so that all flags matter
            for at in NOW - 60_000, NOW:
                plain.call("EVALSHA", sha(), 1, *keys, "RECORD", 10, 60, 5, "COST", 4, "AT", at)
        call = "EVALSHA_RO" if entry["reads"] else "EVALSHA"
        return unpacked(plain.call(call, sha(), len(keys), *keys, *arguments), entry["fields"].get("limit"))

    if entry["fields"].get("window") == 4_097:
        assert "above swlimit.max-subintervals" in reply(*words)
        return
    assert is_as_told(entry, reply(*words))
    if "packed" in script:
        packed, at = bytes.fromhex(script["packed"]), NOW + 2_500
        assert is_as_told(entry, reply(packed))
        assert reply(packed + struct.pack("<Q", at)) == reply(*words, "AT", at)
    if "dated" in script:
        dated = [bytes.fromhex(script["dated"])] if "packed" in script else sent(script["dated"])
        assert reply(*dated) == reply(*words, "AT", NOW)
