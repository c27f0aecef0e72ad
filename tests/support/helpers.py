"""Small words that the tests share: instants, and what redis-cli prints turned into values."""

import re
import time
from contextlib import contextmanager

MAX = 2**53 - 1
T = 1_700_000_000_000 // 3_600_000 * 3_600_000  # an instant at which an hour begins; far enough from today's clock

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


def digest(server):
    """One number for everything the server holds."""
    return server.cli("DEBUG", "DIGEST")


def stored(server, key):
    """What SWLIMIT.INFO shows of a key: its numbers by name, and `counts` as a dictionary; None if there is no key."""
    lines = server.cli("SWLIMIT.INFO", key).split("\n")
    return None if lines == ["ERR no such key"] else info_fields(lines)


def info_fields(lines):
    at = lines.index("counts")
    fields = {name: int(value) for name, value in zip(lines[0:at:2], lines[1:at:2])}
    counts = [int(number) for number in lines[at + 1:] if number]
    return fields | {"counts": dict(zip(counts[::2], counts[1::2]))}


def fields(text):
    """`name:value` lines, as INFO prints them, as a dictionary."""
    return dict(line.split(":", 1) for line in text.replace("\r", "").split("\n") if ":" in line)


def statistics(server):
    """INFO swlimit, without the prefix of its fields; numbers as integers."""
    found = fields(server.cli("INFO", "swlimit"))
    return {name.removeprefix("swlimit_"): int(value) if value.isdigit() else value for name, value in found.items()}


def eventually(probe, expected=True, seconds=10):
    """Wait until `probe()` is `expected`, for what a background thread or another process does."""
    deadline = time.monotonic() + seconds
    while (found := probe()) != expected:
        assert time.monotonic() < deadline, f"still {found!r} instead of {expected!r}"
        time.sleep(0.01)


def follow(replica, primary):
    """Make `replica` replicate `primary` and wait until it is in step."""
    replica.cli("REPLICAOF", "127.0.0.1", primary.port)
    in_step(replica, primary)


def in_step(replica, primary):
    """Wait until a replica has everything its primary has sent."""
    def state():
        of_replica, of_primary = (fields(server.cli("INFO", "replication")) for server in (replica, primary))
        return (of_replica.get("master_link_status"),
                of_replica.get("slave_repl_offset") == of_primary["master_repl_offset"])
    eventually(state, ("up", True), seconds=20)


def aof_commands(server):
    """The commands written to the append-only file since its base, each as a list of words, without SELECT."""
    folder = server.folder / "appendonlydir"
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.incr.aof"))).decode("latin-1")
    text = re.sub(r"^#.*\r?\n", "", text, flags=re.MULTILINE)
    commands, rest = [], text
    while rest:
        header, rest = rest.split("\r\n", 1)
        words = []
        for _ in range(int(header.removeprefix("*"))):
            length, rest = rest.split("\r\n", 1)
            length = int(length.removeprefix("$"))
            words.append(rest[:length])
            rest = rest[length + 2:]
        commands.append(words)
    return [words for words in commands if words[0].upper() != "SELECT"]


@contextmanager
def unchanged(server):
    """Nothing that the server holds, and nothing that it counted, changes inside of this block."""
    before = digest(server), statistics(server)
    yield
    assert (digest(server), statistics(server)) == before


def random_commands(draw, count, keys=20):
    """Commands of all kinds on some keys: grants, denials, errors, several geometries, clocks that jump.

    No key expires by the real clock within minutes.
    """
    at, commands = T, []
    for _ in range(count):
        at += draw.choice([0, 1, 999, 60_000, 60_000, 600_000, -120_000])
        geometries = [("1h", "1h"), ("1h", "1m"), ("1h", "1m"), ("1d", "1h"), ("6h", "7s")]  # the last is refused
        key, other, quota = draw.randrange(keys), draw.randrange(keys), (draw.randint(0, 40), *draw.choice(geometries))
        cost = ["COST", draw.randint(1, 9)]
        options = [option for option in ("STRICT", "PARTIAL") if draw.random() < 0.2]
        commands.append(draw.choice([
            ["SWLIMIT.ALLOW", f"key:{key}", *quota, *cost, *options, "AT", at],
            ["SWLIMIT.ALLOW", f"key:{key}", *quota, "AT", at],
            ["SWLIMIT.RECORD", f"key:{key}", *quota, *cost, "AT", at],
            ["SWLIMIT.PEEK", f"key:{key}", *quota, *cost, "AT", at],
            ["SWLIMIT.MALLOW", 2, f"key:{key}", *quota, 2, f"other:{other}", *quota, 1, "AT", at],
            ["SWLIMIT.REFUND", f"key:{key}", draw.randint(1, 3), "AT", T],
        ]))
    return commands


def held(server):
    """How many windows there are in all databases, and the bytes that they say they take."""
    keys = size = 0
    for database in re.findall(r"^db(\d+):", server.cli("INFO", "keyspace"), re.MULTILINE):
        found = server.cli("SCAN", 0, "TYPE", "sw-window", "COUNT", 1_000_000, flags=["-n", database]).split("\n")[1:]
        sizes = batch(server, [["SWLIMIT.INFO", key] for key in found if key], flags=["-n", database])
        keys += len(sizes)
        size += sum(info_fields(reply.split("\n"))["memory"] for reply in sizes)
    return keys, size


def counted(server):
    """How many windows INFO swlimit counts, and how many bytes."""
    found = statistics(server)
    return found["keys"], found["memory"]
