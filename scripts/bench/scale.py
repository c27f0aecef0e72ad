"""Server CPU per command from a thousand keys to millions, in random order: what caches no longer hold is paid for.

Each number of keys has a database of its own, so that all sizes take turns in each round. Windows hold one count and
counters have a TTL, too, so that the server looks at as many places for both.
"""

import random

from support.resp import encode

from .cpu import settled, spread
from .load import PIPELINE, Load, start_server

SIZES = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
SEED = 1
DIGITS = 14
NAME = b"k:%0*d"  # 16 bytes
DAY = "1d"
LIMIT = 1_000_000
FLOOR = ("BENCH.FLOOR", "?", LIMIT, DAY, DAY)
INCR = ("INCR", "?")
ALLOW = ("SWLIMIT.ALLOW", "?", LIMIT, DAY, DAY)
FILL = {INCR: ("SET", "?", 1, "EX", 86_400), ALLOW: ALLOW}
LABELS = {FLOOR: "no-op module command (the floor)", INCR: "`INCR`, keys with a TTL", ALLOW: "`ALLOW` granted"}


def measure(sizes, rounds, commands):
    """Nanoseconds per command, by command, number of keys and round: `{(command, keys): [ns, …]}`."""
    order = random.Random(SEED)
    with start_server() as server:
        loads = {}
        for database, (command, keys) in enumerate((command, keys) for command in FILL for keys in sizes):
            print(f"scale: {keys:,} keys for {command[0]}", flush=True)
            load = loads[command, keys] = Load(server)
            load.select(database)
            load.run(stream(FILL[command], range(keys)))
            # Once more, and the server has finished moving keys to its larger hash table.
            load.run(stream(command, range(keys)))
        loads |= {(FLOOR, keys): loads[ALLOW, keys] for keys in sizes}
        spent = {one: [] for one in loads}
        for number in range(rounds):
            print(f"scale: round {number + 1} of {rounds}", flush=True)
            for (command, keys), load in loads.items():
                pipelines = list(stream(command, order.choices(range(keys), k=commands)))
                before = settled(server)
                load.run(pipelines)
                spent[command, keys].append((settled(server) - before) / commands)
        for load in loads.values():
            load.close()
    return spent


def name(index):
    """A key's name of 16 bytes."""
    return NAME % (DIGITS, index)


def with_name(command, index):
    """The words of a command for one key."""
    return [name(index) if word == "?" else word for word in command]


def stream(command, indexes):
    """Pipelines of one command for each of these keys; encoded around the name, which is all that differs."""
    before, after = encode(*with_name(command, 0)).split(name(0))
    indexes = list(indexes)
    for start in range(0, len(indexes), PIPELINE):
        part = indexes[start:start + PIPELINE]
        yield b"".join([before + name(index) + after for index in part]), len(part)


def ratio(spent, keys):
    """How many times as much a decision takes with so many keys as `INCR` with as many: quartiles over the rounds."""
    return spread([mine / theirs for mine, theirs in zip(spent[ALLOW, keys], spent[INCR, keys])])


def table(spent):
    """What came out, as a Markdown table: medians and quartiles."""
    labels = " | ".join(LABELS.values())
    rows = [f"| keys | {labels} | `ALLOW` ÷ `INCR` |", "|---:|---:|---:|---:|---:|"]
    for keys in dict.fromkeys(keys for _, keys in spent):
        cells = []
        for command in LABELS:
            low, middle, high = spread(spent[command, keys])
            cells.append(f"{middle:.0f} ns ({low:.0f}–{high:.0f})")
        rows.append(f"| {keys:,} | {' | '.join(cells)} | {ratio(spent, keys)[1]:.2f} |")
    return rows
