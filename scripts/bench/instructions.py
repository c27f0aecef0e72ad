"""Instructions per command, counted by valgrind's callgrind: exact where a time never is.

The same binaries give the same count of the module's own instructions again, on any quiet or busy machine, so that a
change of the module can be compared exactly with what was before it. What the server does for the module differs by up
to 1 %, because some of it is done once a millisecond, however many commands that millisecond has. One key and one
client, no other command meanwhile: then a hash table has no chains whose length is left to chance.
"""

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from support.server import MODULE, Binaries, Server

from .contenders import FULL, HOUR, LIMIT, full_ring
from .load import FLOOR_MODULE, Load

RECORDED = Path(__file__).with_name("instructions.json")
CALLS = 2000
WARM_UP = 200
# Two days: the numbers in the replies then have as many digits at any time of any day.
QUOTA = (LIMIT, "2d", "2d")
FULL_QUOTA = (f"{FULL}h", "1h")
CASES = {
    "floor": ("BENCH.FLOOR", "instructions:key", *QUOTA),
    "granted": ("SWLIMIT.ALLOW", "instructions:key", *QUOTA),
    "granted, all of 4096 subintervals counted": ("SWLIMIT.ALLOW", "instructions:ful", LIMIT, *FULL_QUOTA),
    "denied": ("SWLIMIT.ALLOW", "instructions:key", 1, *QUOTA[1:]),
    "peek": ("SWLIMIT.PEEK", "instructions:key", *QUOTA),
    "record": ("SWLIMIT.RECORD", "instructions:key", *QUOTA),
    "mallow of three granted": ("SWLIMIT.MALLOW", 3, *(word for number in range(3)
                                                       for word in (f"instructions:m{number}", *QUOTA, 1))),
}


@dataclass
class Cost:
    """Instructions per command: in the module and what it calls, in the module alone, and by the functions it calls."""

    inclusive: float
    own: float
    calls: dict = field(default_factory=dict)  # function -> (calls, instructions) per command


def recorded():
    """The counts recorded in the repository: `{case: {"inclusive": …, "own": …}}`."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def rounded(cost):
    """A cost as it is recorded. Down: what is made anew once a millisecond adds a fraction that depends on the time."""
    return {"inclusive": int(cost.inclusive), "own": int(cost.own)}


def table(costs):
    """What came out beside what is recorded, as a Markdown table."""
    rows = ["| command | the module's own | recorded | with the server's part | recorded |",
            "|---|---:|---:|---:|---:|"]
    before = recorded()
    for case, cost in costs.items():
        now, then = rounded(cost), before.get(case, {})
        rows.append(f"| {case} | {now['own']} | {then.get('own', '–')} | {now['inclusive']} | "
                    f"{then.get('inclusive', '–')} |")
    return rows


def compare(costs, accept=False):
    """Say in one line a case which of the module's own counts differ from those recorded; `accept` records them all."""
    before = recorded()
    for case, cost in costs.items():
        now, then = rounded(cost)["own"], before.get(case, {}).get("own")
        if then is not None and now != then:
            print(f"bench: {case}: {now} of the module's own instructions, {now - then:+} against those recorded")
    if accept or not before:
        RECORDED.write_text(json.dumps({case: rounded(cost) for case, cost in costs.items()}, indent=2) + "\n")
        print(f"bench: recorded in {RECORDED.name}")


def available():
    """Whether valgrind is here."""
    return bool(shutil.which("valgrind") and shutil.which("vgdb"))


def measure():
    """The cost of each case."""
    before = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no",
              "--callgrind-out-file=callgrind"]
    costs = {}
    with Server(Binaries.installed(), {"loadmodule": FLOOR_MODULE}, before=before, ready_seconds=120) as server:
        with Load(server, clients=1) as load:
            for commands in full_ring(["instructions:ful"], FULL_QUOTA, HOUR):
                if commands:
                    load.run_all(commands)
            for number, (case, words) in enumerate(CASES.items(), start=1):
                load.run_all([words] * WARM_UP)
                control(server, "instrumentation on")
                load.run_all([words] * WARM_UP)
                control(server, "zero")
                load.run_all([words] * CALLS)
                control(server, "dump")
                control(server, "instrumentation off")
                costs[case] = read((server.folder / f"callgrind.{number}").read_text())
    return costs


def control(server, command):
    """Tell callgrind something."""
    subprocess.run(["vgdb", f"--pid={server.process.pid}", *command.split(" ", 1)], check=True, capture_output=True,
                   timeout=60)


LINE = re.compile(r"(?P<key>c?fn|c?ob|cfi|cfl|fi|fe|fl|calls)=(?P<value>.*)|(?P<cost>[+\-*]?\d+(?: \d+)+)$")


def read(profile):
    """The cost per command that a profile shows, whichever module ran."""
    modules = {str(MODULE), str(FLOOR_MODULE)}
    place, own = {}, 0
    callees, entries = defaultdict(Counter), Counter()
    call = None
    for line in profile.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        key, value = match["key"], match["value"]
        if key == "calls":
            call = int(value.split()[0])
        elif key == "ob":
            place["ob"] = value
        elif key == "fn":
            place["fn"] = value
            place.pop("cob", None)
        elif key:
            place[key] = value
        elif match["cost"]:
            cost = int(line.split()[1])
            inside = place.get("ob") in modules
            if call is None:
                own += cost * inside
                continue
            into = place.get("cob", place.get("ob")) in modules
            if into and not inside:
                entries.update(calls=call, cost=cost)
            elif inside and not into:
                callees[place["cfn"]].update(calls=call, cost=cost)
            call = None
            place.pop("cob", None)
    calls = entries["calls"]
    return Cost(entries["cost"] / calls, own / calls,
                {name: (one["calls"] / calls, one["cost"] / calls) for name, one in callees.items()})
