"""Copy keys, except holds, from a server with the module to one where the script takes its place, or back. Counts,
blocks, budgets and the time to live stay what they are; the keys copied from stay, too. On one server give the copies
another prefix. What is counted while this runs may be missing from the copy: stop first what counts. `takeover` copies
nothing: it hands the script's keys, holds too, to the module that their own server has loaded."""

import argparse
import sys
from pathlib import Path

import redis

from .layout import BUDGET_MAGIC, MAGIC, MAGIC_IN_USE, Budget, Entry, decode, effects, encode

BATCH = 500
TAKEOVER = Path(__file__).parents[2] / "src/server/script/takeover.lua"


def main():
    parser = arguments()
    options = parser.parse_args()
    if (options.to == "takeover") == bool(options.target):
        parser.error("takeover is for one server, and a copy goes from one to another")
    try:
        source = redis.Redis.from_url(options.source)
        if options.to == "takeover":
            return take_over(source, options.match)
        target = redis.Redis.from_url(options.target)
        read, write = (read_module, write_script) if options.to == "script" else (read_script, write_module)
        copied = refused = 0
        for key in source.scan_iter(match=options.match, count=BATCH):
            name = options.prefix.encode() + key
            try:
                found = read(source, key)
                if found is None:
                    continue
                if target.exists(name) and not options.replace:
                    raise ValueError("there is such a key already; --replace overwrites it")
                write(target, name, *found)
                copied += 1
            except (ValueError, redis.ResponseError) as error:
                refused += 1
                print(f"convert: {key!r}: {error}", file=sys.stderr)
    except (redis.ConnectionError, redis.ResponseError, ValueError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    print(f"convert: {copied} keys copied, {refused} not")
    return 1 if refused else 0


def take_over(server, match):
    """Hand keys over to the module, each in one step."""
    script = server.register_script(TAKEOVER.read_text())
    taken = refused = 0
    for key in server.scan_iter(match=match, count=BATCH):
        try:
            taken += script(keys=[key])
        except redis.ResponseError as error:
            refused += 1
            print(f"convert: {key!r}: {error}", file=sys.stderr)
    print(f"convert: {taken} keys taken over, {refused} not")
    return 1 if refused else 0


def arguments():
    parser = argparse.ArgumentParser(prog="convert", description=__doc__)
    parser.add_argument("to", choices=["script", "module", "takeover"], help="what the copies are for, or takeover")
    parser.add_argument("source", metavar="FROM", help="redis://… of the server that has the keys")
    parser.add_argument("target", metavar="TO", nargs="?", help="redis://… of the server that shall have them")
    parser.add_argument("--prefix", default="", help="what to put before the names of the copies")
    parser.add_argument("--match", default="*", metavar="PATTERN", help="only keys like this, as SCAN takes it")
    parser.add_argument("--replace", action="store_true", help="overwrite keys that exist")
    return parser


def lives(pttl):
    """Whether a key with this PTTL is there, and lives for a while."""
    return pttl != -2 and pttl != 0


def read_module(client, key):
    """What a key of the module holds, and its PTTL; None for other keys."""
    kind = client.type(key)
    if kind not in (b"sw-window", b"sw-budget"):
        return None
    with client.pipeline() as transaction:
        shown, pttl = transaction.execute_command("SWLIMIT.INFO", key).pttl(key).execute()
    if not lives(pttl):
        return None
    shown = shown if isinstance(shown, dict) else dict(zip(shown[::2], shown[1::2]))
    if kind == b"sw-budget":
        return Budget(shown[b"used"], shown[b"since"], shown[b"until"]), pttl
    counts = [tuple(count) for count in shown[b"counts"]]
    if not counts and not shown[b"blocked"]:
        return None  # a block that has passed
    return Entry(shown[b"window"], shown[b"resolution"], counts, shown[b"blocked"], shown.get(b"since", 0)), pttl


def read_script(client, key):
    """What a key of the script holds, and its PTTL; None for other keys."""
    if client.type(key) != b"string" or client.getrange(key, 0, 3) not in (MAGIC, MAGIC_IN_USE, BUDGET_MAGIC):
        return None
    with client.pipeline() as transaction:
        value, pttl = transaction.get(key).pttl(key).execute()
    return (decode(value), pttl) if value and lives(pttl) else None


def write_script(client, key, entry, pttl):
    client.set(key, encode(entry), px=pttl if pttl > 0 else None)


def write_module(client, key, entry, pttl):
    seconds, micros = client.time()
    until = seconds * 1000 + micros // 1000 + pttl if pttl > 0 else 0
    with client.pipeline() as transaction:
        transaction.delete(key)
        for effect in effects(entry):
            transaction.execute_command("SWLIMIT.APPLY", key, f"{effect}~{until}")
        transaction.execute()


sys.exit(main())
