"""Two kinds of servers beside each other, on one core in turns; ratios are taken within each turn.

Two processes of the same program differ by some percent, by where their memory happens to lie, so that there are new
ones in every round.
"""

from contextlib import ExitStack

from .cpu import CALIBRATION, once, ratio, spread
from .load import Load


def measure(section, servers, contenders, rounds, turns, commands):
    """Nanoseconds per command, by server, contender and turn: `{(server, contender): [ns, …]}`.

    `servers` are functions by name, each of an exit stack, which start one.
    """
    spent = {(name, contender.key): [] for name in servers for contender in contenders}
    for number in range(rounds):
        print(f"{section}: round {number + 1} of {rounds}", flush=True)
        order = list(servers)[::-1 if number % 2 else 1]
        with ExitStack() as stack:
            running = {name: _warm(stack, servers[name](stack), contenders) for name in order}
            for contender in contenders * turns:
                for name in order:
                    spent[name, contender.key].append(once(*running[name], contender, commands))
    return spent


def _warm(stack, server, contenders):
    """A server that is warm, and those who talk to it."""
    running = server, stack.enter_context(server.client()), stack.enter_context(Load(server))
    for contender in contenders:
        for commands in contender.set_up:
            running[2].run_all(commands)
        once(*running, contender, CALIBRATION)
    return running


def table(spent, contenders, what, one, other):
    """As a Markdown table: `one`, `other`, and how many times as much `other` takes."""
    rows = [f"| {what} | {one}, ns | {other}, ns | {other} ÷ {one} |", "|---|---:|---:|---:|"]
    for contender in contenders:
        pair = [spread(spent[name, contender.key]) for name in (one, other)]
        cells = [f"{middle:.0f} ({low:.0f}–{high:.0f})" for low, middle, high in pair]
        low, middle, high = ratio(spent, (other, contender.key), (one, contender.key))
        rows.append(f"| {contender.label} | {' | '.join(cells)} | {middle:.3f} ({low:.3f}–{high:.3f}) |")
    return rows
