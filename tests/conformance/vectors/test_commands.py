"""The account of the commands: what it says is what a server takes, finds in it, and replies."""

import json
import struct

import pytest

from conformance.vectors.commands import LATER, NOW
from conformance.vectors.make import HERE
from support.bounds import MAX
from support.comparing import Clock, stands
from support.resp import Connection, Failed
from support.script import load, scripted, sha, unpacked

ENTRIES = json.loads((HERE / "commands.json").read_text())


def as_text(entry):
    return " ".join(map(str, entry["words"]))


each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=as_text)


def as_bytes(word):
    return bytes.fromhex(word["hex"]) if isinstance(word, dict) else word.encode()


def sent(words):
    return [as_bytes(word) for word in words]


def by_script(words):
    """The script's call for a client's command. A script does not wait."""
    return scripted(words[:words.index(b"WAIT")] if b"WAIT" in words else words, sha())


def shape(reply):
    return [shape(one) for one in reply] if isinstance(reply, list) else type(reply)


def is_too_fine(entry):
    """Whether the script refuses it, with an error that only its words have."""
    return entry["fields"].get("window") == 4_097


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
    found = pipe.call("COMMAND", "GETKEYSANDFLAGS", *sent(entry["words"]))
    if not entry["keys"]:
        assert found == "ERR The command has no key arguments"
    else:
        flags = {b"RO", b"access"} if entry["reads"] else {b"RW", b"access", b"update"}
        assert [(key, set(shown)) for key, shown in found] == [(key, flags) for key in sent(entry["keys"])]
    (_, _, flags, *_), = pipe.call("COMMAND", "INFO", entry["words"][0])
    assert {b"readonly", b"write"} & set(flags) == {b"readonly" if entry["reads"] else b"write"}


@pytest.mark.parametrize("entry", [one for one in ENTRIES if one["script"]], ids=as_text)
def test_the_script_takes_both_spellings(plain, entry):
    """One packed argument decides as the words do."""
    script, keys = entry["script"], sent(entry["keys"])
    asked = by_script(sent(entry["words"]))
    call, words = asked[:3 + len(keys)], [asked[3 + len(keys)].encode(), *asked[4 + len(keys):]]
    assert script.get("words") is None or sent(script["words"]) == words

    def reply(*arguments):
        plain.call("FLUSHALL")
        if entry["command"] in ("ALLOW", "PEEK", "INFO"):  # of a window that slides, so that all flags matter
            for at in NOW - 60_000, NOW:
                plain.call(*scripted(["SWLIMIT.RECORD", *keys, 10, 60, 5, "COST", 4, "AT", at], sha()))
        return unpacked(plain.call(*call, *arguments), entry["fields"].get("limit"))

    if is_too_fine(entry):
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


# What takes a command back.


@pytest.fixture(scope="module")
def at_once(starting, tmp_path_factory):
    """How commands are executed while the clock stands: by the module, or by the script in place of it."""
    clock = Clock(tmp_path_factory.mktemp("clock"))
    clock.set(NOW)
    with starting() as start, Connection(start(env=clock.environment).port) as module, \
            Connection(start(env=clock.environment, module=None).port) as plain:
        if not stands(module):
            pytest.skip("needs a server whose clock can be stopped")
        load(plain)
        module.call("CONFIG", "SET", "swlimit.max-subintervals", 10_000)
        yield {"module": module.call, "script": lambda *words: plain.call(*by_script(words))}


def parts(entry):
    fields = entry["fields"]
    for one in fields.get("members") or fields.get("clauses") or [fields]:
        yield {"kind": "HOLD" if "ttl" in one else "RATE" if "window" in one else "BUDGET"} | one


def neighbours(part, units):
    """Commands of others before and after, that take units of a key: of a window in the subintervals beside."""
    key = as_bytes(part["key"])
    if part["kind"] == "HOLD":
        return [["SWLIMIT.HOLD", key, MAX, "1h", *id_and_cost] for id_and_cost in (["one", "COST", units], ["other"])]
    if part["kind"] == "BUDGET":
        return [["SWLIMIT.BUDGET", key, 0, part["until"], "COST", cost, "FORCE"] for cost in (units, 1)]
    record = ["SWLIMIT.RECORD", key, 0, f"{part['window']}ms", f"{part['resolution']}ms", "COST"]
    return [*record, units, "AT", NOW - part["resolution"]], [*record, 1, "AT", NOW + part["resolution"]]


def contents(call, key):
    """What a key holds, except the last token and bytes."""
    shown = call("SWLIMIT.INFO", key)
    return {name: value for name, value in zip(shown[::2], shown[1::2]) if name not in (b"token", b"memory")}


@pytest.mark.parametrize("decider, entry, case", [
    pytest.param(decider, entry, case, id=f"{decider} {as_text(entry)} {case['reply']}")
    for entry in ENTRIES for case in entry["undo"] if case["commands"]
    for decider in ("module", "script") if decider == "module" or (entry["script"] and not is_too_fine(entry))])
def test_an_undo_takes_back_what_the_command_took(at_once, decider, entry, case):
    """And nothing of its neighbours', which leave as much as the reply tells."""
    call, keys = at_once[decider], sent(entry["keys"])
    told = case["reply"] or entry["undo"][0]["reply"]
    replies = told[1:] if entry["command"] in ("MALLOW", "ADMIT") else [told]
    before, after = zip(*(neighbours(part, limit - granted - remaining)
                          for part, (granted, limit, remaining, *_) in zip(parts(entry), replies)))

    def left(command, *undo):
        call("FLUSHALL")
        replies = [call(*words) for words in (*before, *command, *after, *undo)]
        assert [reply for reply in replies if isinstance(reply, Failed)] == []
        assert not command or replies[len(before)] == told
        return [contents(call, key) for key in keys]

    without, command = left([]), [sent(entry["words"])]
    assert all(one != other for one, other in zip(left(command), without))
    assert left(command, *map(sent, case["commands"])) == without


@pytest.mark.parametrize("decider", ["module", "script"])
@pytest.mark.parametrize("entry, case", [
    pytest.param(entry, case, id=f"{as_text(entry)} {case['since']}")
    for entry in ENTRIES if entry["command"] == "BUDGET" for case in entry["undo"] if case["commands"]])
def test_a_budgets_undo_takes_nothing_of_the_next_period(at_once, decider, entry, case):
    """Even if that begins at once; until the end of its own, it takes all."""
    call, (key,), (undo,) = at_once[decider], sent(entry["keys"]), map(sent, case["commands"])
    for before, given in (LATER - 1, case["reply"][0]), (LATER, 0):
        call("FLUSHALL")
        call("SWLIMIT.BUDGET", key, 10, LATER, "COST", case["reply"][0])
        call("SWLIMIT.BUDGET", key, 10, LATER + 1, "COST", 2, "AT", before)
        assert call(*undo, "AT", before) == given
        assert contents(call, key)[b"used"] == 2
