"""What `SWLIMIT.TOP` costs: denials on a server that counts them for it, beside one that doesn't.

Two servers on one core take turns; ratios are taken within each turn. Two processes of the same program differ by some
percent, by where their memory happens to lie, so that there are new ones in every round.
"""

from contextlib import ExitStack

from .contenders import KEYS, WINDOW, Contender, denied, names
from .cpu import CALIBRATION, once, ratio, spread
from .load import Load, start_server

SERVERS = {"off": 0, "on": 100}  # swlimit.top-keys
MISSING = [("SWLIMIT.ALLOW", name, 0, WINDOW, WINDOW) for name in names("missing")]
CONTENDERS = [
    Contender("one", "one key again and again", MISSING[:1], denied),
    Contender("within", "100 keys in turn, all of them in the sketch", MISSING[:100], denied),
    Contender("others", f"{KEYS:,} keys in turn, each of which pushes another one out", MISSING, denied),
]


def measure(rounds, turns, commands):
    """Nanoseconds per command, by server, contender and turn: `{(server, contender): [ns, …]}`."""
    spent = {(name, contender.key): [] for name in SERVERS for contender in CONTENDERS}
    for number in range(rounds):
        print(f"top: round {number + 1} of {rounds}", flush=True)
        order = list(SERVERS)[::-1 if number % 2 else 1]
        with ExitStack() as stack:
            running = {name: start(stack, SERVERS[name]) for name in order}
            for contender in CONTENDERS * turns:
                for name in order:
                    spent[name, contender.key].append(once(*running[name], contender, commands))
    return spent


def start(stack, keys):
    """A server with so many keys in its sketch, warm, and those who talk to it."""
    server = stack.enter_context(start_server(**{"swlimit.top-keys": keys}))
    running = server, stack.enter_context(server.client()), stack.enter_context(Load(server))
    for contender in CONTENDERS:
        once(*running, contender, CALIBRATION)
    return running


def table(spent):
    """As a Markdown table."""
    rows = ["| denials of | off, ns | on, ns | on ÷ off |", "|---|---:|---:|---:|"]
    for contender in CONTENDERS:
        pair = [spread(spent[name, contender.key]) for name in SERVERS]
        cells = [f"{middle:.0f} ({low:.0f}–{high:.0f})" for low, middle, high in pair]
        low, middle, high = ratio(spent, ("on", contender.key), ("off", contender.key))
        rows.append(f"| {contender.label} | {' | '.join(cells)} | {middle:.3f} ({low:.3f}–{high:.3f}) |")
    return rows
