"""What libraries that applications limit with cost the server: each on a real one, through its own program.

A program takes the library's name, the server's port, the limit and the window in ms, as stores.mjs does.
"""

import subprocess
from collections import defaultdict
from contextlib import contextmanager

from .cpu import ratio, settled, spread
from .load import start_server

HOUR = 3_600_000
LOADS = {"granted": ("all granted", 1_000_000), "denied": ("ten times the limit", 20)}  # name -> label, limit
KEYS, TIMES = 100, 200


@contextmanager
def driven(command):
    """A function that gives a program one line, and returns the number it answers with."""
    with subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def ask(line):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return int(process.stdout.readline())
        yield ask
        process.stdin.close()


def cpu(names, command, rounds):
    """Nanoseconds and commands per request: `{load: ({store: [ns, …]}, {store: commands})}`."""
    found = {load: (defaultdict(list), {}) for load in LOADS}
    for number in range(rounds):
        print(f"stores: round {number + 1} of {rounds}", flush=True)
        for load, (_, limit) in LOADS.items():
            for name in names:
                with (start_server() as server, server.client() as client,
                      driven(command(name, server.port, limit, HOUR)) as ask):
                    ask("1 1")
                    client.flushall()
                    commands, before = client.info("stats")["total_commands_processed"], settled(server)
                    granted = ask(f"{KEYS} {TIMES}")
                    spent = settled(server) - before
                    commands = client.info("stats")["total_commands_processed"] - commands - 1
                assert granted == KEYS * min(limit, TIMES), f"{name}: {granted} granted"
                found[load][0][name].append(spent / KEYS / TIMES)
                found[load][1][name] = commands / KEYS / TIMES
    return found


def table(title, found, label):
    """What came out, as a Markdown table; the first one is compared with."""
    rows = [f"| {' | '.join((title, *(text for text, _ in LOADS.values()), 'commands a request', '÷ swlimit'))} |",
            "|---|---:|---:|---:|---:|"]
    first, *_ = found["granted"][0]
    for name in found["granted"][0]:
        cells = [f"{middle:.0f} ns ({low:.0f}–{high:.0f})"
                 for low, middle, high in (spread(found[load][0][name]) for load in LOADS)]
        cells.append(", ".join(f"{found[load][1][name]:.2f}" for load in LOADS))
        cells.append(", ".join(f"{ratio(found[load][0], name, first)[1]:.2f}" for load in LOADS))
        rows.append(f"| {label(name)} | {' | '.join(cells)} |")
    return rows
