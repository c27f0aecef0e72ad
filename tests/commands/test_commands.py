"""What the server says of the commands: COMMAND DOCS, COMMAND INFO, key positions, redis-cli's hints."""

import fcntl
import json
import os
import pty
import select
import struct
import termios
import time

import pytest

OPTIONAL = {"flags": ["optional"]}


def argument(name, kind, **more):
    return {"name": name, "type": kind} | more


QUOTA = [argument("key", "key", key_spec_index=0), argument("limit", "integer"), argument("window", "string"),
         argument("resolution", "string")]
COST = argument("n", "integer", token="COST", **OPTIONAL)
PARTIAL = argument("partial", "pure-token", token="PARTIAL", **OPTIONAL)
STRICT = argument("strict", "pure-token", token="STRICT", **OPTIONAL)
AGE = argument("age", "string", token="AGE", **OPTIONAL)
FROM = argument("from", "oneof", **OPTIONAL, arguments=[
    argument("age", "string", token="AGE"), argument("since-unix-ms", "unix-time", token="SINCE")])
BLOCK = argument("duration", "string", token="BLOCK", **OPTIONAL)
AT = argument("unix-ms", "unix-time", token="AT", **OPTIONAL)
UNTIL = argument("until-unix-ms", "unix-time", token="UNTIL", **OPTIONAL)

KEY = QUOTA[0]
LIMIT = QUOTA[1]
IDS = argument("id", "string", flags=["multiple"])

COMMANDS = {  # arity, flags, arguments
    "swlimit.allow": (-5, {"write", "denyoom", "fast"}, [*QUOTA, COST, PARTIAL, STRICT, BLOCK, AT]),
    "swlimit.peek": (-5, {"readonly", "fast"}, [*QUOTA, COST, PARTIAL, STRICT, AT]),
    "swlimit.record": (-5, {"write", "denyoom", "fast"}, [*QUOTA, COST, STRICT, AGE, BLOCK, AT, UNTIL]),
    "swlimit.refund": (-3, {"write", "fast"}, [QUOTA[0], argument("units", "integer"), FROM, AT, UNTIL]),
    "swlimit.block": (-3, {"write", "denyoom", "fast"}, [
        QUOTA[0], argument("duration", "string"), argument("nx", "pure-token", token="NX", **OPTIONAL), AT, UNTIL]),
    "swlimit.unblock": (-2, {"write", "fast"}, [QUOTA[0], AT, UNTIL]),
    "swlimit.info": (2, {"readonly"}, [QUOTA[0]]),  # every count is in the reply
    "swlimit.mallow": (-7, {"write", "denyoom"}, [
        argument("numkeys", "integer"), argument("key", "key", key_spec_index=0, flags=["multiple"]),
        argument("limits", "block", flags=["multiple"], arguments=[*QUOTA[1:], argument("cost", "integer")]),
        STRICT, AT]),
    "swlimit.acquire": (-6, {"write", "denyoom", "blocking"}, [*QUOTA, argument("timeout", "string"), COST, STRICT]),
    "swlimit.hold": (-5, {"write", "denyoom", "blocking"}, [
        KEY, LIMIT, argument("ttl", "string"), argument("id", "string"), COST,
        argument("timeout", "string", token="WAIT", **OPTIONAL), AT,
        argument("end-unix-ms", "unix-time", token="END", **OPTIONAL),
        argument("token", "integer", token="TOKEN", **OPTIONAL),
        argument("reservations", "block", token="RESERVED", **OPTIONAL, arguments=[
            argument("count", "integer"), argument("reservation", "string", flags=["multiple"])]), UNTIL]),
    "swlimit.release": (-3, {"write", "fast"}, [KEY, IDS, AT, UNTIL]),
    "swlimit.renew": (-4, {"write", "fast"}, [KEY, argument("ttl", "string"), IDS, AT, UNTIL]),
    "swlimit.holders": (-2, {"readonly"}, [KEY, argument("count", "integer", **OPTIONAL), AT]),  # looks at all holds
    "swlimit.budget": (-4, {"write", "denyoom", "fast"}, [
        KEY, LIMIT, argument("until", "integer"), COST, PARTIAL,
        argument("force", "pure-token", token="FORCE", **OPTIONAL), AT, UNTIL]),
    "swlimit.admit": (-7, {"write", "denyoom"}, [
        argument("numkeys", "integer"), argument("key", "key", key_spec_index=0, flags=["multiple"]),
        argument("clause", "oneof", flags=["multiple"], arguments=[
            argument("rate", "block", token="RATE", arguments=[*QUOTA[1:], argument("cost", "integer")]),
            argument("hold", "block", token="HOLD", arguments=[
                LIMIT, argument("ttl", "string"), argument("id", "string"), argument("cost", "integer")]),
            argument("budget", "block", token="BUDGET", arguments=[
                LIMIT, argument("until", "integer"), argument("cost", "integer")])]),
        STRICT, AT]),
    "swlimit.settle": (-4, {"write"}, [
        argument("numkeys", "integer"), argument("key", "key", key_spec_index=0, flags=["multiple"]),
        argument("id", "string"), argument("used", "integer", flags=["optional", "multiple"]), AT]),
    "swlimit.top": (-1, {"readonly"}, [argument("count", "integer", **OPTIONAL)]),
}
CLAUSE = "RATE limit window resolution cost|HOLD limit ttl id cost|BUDGET limit until cost"
COUNTED = {"swlimit.mallow", "swlimit.admit", "swlimit.settle"}  # their keys follow a number of keys
NEW = {f"swlimit.{name}" for name in (
    "acquire", "admit", "block", "budget", "hold", "holders", "release", "renew", "settle", "top",
    "unblock")}  # since 0.2.0


def as_json(server, *words):
    return json.loads(server.cli(*words, flags=["-3", "--json"]))


def plain(argument):
    """An argument without what newer servers add to it."""
    names = "name", "type", "token", "flags", "key_spec_index"
    known = {name: argument[name] for name in names if name in argument}
    if "arguments" in argument:
        known["arguments"] = [plain(inner) for inner in argument["arguments"]]
    return known


def test_these_are_all_commands(server):
    assert set(server.cli("COMMAND", "LIST", "FILTERBY", "MODULE", "swlimit").split()) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_documentation(server, name):
    docs = as_json(server, "COMMAND", "DOCS", name)[name]
    assert [plain(argument) for argument in docs["arguments"]] == COMMANDS[name][2]
    assert docs["summary"].endswith(".") and len(docs["summary"]) > 20
    assert docs["complexity"].startswith("O(")
    assert docs["since"] == ("0.2.0" if name in NEW else "0.1.0")
    assert docs["module"] == "swlimit"


@pytest.mark.parametrize("name", COMMANDS)
def test_information(server, name):
    info = as_json(server, "COMMAND", "INFO", name)[0]
    arity, flags, _ = COMMANDS[name]
    assert info[:2] == [name, arity]
    assert set(info[2]) & {"write", "readonly", "denyoom", "fast", "blocking", "admin", "noscript", "loading"} == flags
    assert info[3:6] == [2, 2, 1] if name in COUNTED else [0, 0, 0] if name == "swlimit.top" else [1, 1, 1]


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_the_first_of_counted_keys_says_which_slot_it_is(server, name):
    """Servers route a module's command by a range of words, which clients are not to take for one more key."""
    _, first = as_json(server, "COMMAND", "INFO", name)[0][8]
    assert set(first["flags"]) == {"RW", "not_key"}
    assert first["begin_search"] == {"type": "index", "spec": {"index": 2}}
    assert first["find_keys"] == {"type": "range", "spec": {"lastkey": 0, "keystep": 1, "limit": 0}}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "swlimit.top"])
def test_key_specifications(server, name):
    specification = as_json(server, "COMMAND", "INFO", name)[0][8][0]
    reads = name in ("swlimit.peek", "swlimit.info", "swlimit.holders")
    flags = {"RO", "access"} if reads else {"RW", "access", "update"}
    assert set(specification["flags"]) == flags
    assert specification["begin_search"] == {"type": "index", "spec": {"index": 1}}
    assert specification["find_keys"] == (
        {"type": "keynum", "spec": {"keynumidx": 0, "firstkey": 1, "keystep": 1}} if name in COUNTED else
        {"type": "range", "spec": {"lastkey": 0, "keystep": 1, "limit": 0}})


@pytest.mark.parametrize("command, keys", [
    ("SWLIMIT.ALLOW one 10 60 5 COST 3", ["one"]), ("SWLIMIT.PEEK one 10 60 5", ["one"]),
    ("SWLIMIT.RECORD one 10 60 5 AT 7", ["one"]), ("SWLIMIT.REFUND one 3", ["one"]), ("SWLIMIT.INFO one", ["one"]),
    ("SWLIMIT.BLOCK one 5m NX", ["one"]), ("SWLIMIT.UNBLOCK one AT 7", ["one"]),
    ("SWLIMIT.ACQUIRE one 10 60 5 1m COST 3", ["one"]),
    ("SWLIMIT.HOLD one 10 60 id COST 3", ["one"]), ("SWLIMIT.RELEASE one id two", ["one"]),
    ("SWLIMIT.RENEW one 60 id two", ["one"]), ("SWLIMIT.HOLDERS one 5", ["one"]),
    ("SWLIMIT.BUDGET one 10 1900000000000 FORCE", ["one"]),
    ("SWLIMIT.ADMIT 2 one two HOLD 5 60 id 1 RATE 10 60 5 1 AT 7", ["one", "two"]),
    ("SWLIMIT.SETTLE 2 one two id 5 AT 7", ["one", "two"]),
    ("SWLIMIT.MALLOW 1 one 10 60 5 1", ["one"]),
    ("SWLIMIT.MALLOW 3 one two three 10 60 5 1 10 60 5 1 10 60 5 1 STRICT AT 7", ["one", "two", "three"]),
])
def test_keys_of_a_call(server, command, keys):
    assert server.cli("COMMAND", "GETKEYS", *command.split()).split("\n") == keys
    access = as_json(server, "COMMAND", "GETKEYSANDFLAGS", *command.split())
    assert [key for key, _ in access] == keys
    reads = any(name in command for name in ("PEEK", "INFO", "HOLDERS"))
    expected = {"RO", "access"} if reads else {"RW", "access", "update"}
    assert all(set(flags) == expected for _, flags in access)


@pytest.mark.parametrize("numkeys", ["0", "x", "-1", "9223372036854775807"])
def test_keys_of_a_call_that_is_wrong(server, numkeys):
    assert server.cli("COMMAND", "GETKEYS", "SWLIMIT.MALLOW", numkeys, "one", 10, 60, 5, 1).startswith("ERR ")


@pytest.mark.parametrize("command, hint", [
    ("SWLIMIT.ALLOW", "key limit window resolution [COST n] [PARTIAL] [STRICT] [BLOCK duration] [AT unix-ms]"),
    ("swlimit.peek", "key limit window resolution [COST n] [PARTIAL] [STRICT] [AT unix-ms]"),
    ("SWLIMIT.RECORD", "key limit window resolution [COST n] [STRICT] [AGE age] [BLOCK duration] [AT unix-ms] "
                       "[UNTIL until-unix-ms]"),
    ("SWLIMIT.REFUND", "key units [AGE age|SINCE since-unix-ms] [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.BLOCK", "key duration [NX] [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.UNBLOCK", "key [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.INFO", "key"),
    ("SWLIMIT.ACQUIRE", "key limit window resolution timeout [COST n] [STRICT]"),
    ("SWLIMIT.TOP", "[count]"),
    ("SWLIMIT.HOLD", "key limit ttl id [COST n] [WAIT timeout] [AT unix-ms] [END end-unix-ms] [TOKEN token] "
                     "[RESERVED count reservation [reservation ...]] [UNTIL until-unix-ms]"),
    ("SWLIMIT.RELEASE", "key id [id ...] [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.RENEW", "key ttl id [id ...] [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.HOLDERS", "key [count] [AT unix-ms]"),
    ("SWLIMIT.ADMIT", f"numkeys key [key ...] {CLAUSE} [{CLAUSE} ...] [STRICT] [AT unix-ms]"),
    ("SWLIMIT.SETTLE", "numkeys key [key ...] id [used [used ...]] [AT unix-ms]"),
    ("SWLIMIT.BUDGET", "key limit until [COST n] [PARTIAL] [FORCE] [AT unix-ms] [UNTIL until-unix-ms]"),
    ("SWLIMIT.MALLOW", "numkeys key [key ...] limit window resolution cost [limit window resolution cost ...] "
                       "[STRICT] [AT unix-ms]"),
])
def test_hints_while_typing(server, command, hint):
    """What redis-cli shows on a terminal after the command's name has been typed."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 400, 0, 0))  # before redis-cli looks
        cli = server.binaries.cli
        os.execvpe(cli, [cli, "-p", str(server.port)], os.environ | server.binaries.env | {"TERM": "xterm"})
    try:
        shown, typed, deadline = "", False, time.monotonic() + 10
        while f"{command} " not in shown or hint not in shown.split(f"{command} ")[-1]:
            assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown
            shown += os.read(terminal, 65_536).decode()
            if not typed and shown.endswith("> "):
                os.write(terminal, f"{command} ".encode())
                typed = True
        after = shown.split(f"{command} ")[-1].split("\x1b[0m")[0]
        assert after.split("m", 1)[1] == hint
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
