"""The commands as servers show them: src/server/module/commands.json, in the form of the servers' own published files.

`python tests/module/commands/declared.py` writes it. COMMAND DOCS and COMMAND INFO say the same on all releases, except
the ACL categories, which are left out, and what newer servers add.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.server import ROOT, Server  # noqa: E402

FILE = ROOT / "src/server/module/commands.json"
DERIVED = {"module", "movablekeys"}  # flags that no declaration has
COMMANDS = json.loads(FILE.read_text()) if FILE.exists() else {}


def shown(server):
    """What a server says of the module's commands, by name."""
    names = sorted(server.cli("COMMAND", "LIST", "FILTERBY", "MODULE", "swlimit").split())
    docs, infos = (json.loads(server.cli("COMMAND", word, *names, flags=["-3", "--json"])) for word in ("DOCS", "INFO"))
    return {name.upper(): command(docs[name], info) for name, info in zip(names, infos)}


def command(docs, info):
    _, arity, flags, _, _, _, _, _, keys, *_ = info
    return {name: docs[name] for name in ("summary", "complexity", "group", "since")} | {
        "arity": arity, "command_flags": sorted(flag.upper() for flag in set(flags) - DERIVED),
        "key_specs": [{"flags": sorted(flag.upper() for flag in key["flags"])} |
                      {name: search(key[name]) for name in ("begin_search", "find_keys")} for key in keys],
        "arguments": [argument(one) for one in docs["arguments"]]}


def search(found):
    names = {"index": "pos", "keystep": "step"}
    return {found["type"]: {names.get(name, name): value for name, value in found["spec"].items()}}


def argument(found):
    known = {name: found[name] for name in ("name", "type", "key_spec_index", "token") if name in found}
    inner = {"arguments": [argument(one) for one in found["arguments"]]} if "arguments" in found else {}
    return known | dict.fromkeys(found.get("flags", []), True) | inner


def text(commands):
    """As JSON, one argument a line."""
    return listed("{}", "", (f"{json.dumps(name)}: {listed('{}', '  ', fields(about))}"
                             for name, about in commands.items())) + "\n"


def fields(about):
    for name, value in about.items():
        is_list = name == "arguments"
        shown = listed("[]", "    ", map(json.dumps, value)) if is_list else json.dumps(value)
        yield f"{json.dumps(name)}: {shown}"


def listed(brackets, indent, parts):
    inner = ",\n".join(indent + part for part in parts)
    return f"{brackets[0]}\n{inner}\n{indent[2:]}{brackets[1]}"


def syntax(arguments, again="...", other="|"):
    """Arguments as redis-cli shows them while one types."""
    return " ".join(one_of(argument, again, other) for argument in arguments)


def one_of(argument, again, other):
    parts = [one_of(one, again, other) for one in argument.get("arguments", [])]
    values = {"oneof": other.join(parts), "block": " ".join(parts), "pure-token": ""}
    shown = f"{argument.get('token', '')} {values.get(argument['type'], argument['name'])}".strip()
    if argument.get("multiple"):
        shown = f"{shown} [{shown} {again}]"
    return f"[{shown}]" if argument.get("optional") else shown


if __name__ == "__main__":
    with Server() as server:
        FILE.write_text(text(shown(server)))
