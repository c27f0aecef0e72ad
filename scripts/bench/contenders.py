"""What is measured: each contender is a list of commands, one a key, and what has to be so before they are sent."""

import time
from dataclasses import dataclass, field
from itertools import count, islice

from . import peers
from .load import pipelines

KEYS = 1000
LIMIT = 1_000_000
WINDOW = 3600  # seconds
RESOLUTIONS = {1: 3600, 12: 300, 60: 60, 3600: 1}  # number of subintervals N -> seconds
FULL = 4096  # subintervals, the most that the default configuration allows
MINUTE, HOUR = 60_000, 3_600_000  # milliseconds
FULL_QUOTA = (f"{FULL}m", "1m")


@dataclass
class Contender:
    """One line of a comparison: commands that are sent in turn, with replies of one shape.

    `set_up` are commands to be run once, `prepare` those to be run before every round, in lists whose replies have one
    shape. `correct` says of a reply whether it is what is meant to be measured.
    """

    key: str
    label: str
    commands: list
    correct: callable = None
    set_up: tuple = ()
    prepare: tuple = ()

    def check(self, client):
        """Run one command, and raise if its reply is not what is meant to be measured."""
        reply = client.execute_command(*self.commands[0])
        if self.correct and not self.correct(reply):
            raise RuntimeError(f"{self.label}: {self.commands[0]} was answered {reply}")

    def stream(self, total):
        """Pipelines with so many commands."""
        return pipelines(self.commands, total)


@dataclass
class Stepping(Contender):
    """Commands with an instant of their own, which goes on by one minute whenever all keys have had their turn."""

    instants: count = field(default_factory=lambda: count(this(MINUTE) + MINUTE, MINUTE))

    def stream(self, total):
        stamped = ([*words, "AT", instant] for instant in self.instants for words in self.commands)
        return pipelines(islice(stamped, total))


def names(prefix, number=KEYS):
    """Key names of 16 bytes."""
    return [f"{prefix}:{index:0{15 - len(prefix)}d}" for index in range(number)]


def this(unit):
    """The start of the minute or hour, in milliseconds; not in the last moments of one."""
    while time.time() % (unit // 1000) > unit // 1000 - 1:
        time.sleep(0.1)
    return int(time.time()) * 1000 // unit * unit


def granted(reply):
    return reply[0] >= 1


def denied(reply):
    return reply[0] == 0


def yardsticks():
    """What ALLOW is measured against: commands of the server, and a command of a module that does nothing."""
    return [
        Contender("floor", "no-op module command (the floor)",
                  [("BENCH.FLOOR", name, LIMIT, WINDOW, WINDOW) for name in names("floor")]),
        unmade("look", "… that opens its key and reads the clock (the least of a denial)"),
        unmade("effect", "… and signals and replicates a change (the least of a grant)"),
        Contender("incr", "`INCR`", [("INCR", name) for name in names("incr")]),
        Contender("set", "`SET k v EX`", [("SET", name, "v", "EX", WINDOW) for name in names("set")]),
    ]


def unmade(command, label):
    """A module command that does what every decision has to, and decides nothing; on keys that expire, like those of
    decisions."""
    keys = names(command)
    return Contender(command, label, [(f"BENCH.{command.upper()}", name, LIMIT, WINDOW, WINDOW) for name in keys],
                     set_up=([("SET", name, "v", "EX", WINDOW) for name in keys],))


def deciding(command, prefix, resolution, correct, key, label, prepare=()):
    """One of the commands `key limit window resolution`."""
    return Contender(key, label, [(command, name, LIMIT, WINDOW, resolution) for name in names(prefix)],
                     correct, prepare=prepare)


def full_ring(full_names, quota=FULL_QUOTA, unit=MINUTE):
    """Commands that leave a count in each of the 4096 subintervals of these keys; the youngest is the current one."""
    first, *others = full_names
    newest = this(unit)
    fill = [("SWLIMIT.RECORD", first, LIMIT, *quota, "AT", newest - unit * age) for age in range(FULL - 1, -1, -1)]
    return fill, [("COPY", first, other) for other in others]


def own():
    """The module's commands."""
    contenders = []
    for subintervals, resolution in RESOLUTIONS.items():
        contenders.append(deciding("SWLIMIT.ALLOW", f"g{subintervals}", resolution, granted,
                                   f"granted-{subintervals}", f"`ALLOW` granted, N = {subintervals}"))
    full = [("SWLIMIT.ALLOW", name, LIMIT, *FULL_QUOTA) for name in names("full")]
    contenders.append(Contender("granted-full", f"`ALLOW` granted, all of {FULL} subintervals counted", full, granted,
                                set_up=full_ring(names("full"))))
    for subintervals, resolution in RESOLUTIONS.items():
        prefix = f"d{subintervals}"
        exhaust = [("SWLIMIT.RECORD", name, LIMIT, WINDOW, resolution, "COST", LIMIT) for name in names(prefix)]
        contenders.append(deciding("SWLIMIT.ALLOW", prefix, resolution, denied, f"denied-{subintervals}",
                                   f"`ALLOW` denied, N = {subintervals}", prepare=(exhaust,)))
    contenders.append(Contender("denied-full", f"`ALLOW` denied, all of {FULL} subintervals counted",
                                [(*words[:2], FULL // 2, *words[3:]) for words in full], denied))
    stepping = [("SWLIMIT.ALLOW", name, LIMIT, *FULL_QUOTA) for name in names("step", KEYS // 10)]
    contenders.append(Stepping("granted-new", f"`ALLOW` granted, {FULL} counted, each call in a new subinterval",
                               stepping, granted, set_up=full_ring(names("step", KEYS // 10))))
    contenders.append(deciding("SWLIMIT.PEEK", "g60", 60, granted, "peek", "`PEEK`, N = 60"))
    contenders.append(deciding("SWLIMIT.RECORD", "rec", 60, granted, "record", "`RECORD`, N = 60"))
    return contenders


def several():
    """MALLOW with three keys."""
    commands = [mallow(triple, LIMIT, WINDOW, 60) for triple in zip(names("m1"), names("m2"), names("m3"))]
    return [Contender("mallow", "`MALLOW` of three granted, N = 60", commands, granted)]


def mallow(keys, *quota):
    """MALLOW of one unit from each of these keys, all with the same quota."""
    return ("SWLIMIT.MALLOW", len(keys), *keys, *(*quota, 1) * len(keys))


def rivals(server):
    """The peers: granted and denied."""
    contenders = []
    for peer in peers.installed():
        label = peers.label(peer)
        fresh, spent = names(f"g{peer.name[-4:]}"), names(f"d{peer.name[-4:]}")
        exhaust = peer.commands(server, spent, LIMIT, WINDOW, LIMIT)
        contenders.append(Contender(f"{peer.name}-granted", f"{label} granted",
                                    peer.commands(server, fresh, LIMIT, WINDOW, 1), peer.granted))
        contenders.append(Contender(f"{peer.name}-denied", f"{label} denied",
                                    peer.commands(server, spent, LIMIT, WINDOW, 1),
                                    lambda reply, peer=peer: not peer.granted(reply), prepare=(exhaust,)))
    return contenders


def everything(server):
    """All contenders that this server and this machine have."""
    return [*yardsticks(), *own(), *several(), *rivals(server)]
