"""Instructions per command, counted by valgrind's callgrind: exact where a time never is.

The same binaries give the same count of the module's own instructions again, to one instruction on a quiet machine,
so that a change of the module can be compared with what was before it. On a busy one it may be 1 % more: what the
module does in the server's cron is counted, too. What the server does for the module differs by up to 1 %, because
some of it is done once a millisecond, however many commands that millisecond has. One key and one client, no other
command meanwhile: then a hash table has no chains whose length is left to chance.
"""

import json
import re
import shutil
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from support.contents import info
from support.resp import Connection, encode
from support.server import MODULE, Binaries, Server
from support.waiting import eventually

from .contenders import FULL, HOUR, LIMIT, full_ring, mallow
from .load import FLOOR_MODULE, Load
from .revision import module_at, rust

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
    "granted, the limit rises": ("SWLIMIT.ALLOW", "instructions:wrm", *QUOTA, "WARMUP", "3650d"),
    "denied, the limit rises": ("SWLIMIT.ALLOW", "instructions:cld", 3, *QUOTA[1:], "WARMUP", "3650d"),
    "peek": ("SWLIMIT.PEEK", "instructions:key", *QUOTA),
    "record": ("SWLIMIT.RECORD", "instructions:key", *QUOTA),
    "mallow of three granted": mallow([f"instructions:m{number}" for number in range(3)], *QUOTA),
    "admit of a rate": ("SWLIMIT.ADMIT", 1, "instructions:adm", "RATE", *QUOTA, 1),
    "an effect, as a replica gets it": ("SWLIMIT.APPLY", "instructions:eff", "c172800000*1@4000000000000!"),
}
# A HOLD and a RELEASE by turns, beside so many live holds: per command, half of what a pair costs.
HOLD_AND_RELEASE = {f"hold and release, {live} live": live for live in (1, 100, 10_000)}
# While a client waits for another key.
BESIDE_A_WAITER = {"granted, a client waits elsewhere": CASES["granted"]}
COUNTED_FOR_TOP = {"denied, counted for TOP": CASES["denied"]}
# To an append-only file.
EFFECTS_SENT = {
    "granted, its effect is sent": CASES["granted"],
    "mallow of three of a slot, its effects are sent": mallow([f"{{t}}:{number}" for number in range(3)], *QUOTA),
}
TOP = {"top 10 of 100": ("SWLIMIT.TOP", 10)}
MOST = 1.01  # times the module's own instructions at the revision that is compared with
TIMES = 3  # that a module is counted at most, where a case takes more than that


@dataclass
class Cost:
    """Instructions per command: in the module and what it calls, and in the module alone.

    Rounded down: what is made once a millisecond adds a fraction that depends on the time.
    """

    inclusive: int
    own: int


@dataclass
class Counts:
    """The cost of each case, and what it is compared with."""

    costs: dict
    revision: str  # of the module in `before`; None if that was recorded once
    before: dict   # of costs; cases that there were not are missing
    same: bool     # whether the same compiler made both, and the same server ran them

    def table(self):
        """As a Markdown table."""
        then = f"at {self.revision}" if self.revision else "recorded"
        rows = [f"| command | the module's own | {then} | with the server's part | {then} |",
                "|---|---:|---:|---:|---:|"]
        for case, now in self.costs.items():
            old = self.before.get(case)
            rows.append(f"| {case} | {now.own:.0f} | {f'{old.own:.0f}' if old else '–'} | {now.inclusive:.0f} | "
                        f"{f'{old.inclusive:.0f}' if old else '–'} |")
        return rows

    def differences(self):
        """One line for each case whose own instructions are not what they were."""
        for case, now in self.costs.items():
            old = self.before.get(case)
            if old and now.own != old.own:
                yield f"{case}: {now.own} of the module's own instructions, {now.own - old.own:+} against {old.own}"

    def lower(self, costs):
        """Keep the lower of two counts of each case."""
        self.costs = {case: min(cost, costs[case], key=lambda one: one.own) for case, cost in self.costs.items()}

    def grown(self):
        """The cases that take more than they may. What another compiler or server led to says nothing about them."""
        return [case for case, now in self.costs.items()
                if self.same and case in self.before and now.own > MOST * self.before[case].own]

    def record(self):
        """Make these counts the ones to compare with."""
        costs = {case: vars(cost) for case, cost in self.costs.items()}
        RECORDED.write_text(json.dumps(made_with() | {"costs": costs}, indent=2) + "\n")


def made_with():
    """What the counts depend on beside the module."""
    shown = subprocess.run([*Binaries.installed().command, "--version"], check=True, capture_output=True, text=True)
    return {"compiler": rust(), "server": re.search(r"v=(\S+)", shown.stdout)[1]}


def available():
    """Whether valgrind is here."""
    return bool(shutil.which("valgrind") and shutil.which("vgdb"))


def measure(revision=None):
    """Count, and compare with this revision, or with what is recorded."""
    if revision:
        counts = Counts(count(MODULE), revision, count(module_at(revision), older=True), same=True)
    else:
        recorded = json.loads(RECORDED.read_text())
        before = {case: Cost(**cost) for case, cost in recorded.pop("costs").items()}
        counts = Counts(count(MODULE), None, before, same=recorded == made_with())
    for _ in range(TIMES - 1):
        if counts.grown():
            counts.lower(count(MODULE))
    return counts


def count(module, older=False):
    """The cost of each case with this module; an older one may refuse some of them, which are left out."""
    cases = CASES | {case: hold_and_release(live) for case, live in HOLD_AND_RELEASE.items()} | BESIDE_A_WAITER
    return (count_with(0, cases, module, older) | count_with(100, COUNTED_FOR_TOP, module, older)
            | count_with(100, TOP, module, older)
            | count_with(0, EFFECTS_SENT, module, older, {"appendonly": "yes", "appendfsync": "no"}))


def count_with(top_keys, cases, module, older, options=None):
    """The cost of these cases with these settings; a module that is older than the first counts nothing for TOP."""
    before = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no",
              "--callgrind-out-file=callgrind"]
    costs = {}
    options = {"loadmodule": FLOOR_MODULE} | (options or {})
    server = Server(Binaries.installed(), options, module, before=before, ready_seconds=120)
    with server, Load(server, clients=1) as load, ExitStack() as stack:
        for commands in full_ring(["instructions:ful"], FULL_QUOTA, HOUR):
            if commands:
                load.run_all(commands)
        for case, live in HOLD_AND_RELEASE.items():
            if case in cases and not older:
                (command, key, limit, *_), _ = hold_and_release(live)
                load.run_all([(command, key, limit, f"{2 * 86_400 + held}s", f"held:{held}") for held in range(live)])
        if server.cli("CONFIG", "SET", "swlimit.top-keys", top_keys) != "OK" and top_keys:
            return {}
        if TOP.keys() & cases.keys() and not older:
            if (second := time.time() % 60) > 40:  # denials of two minutes are dearer to show
                time.sleep(60 - second)
            load.run_all([("SWLIMIT.ALLOW", f"instructions:{number}", 0, *QUOTA[1:]) for number in range(top_keys)])
        for case, words in cases.items():
            print(f"instructions: {case}", flush=True)
            if case in BESIDE_A_WAITER:
                waits = stack.enter_context(Connection(server.port))
                server.cli("SWLIMIT.BLOCK", "instructions:wait", "1h")
                waits.send(encode("SWLIMIT.ACQUIRE", "instructions:wait", *QUOTA, "2h"))
                eventually(lambda: info(server)["swlimit_waiting"], 1)
            try:
                run(server, load, words, WARM_UP)
            except RuntimeError:
                if older:
                    continue
                raise
            control(server, "instrumentation on")
            run(server, load, words, WARM_UP)
            control(server, "zero")
            run(server, load, words, CALLS)
            control(server, "dump")
            control(server, "instrumentation off")
            costs[case] = read((server.folder / f"callgrind.{len(costs) + 1}").read_text(), module)
    return costs


def run(server, load, words, times):
    """Run a command so often, or several by turns, whose replies may have different shapes."""
    if isinstance(words, tuple):
        return load.run_all([words] * times)
    with server.client() as client:
        pipeline = client.pipeline(transaction=False)
        for command in words * times:
            pipeline.execute_command(*command)
        replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise RuntimeError(f"the server answered {reply}")
    return None


def hold_and_release(live):
    """A HOLD and a RELEASE."""
    key, own = f"instructions:holds:{live}", "0123456789abcdef"
    return [("SWLIMIT.HOLD", key, LIMIT, "1d", own), ("SWLIMIT.RELEASE", key, own)]


def control(server, command):
    """Tell callgrind something."""
    subprocess.run(["vgdb", f"--pid={server.process.pid}", *command.split(" ", 1)], check=True, capture_output=True,
                   timeout=60)


LINE = re.compile(r"(?P<key>c?fn|c?ob|cfi|cfl|fi|fe|fl|calls)=(?P<value>.*)|(?P<cost>[+\-*]?\d+(?: \d+)+)$")


def read(profile, module):
    """The cost per command that a profile shows, whichever of this module and the floor's ran."""
    modules = {str(module), str(FLOOR_MODULE)}
    place, own = {}, 0
    entries = Counter()
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
            call = None
            place.pop("cob", None)
    calls = entries["calls"]
    return Cost(entries["cost"] // calls, own // calls)
