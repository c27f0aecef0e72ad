"""What the server says of the commands, which is what it takes: COMMAND DOCS, COMMAND INFO, redis-cli's hints."""

import fcntl
import itertools
import json
import os
import pty
import select
import struct
import termios
import time

import pytest

from conformance.vectors.make import HERE
from module.commands.declared import COMMANDS, FILE, shown, syntax, text
from support.resp import Connection, Failed

each_command = pytest.mark.parametrize("command", COMMANDS)
EARLIER, LATER = 1_900_000_000_000, 2_000_000_000_000
WORDS = {"numkeys": [1], "key": ["k"], "id": ["id"], "limit": [5], "window": ["60s"], "resolution": ["5s"],
         "ttl": ["30s"], "timeout": ["0"], "duration": ["1m"], "age": ["1s"], "cost": [1], "units": [1], "n": [2],
         "count": [1], "until": [LATER], "unix-ms": [EARLIER], "since-unix-ms": [EARLIER],
         "effect": [f"c5000*12@{EARLIER}"],
         "used": []}  # numkeys says of how many
UNSAID = {"AT", "GT", "SWLIMIT.APPLY"}  # by clients: for logs, operators, replication and the AOF


def forms(arguments):
    """The ways to write these arguments, each of them once."""
    for parts in itertools.product(*map(forms_of, arguments)):
        yield list(itertools.chain(*parts))


def forms_of(argument):
    inner = argument.get("arguments", [])
    kinds = {"oneof": lambda: itertools.chain(*map(forms_of, inner)), "block": lambda: forms(inner),
             "pure-token": lambda: [[]]}
    values = kinds.get(argument["type"], lambda: [WORDS[argument["name"]]])()
    token = [argument["token"]] if "token" in argument else []
    return [*([[]] if argument.get("optional") else []), *(token + value for value in values)]


def every(arguments):
    """Arguments, and those inside of them."""
    for argument in arguments:
        yield argument
        yield from every(argument.get("arguments", []))


def tokens(command):
    return {argument["token"]: argument for argument in every(COMMANDS[command]["arguments"]) if "token" in argument}


def test_the_file_has_what_the_server_says(server):
    """The same on all releases: run tests/module/commands/declared.py."""
    assert FILE.read_text() == text(shown(server))


@each_command
def test_what_is_declared_is_taken(server, command):
    with Connection(server.port) as pipe:
        pipe.call("SWLIMIT.RECORD", "k", 5, "60s", "5s")
        for words in forms(COMMANDS[command]["arguments"]):
            if command != "SWLIMIT.INFO":
                pipe.call("DEL", "k")
            assert not isinstance(reply := pipe.call(command, *words), Failed), (words, reply)


@pytest.mark.parametrize("command", [name for name, about in COMMANDS.items() if not any(
    argument["name"] == "id" and argument.get("multiple") for argument in about["arguments"])])  # ids are any words
def test_nothing_else_is_taken(server, command):
    """No option twice, of another command, or beside one that excludes it; and none without what belongs to it."""
    arguments, own = COMMANDS[command]["arguments"], tokens(command)
    bare = next(forms(arguments))
    excluded = [forms_of(one) for one in every(arguments) if one["type"] == "oneof" and "multiple" not in one]
    others = [forms_of(one)[-1] for name in COMMANDS for token, one in tokens(name).items() if token not in own]
    optional = [forms_of(one)[-1] for one in own.values() if one.get("optional")]
    wrong = [*others, *(form + form for form in optional),
             *(one + other for (_, *forms) in excluded for one, other in itertools.permutations(forms, 2)),
             *(form[:cut] for form in optional for cut in range(1, len(form)))]
    with Connection(server.port) as pipe:
        for words in wrong:
            assert isinstance(pipe.call(command, *bare, *words), Failed), words
            pipe.call("DEL", "k")


def test_the_vectors_have_all_that_clients_say():
    """Each command, and each option of it."""
    said = {}
    for entry in json.loads((HERE / "commands.json").read_text()):
        name, *words = entry["words"]
        said.setdefault(name, set()).update(word for word in words if isinstance(word, str) and word.isupper())
    assert said == {name: set(tokens(name)) - UNSAID for name in COMMANDS if name not in UNSAID}


@each_command
def test_where_old_clients_look_for_keys(server, command):
    first, last, step = json.loads(server.cli("COMMAND", "INFO", command, flags=["-3", "--json"]))[0][3:6]
    (specification, *_), (argument, *_) = COMMANDS[command]["key_specs"] or [None], COMMANDS[command]["arguments"]
    assert (first, last, step) == (
        (0, 0, 0) if not specification else (2, 2, 1) if argument["name"] == "numkeys"
        else (1, -1, 2) if command == "SWLIMIT.APPLY" else (1, 1, 1))


@pytest.mark.parametrize("numkeys", ["0", "x", "-1", "9223372036854775807"])
def test_keys_of_a_call_that_is_wrong(server, numkeys):
    assert server.cli("COMMAND", "GETKEYS", "SWLIMIT.MALLOW", numkeys, "one", 10, 60, 5, 1).startswith("ERR ")


@each_command
def test_hints_while_typing(server, command):
    """What redis-cli shows on a terminal after the command's name has been typed."""
    hint = syntax(COMMANDS[command]["arguments"])
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
