"""What a decision by the script costs the server, beside the scripts of other libraries: CPU per command as `cpu`
measures it, and instructions of all that the server does for a command, as callgrind counts them."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from support.resp import Connection
from support.script import COUNT, load, packed, scripted, sha, unpacked
from support.server import Binaries, Server

from . import peers
from .contenders import FULL, LIMIT, MINUTE, WINDOW, Contender, denied, granted, names, this
from .cpu import measure as measure_cpu
from .cpu import ratio, spread
from .instructions import CALLS, WARM_UP, control
from .load import Load

RIVALS = (peers.Upstash, peers.Throttled)
FULL_WINDOWS = (12, FULL)  # subintervals, all of which hold a count
TARGET = "@upstash/ratelimit"


@dataclass
class Result:
    """CPU by contender and round, the contenders, and instructions by contender."""

    spent: dict
    contenders: list
    instructions: dict


def contenders(server):
    """Decisions of the script on windows of which every subinterval holds a count, and those of the rivals."""
    with Connection(server.port) as connection:
        load(connection)
        found = []
        for subintervals in FULL_WINDOWS:
            keys = names(f"s{subintervals}", 1000 if subintervals < 100 else 50)
            newest = this(MINUTE)
            for age in range(subintervals, -1, -1):
                at = newest - age * MINUTE
                connection.calls([packed(keys[0], LIMIT, MINUTE, subintervals, 1, sha(), COUNT, at)])
            connection.calls([("COPY", keys[0], key) for key in keys[1:]])
            for key in keys:
                connection.call("PERSIST", key)
            words = [f"{subintervals}m", "1m"]

            def ask(label, correct, limit, flags, spelled=None, keys=keys, subintervals=subintervals):
                calls = [packed(key, limit, MINUTE, subintervals, 1, sha(), flags) for key in keys]
                if spelled:
                    calls = [scripted([f"SWLIMIT.{spelled}", key, limit, *words], sha()) for key in keys]
                found.append(Contender(f"{label}-{subintervals}", f"{label}, N = {subintervals}", calls,
                                       lambda reply: correct(unpacked(reply, limit))))

            ask("script, granted", granted, LIMIT, COUNT)
            ask("script, denied", denied, 5, COUNT)
            ask("script, PEEK", granted, LIMIT, 0)
            ask("script in words, granted", granted, LIMIT, COUNT, "ALLOW")
            ask("script, RECORD in words", granted, LIMIT, COUNT, "RECORD")
        for peer in (peer for peer in RIVALS if peer in peers.installed()):
            fresh, spent = names(f"g{peer.name[-4:]}"), names(f"d{peer.name[-4:]}")
            exhaust = peer.commands(server, spent, LIMIT, WINDOW, LIMIT)
            found.append(Contender(f"{peer.name}-granted", f"{peers.label(peer)}, granted",
                                   peer.commands(server, fresh, LIMIT, WINDOW, 1), peer.granted))
            found.append(Contender(f"{peer.name}-denied", f"{peers.label(peer)}, denied",
                                   peer.commands(server, spent, LIMIT, WINDOW, 1),
                                   lambda reply, peer=peer: not peer.granted(reply), prepare=(exhaust,)))
    return found


def measure(rounds, seconds):
    """Both ways of counting; instructions only where valgrind is."""
    spent, measured = measure_cpu(contenders, rounds, seconds)
    return Result(spent, measured, instructions() if shutil.which("valgrind") else {})


def instructions():
    """Instructions of the server's main loop per command, one at a time, by contender."""
    before = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind"]
    counted = {}
    with Server(Binaries.installed(), module=None, before=before, ready_seconds=120) as server, \
            Load(server, clients=1) as load_of:
        for contender in contenders(server):
            print(f"script: {contender.label}", flush=True)
            for commands in contender.prepare:
                load_of.run_all(commands[:1])
            command = contender.commands[0]
            load_of.run_all([command] * WARM_UP)
            control(server, "instrumentation on")
            load_of.run_all([command] * WARM_UP)
            control(server, "zero")
            load_of.run_all([command] * CALLS)
            control(server, "dump")
            control(server, "instrumentation off")
            profile = Path(server.folder / f"callgrind.{len(counted) + 1}").read_text()
            counted[contender.key] = int(re.search(r"^(?:totals|summary): (\d+)", profile, re.MULTILINE)[1]) // CALLS
    return counted


def table(result):
    """As a Markdown table: ratios to the same decision of the first rival."""
    rows = [f"| | ns | ÷ `{TARGET}` | instructions | ÷ `{TARGET}` |", "|---|---:|---:|---:|---:|"]
    for contender in result.contenders:
        low, middle, high = spread(result.spent[contender.key])
        base = f"{TARGET}-{'denied' if 'denied' in contender.key else 'granted'}"
        cells = [f"{middle:.0f} ({low:.0f}–{high:.0f})", "–", "–", "–"]
        if base in result.spent:
            cells[1] = "{1:.2f} ({0:.2f}–{2:.2f})".format(*ratio(result.spent, contender.key, base))
        if counted := result.instructions.get(contender.key):
            cells[2] = f"{counted}"
            if base in result.instructions:
                cells[3] = f"{counted / result.instructions[base]:.2f}"
        rows.append(f"| {contender.label} | {' | '.join(cells)} |")
    return rows
