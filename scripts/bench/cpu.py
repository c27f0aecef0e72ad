"""Server CPU per command: what the main thread ran for, by the scheduler's account, with 32 commands a pipeline.

All contenders take turns on one server, round after round, so that whatever else the machine does meets all of them;
ratios are taken within each round. How fast the load generator is doesn't matter.
"""

import re
import time
from statistics import quantiles

from .load import PIPELINE, Load, cpu_nanoseconds, start_server

CALIBRATION = 50 * PIPELINE  # commands


def measure(contenders_of, rounds, seconds):
    """Nanoseconds per command, by contender and round: `{contender: [ns, …]}`, and the contenders."""
    with start_server() as server, server.client() as client, Load(server) as load:
        contenders = contenders_of(server)
        totals = {}
        for contender in contenders:
            print(f"cpu: preparing {contender.label}", flush=True)
            for commands in contender.set_up:
                load.run_all(commands)
            once(server, client, load, contender, CALIBRATION)
            totals[contender.key] = int(1e9 * seconds / once(server, client, load, contender, CALIBRATION))
        spent = {contender.key: [] for contender in contenders}
        for number in range(rounds):
            print(f"cpu: round {number + 1} of {rounds}", flush=True)
            for contender in contenders[number % len(contenders):] + contenders[:number % len(contenders)]:
                spent[contender.key].append(once(server, client, load, contender, totals[contender.key]))
    return spent, contenders


def once(server, client, load, contender, total):
    """One round of one contender: nanoseconds per command."""
    for commands in contender.prepare:
        load.run_all(commands)
    contender.check(client)
    stream = list(contender.stream(total))
    before = settled(server)
    load.run(stream)
    after = settled(server)
    contender.check(client)
    return (after - before) / sum(commands for _, commands in stream)


def settled(server):
    """The CPU time of a server that has nothing to do: the scheduler's account is exact only then."""
    time.sleep(0.005)
    return cpu_nanoseconds(server)


def rounded(figure):
    """Three digits that matter, without an exponent."""
    return f"{float(f'{figure:.3g}'):,.10g}"


def spread(values):
    """Lower quartile, median, upper quartile."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def ratio(spent, one, other):
    """How many times as much one contender takes as another: quartiles over the rounds."""
    return spread([mine / theirs for mine, theirs in zip(spent[one], spent[other])])


def table(spent, contenders):
    """What came out, as Markdown tables: the ratios that matter most, and everything."""
    return [*ratios(spent, contenders), "", *commands(spent, contenders)]


def ratios(spent, contenders):
    """What a decision costs beside what was measured in the same round."""
    labels = {one.key: re.sub(r".*\((the .*)\)$", r"\1", one.label) for one in contenders}
    granted, denied, peers = "granted-60", "denied-60", [key for key in spent if key.endswith("-granted")]
    pairs = [(granted, other) for other in ("floor", "incr", "set", "effect")]
    pairs += [(denied, other) for other in ("floor", "look")]
    pairs += [("granted-3600", "granted-1"), ("granted-full", "granted-1"), ("denied-3600", "denied-1")]
    pairs += [(peer, granted) for peer in peers]
    rows = ["| | ÷ | |", "|---|---|---:|"]
    for one, other in pairs:
        low, middle, high = ratio(spent, one, other)
        rows.append(f"| {labels[one]} | {labels[other]} | {middle:.2f} ({low:.2f}–{high:.2f}) |")
    return rows


def commands(spent, contenders):
    """Medians with quartiles, ratios taken round by round."""
    rows = ["| command | ns | ÷ floor | ÷ `SET EX` |", "|---|---:|---:|---:|"]
    for contender in contenders:
        low, middle, high = spread(spent[contender.key])
        ratios = (ratio(spent, contender.key, other) for other in ("floor", "set"))
        cells = [f"{middle:.0f} ({low:.0f}–{high:.0f})"]
        cells += [f"{middle:.2f} ({low:.2f}–{high:.2f})" for low, middle, high in ratios]
        rows.append(f"| {contender.label} | {' | '.join(cells)} |")
    return rows
