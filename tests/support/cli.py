"""Ask a server through redis-cli, as users do, and turn what it prints into values."""

import re

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
MARK = "--end-of-reply--"


def numbers(reply):
    """The integers of a reply, in order and without nesting."""
    assert re.fullmatch(r"(-?\d+\s*)+", reply), reply
    return [int(word) for word in reply.split()]


def ask(server, *words):
    """The five integers (or all the integers, for other commands) that a command answers."""
    return numbers(server.cli(*words))


def quote(word):
    """A word as the input of redis-cli spells it, whatever its bytes are."""
    data = word if isinstance(word, bytes) else str(word).encode()
    return '"' + "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in data) + '"'


def feed(server, *lines, flags=()):
    """What one redis-cli prints for these lines of input, as non-empty lines: for MULTI and other dialogues."""
    output = server.cli(flags=flags, stdin="".join(f"{line}\n" for line in lines).encode())
    return [line for line in output.split("\n") if line]


def batch(server, commands, flags=()):
    """The replies, as printed, to commands (each a sequence of words) that one redis-cli sends one after the other."""
    lines = [line for words in commands for line in (" ".join(map(quote, words)), f"ECHO {MARK}")]
    output = server.cli(flags=flags, stdin="".join(f"{line}\n" for line in lines).encode()) + "\n"
    replies = re.split(rf'^"?{MARK}"?\n', output, flags=re.MULTILINE)
    assert len(replies) == len(commands) + 1, output[-2000:]
    return [reply.rstrip("\n") for reply in replies[:-1]]


def stored(server, key):
    """What SWLIMIT.INFO shows of a key: its numbers by name, and `counts` as a dictionary; None if there is no key."""
    lines = server.cli("SWLIMIT.INFO", key).split("\n")
    return None if lines == ["ERR no such key"] else info_fields(lines)


def info_fields(lines):
    at = lines.index("counts")
    fields = {name: int(value) for name, value in zip(lines[0:at:2], lines[1:at:2], strict=True)}
    counts = [int(number) for number in lines[at + 1:] if number]
    return fields | {"counts": dict(zip(counts[::2], counts[1::2], strict=True))}
