"""Commands are spelt, packed for the script and undone as the test vectors say."""

import json
import math

import pytest
import redis

from support.server import ROOT
from swlimit._core.quota import Geometry, Quota, WarmUp
from swlimit._protocol import commands, script_fallback
from swlimit._transport.endpoint import Endpoint
from swlimit._transport.server_health import ServerHealth

NOW = 1_760_054_400_000
ENTRIES = [one for one in json.loads((ROOT / "tests/conformance/vectors/commands.json").read_text())
           if one["command"] != "TOP"]  # no limiter sends it
TYPES = {"MALLOW": commands.AllowAll} | {
    name.upper(): getattr(commands, name) for name in (
        "Allow", "Peek", "Record", "Acquire", "Refund", "Block", "Unblock", "Budget", "Hold", "Release", "Renew",
        "Holders", "Admit", "Settle", "Info")}
CLAUSES = {"RATE": commands.RateClause, "BUDGET": commands.BudgetClause, "HOLD": commands.HoldClause}


def as_bytes(value):
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def read(fields, strict=False):
    """The arguments of a command, or of a member, from its fields."""
    fields = {{"nx": "unless_blocked"}.get(name, name): value for name, value in fields.items() if name != "kind"}
    if "window" in fields:
        geometry = Geometry(fields.pop("window"), fields.pop("resolution"))
        warm_up = WarmUp(fields.pop("warm_up"), fields.pop("cold")) if "warm_up" in fields else None
        fields["quota"] = Quota(fields.pop("limit"), geometry, fields.pop("strict", strict), warm_up)
    for name, value in fields.items():
        if name in ("key", "id"):
            fields[name] = as_bytes(value)
        elif name == "ids":
            fields[name] = [as_bytes(one) for one in value]
        elif name == "reserved":
            fields[name] = [(as_bytes(one["key"]), one["used"]) for one in value]
        elif name == "members":
            fields[name] = [commands.RateClause(**read(one, fields["strict"])) for one in value]
        elif name == "clauses":
            fields[name] = [CLAUSES[one["kind"]](**read(one, fields["strict"])) for one in value]
    return fields


def command_of(entry):
    return TYPES[entry["command"]](**read(entry["fields"]))


def spelled(words):
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: " ".join(map(str, entry["words"])))


@each_entry
def test_what_an_old_module_lacks(entry):
    command = command_of(entry)
    is_newer = command.is_newer or not command.in_script or "WARMUP" in command.words()
    assert is_newer == (entry["since"] != "0.1.0")


def test_every_command_is_there():
    assert {entry["command"] for entry in ENTRIES} == set(TYPES)


@each_entry
def test_words(entry):
    command = command_of(entry)
    assert spelled(command.words()) == [as_bytes(word) for word in entry["words"]]
    assert list(command.keys) == [as_bytes(key) for key in entry["keys"]] and command.key == command.keys[0]
    assert command.reads is entry["reads"]


@each_entry
def test_the_script(entry, monkeypatch):
    monkeypatch.setattr(script_fallback.time, "time_ns", lambda: NOW * 1_000_000)
    command, script = command_of(entry), entry["script"]
    dialect = script_fallback.Dialect("never", script_fallback.TakenOver())
    if script is None:
        assert not command.in_script
        assert dialect.encode(command) == command.words()
        return
    keys = [as_bytes(key) for key in entry["keys"]]
    call = [b"EVALSHA_RO" if entry["reads"] else b"EVALSHA", script_fallback.sha().encode(), b"%d" % len(keys), *keys]
    packed = "packed" in script
    for dialect.uses_own_clock, name in (False, "packed" if packed else "words"), (True, "dated"):
        if name in script:
            expected = [bytes.fromhex(script[name])] if packed else [as_bytes(word) for word in script[name]]
            assert spelled(dialect.encode(command)) == call + expected


class Health(ServerHealth):
    """Keeps what is repeated in the background."""

    def __init__(self):
        self.repeated, self.endpoint = [], Endpoint("", None, {})
        self.repeat = self.repeated.append


@each_entry
def test_undo(entry, monkeypatch):
    command, keys = command_of(entry), [as_bytes(key) for key in entry["keys"]]
    for case in entry["undo"] or [{"reply": reply, "commands": []} for reply in (1, None)]:
        health, reply, passed = Health(), case["reply"], 20
        if isinstance(reply, dict):
            reply = redis.exceptions.OutOfMemoryError(reply["error"])
        monkeypatch.setattr(commands.time, "monotonic", lambda: 1000 + passed / 1000)
        sent = health.undo(command, reply, 1000)
        if sent and isinstance(sent[0], commands.Time):
            ms = case["since"] + math.ceil(passed * 1.001)
            sent = health.undo(*sent, [ms // 1000, ms % 1000 * 1000], 1000)
        found = sorted([*sent, *health.repeated], key=lambda one: keys.index(one.key))
        assert [spelled(one.words()) for one in found] == [
            [as_bytes(word) for word in words] for words in case["commands"]], case
        for one in health.repeated:
            nothing = 0 if entry["command"] == "HOLD" else [0]
            assert one.repeat.seconds * 1000 == case["repeat_for"]
            assert one.repeat.is_done(nothing) is (reply is not None)
        assert ("repeat_for" in case) == bool(health.repeated)
