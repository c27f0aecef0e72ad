"""Random commands for the module and for the script, each on a server of its own, and their replies byte by byte."""

import mmap
import os
import random
import re
import select
import subprocess
from pathlib import Path

from .bounds import MAX, MAX_WINDOW
from .resp import INCOMPLETE, Connection, encode, parser
from .script import COUNT, PARTIAL, SEVERAL, STRICT, load, packed, packed_all, scripted, sha, unpacked

SOURCE = Path(__file__).with_name("standing_clock.c")
BATCH = 1000
ANSWER_SECONDS = 60
HOUR, DAY = 3_600_000, 86_400_000
# (resolution in ms, subintervals)
GEOMETRIES = [(1, 1), (1, 7), (1, 4096), (7, 3), (77, 13), (1000, 1), (1000, 12), (1000, 60), (5000, 12), (30_000, 3),
              (60_000, 60), (HOUR, 24), (907, 4000), (250, 17), (DAY, 3650), (MAX_WINDOW, 1), (MAX_WINDOW // 7, 7)]
NOW = 1_700_000_000_000  # the servers' clock at the beginning, in ms
# Instants beyond would make replies above 2^53, which Lua's numbers do not hold.
LATEST = MAX - 3 * MAX_WINDOW
LATEST_HELD = MAX // 1000  # tokens are of microseconds
STARTS = [NOW, NOW, NOW, 0, 10 * DAY, 2**52, LATEST - MAX_WINDOW]
GARBAGE = ["", "x", "-1", "+1", "1.5", " 1", "1e3", "0x10", "0", "00", "007", str(MAX), str(MAX + 1), str(MAX + 2),
           "99999999999999999999", "1ms", "1MS", "1S", "2m", "3H", "1d", "3650d", "3651d", "1w", "1 s", "60", "4097ms",
           "cost", "COST PARTIAL", "AT", "strict", "Partial", "age", "since", "BLOCK", "nx", "FORCE", "Rate",
           "BUDGET", "hold",
           b"\xff\0'\"\\\r\n", b"1\0", "é", "a" * 100]
MEMORY = re.compile(rb"(\$6\r\nmemory\r\n):\d+\r\n")
PACKED = re.compile(rb"\$24\r\n(.{24})\r\n", re.DOTALL)  # nothing else that is compared has 24 bytes


class Clock:
    """The wall clock of servers that are started with `environment`: it stands until it is set."""

    def __init__(self, folder):
        self.library, self.path = Path(folder, "standing_clock.so"), Path(folder, "now")
        words = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", self.library, SOURCE]
        subprocess.run(words, check=True)
        self.path.write_bytes(bytes(8))
        with open(self.path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.set(NOW)

    @property
    def environment(self):
        return {"LD_PRELOAD": str(self.library), "CLOCK_FILE": str(self.path)}

    def set(self, ms):
        """Put the clock to a Unix time in ms."""
        self.ms = ms
        self._shared[:] = (1000 * ms + 123).to_bytes(8, "little")


class Commands:
    """Random commands for a few keys. `at` None: by the servers' clock."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.number = 0
        self.starts, self.geometries, self.stands = STARTS, GEOMETRIES, True
        self.begin()

    def begin(self):
        """New keys, at other instants and geometries."""
        pick, self.number = self.random, self.number + 1
        self.now = pick.choice(self.starts)
        self.by_clock = self.stands and pick.random() < 0.25
        self.keys = [f"{{{self.number}}}{name}" for name in range(pick.choice([2, 6]))]
        self.budgets = [f"{{{self.number}}}b{name}" for name in range(2)]
        self.held = [f"{{{self.number}}}h{name}" for name in range(3)]
        size = pick.choice([3, 3, 12, 3000])
        self.ids = [pick.choice([b"", b"\xff\0\r\n"]) + b"%d" % name for name in range(size)]
        self.reserved = []
        self.unit_costs = pick.random() < 0.5
        self.geometry = {key: pick.choice(self.geometries) for key in self.keys + self.budgets + self.held}
        self.ends = dict.fromkeys(self.keys + self.budgets + self.held, 0)
        self.changes = pick.choice([0, 0.02, 0.3])
        self.rises = pick.random() < 0.5
        self.scale = pick.choice([5, 60, 60, 1000, MAX // 5, MAX])

    def leave_the_clock_out(self):
        """Only ALLOW, PEEK, RECORD, MALLOW, BUDGET and ADMIT with AT, on keys that do not expire meanwhile."""
        self.stands = False
        self.starts = [start for start in STARTS if start != NOW]
        self.geometries = [(resolution, subintervals) for resolution, subintervals in GEOMETRIES
                           if resolution * subintervals >= HOUR]
        self.begin()

    def tick(self, geometry):
        """Time passes: within a subinterval, over windows, backwards; often it comes to a boundary."""
        pick, (resolution, subintervals) = self.random, geometry
        chance = pick.random()
        if chance < 0.3:
            return
        length = resolution * subintervals
        step = (1, resolution // 7, resolution, resolution, resolution, length // 3, length, -resolution)[
            pick.getrandbits(3)]
        now = self.now + (step if chance < 0.7 else int(pick.random() * step))
        if chance > 0.9:
            now = now // resolution * resolution + (0, 1, resolution - 1)[int(pick.random() * 3)]
        self.now = now if 0 <= now <= LATEST else self.starts[0]

    def amount(self, limit):
        pick = self.random
        kind = pick.getrandbits(3)
        if kind < 4:
            return 1
        if kind < 6:
            return 1 + int(pick.random() * 9)
        if kind == 6:
            return max(1, min(MAX, limit + int(pick.random() * 3) - 1))
        return 1 + int(pick.random() * min(self.scale, MAX - 1))

    def span(self, geometry):
        """A duration that means something at this geometry, in ms."""
        pick, (resolution, subintervals) = self.random, geometry
        length = resolution * subintervals
        spans = [0, 1, resolution, int(pick.random() * length), length, length + resolution]
        return min(MAX_WINDOW, pick.choice(spans))

    def rise(self, geometry, shown=0.5):
        """How a limit rises: mostly of keys whose geometry has been chosen for it."""
        pick, (resolution, subintervals) = self.random, geometry
        if not self.rises or pick.random() > shown:
            return []
        length = resolution * subintervals
        duration = min(MAX_WINDOW, max(1, pick.choice([1, length // 3, 3 * length, 10 * length, MAX_WINDOW])))
        cold = pick.choice([[], [], [], ["COLD", pick.choice([2, 3, 10, 1000])]])
        return [pick.choice(["WARMUP", "WARMUP", "warmup"]), f"{duration}ms", *cold]

    def quota(self, key):
        if self.random.random() < self.changes:
            self.geometry[key] = self.random.choice(self.geometries)
        resolution, subintervals = self.geometry[key]
        limit = int(self.random.random() * self.scale)
        return limit, resolution, subintervals

    def next(self):
        """One command in the module's words, and in the script's."""
        pick = self.random
        kind = pick.random()
        if kind < 0.25:
            return self.held_or_released()
        if kind < 0.37:
            return self.budgeted()
        chance = pick.random() * (1 if self.stands else 0.74)
        keys = self.keys if chance < 0.74 or 0.82 <= chance < 0.87 else self.keys + self.budgets
        key = keys[int(pick.random() * len(keys))]
        geometry = self.geometry[key]
        self.tick(geometry)
        if chance < 0.66:
            return self.decide(key, chance)
        instant = [] if self.by_clock else ["AT", self.now]
        if chance < 0.74:
            resolution, _ = geometry
            limits = [self.quota(one) for one in self.keys[:2]]
            limits = [(*quota, self.amount(quota[0])) for quota in limits]
            words = ["SWLIMIT.MALLOW", 2, *self.keys[:2]]
            rises = []
            for limit, resolution, subintervals, cost in limits:
                words += [limit, f"{resolution * subintervals}ms", f"{resolution}ms", cost]
                rises += (rise := self.rise((resolution, subintervals)))
                words += rise
            strict = pick.random() < 0.3
            words += (["STRICT"] if strict else []) + instant
            if not rises and pick.random() < 0.5:
                at = None if self.by_clock else self.now
                return words, packed_all(self.keys[:2], limits, self.sha, strict, at)
        elif chance < 0.82:
            words = ["SWLIMIT.REFUND", key, self.amount(10)]
            kind = pick.getrandbits(2)
            if kind == 0:
                words += ["AGE", f"{self.span(geometry)}ms"]
            elif kind == 1:
                now = self.clock.ms if self.by_clock else self.now
                words += ["SINCE", max(0, now + pick.choice([-1, -1, -1, 1]) * self.span(geometry))]
            words += instant
        elif chance < 0.84:
            words = ["SWLIMIT.BLOCK", key, f"{max(1, self.span(geometry))}ms",
                     *pick.choice([[], [], ["NX"], ["GT"]]), *instant]
        elif chance < 0.87:
            words = ["SWLIMIT.UNBLOCK", key, *instant]
        elif chance < 0.9:
            words = ["SWLIMIT.INFO", key]
        elif chance < 0.94:
            words = ["PTTL", key]
        elif chance < 0.945:
            words = ["DEL", key]
        else:
            words = self.spoilt()
        return words, scripted(words, self.sha, self.read_only)

    def budgeted(self):
        """BUDGET, or ADMIT of several keys; now and then on a key that holds something else."""
        pick = self.random
        key = pick.choice(self.budgets if pick.random() < 0.98 else self.keys)
        self.tick(self.geometry[key])
        instant = [] if self.by_clock else ["AT", self.now]
        if pick.random() < 0.6:
            limit = int(pick.random() * self.scale)
            words = ["SWLIMIT.BUDGET", key, limit, self.end(key), "COST", self.amount(limit),
                     *pick.choice([[], [], ["PARTIAL"], ["FORCE"]]), *instant]
            return words, scripted(words, self.sha)
        keys = pick.sample([*self.keys[:2], *self.budgets], pick.randint(1, 4))
        words = ["SWLIMIT.ADMIT", len(keys), *keys]
        for one in keys:
            if (one in self.budgets) == (pick.random() < 0.99):
                limit = int(pick.random() * self.scale)
                words += ["BUDGET", limit, self.end(one), self.amount(limit)]
            else:
                limit, resolution, subintervals = self.quota(one)
                words += ["rate", limit, f"{resolution * subintervals}ms", f"{resolution}ms", self.amount(limit),
                          *self.rise((resolution, subintervals))]
        words += (["STRICT"] if pick.random() < 0.3 else []) + instant
        return words, scripted(words, self.sha)

    def held_or_released(self):
        """HOLD, RELEASE, RENEW, HOLDERS, INFO, or ADMIT and SETTLE with holds; rarely on a key of another kind."""
        pick = self.random
        key = pick.choice(self.held if pick.random() < 0.98 else self.keys + self.budgets)
        self.tick(self.geometry[key])
        chance = pick.random() if not self.reserved or pick.random() < 0.6 else 0.76 + 0.2 * pick.random()
        latest = LATEST_HELD if chance < 0.5 or 0.68 <= chance < 0.86 else MAX
        instant = [] if self.by_clock else ["AT", min(self.now, latest + (pick.random() < 0.01))]
        if chance < 0.5:
            limit = int(pick.random() * self.scale)
            words = ["SWLIMIT.HOLD", key, limit, self.ttl(key), pick.choice(self.ids)]
            if not self.unit_costs:
                words += ["COST", self.amount(limit)]
            words += instant
        elif chance < 0.6:
            words = ["SWLIMIT.RELEASE", key, *pick.choices(self.ids, k=pick.choice([1, 1, 1, 5])), *instant]
        elif chance < 0.68:
            words = ["SWLIMIT.HOLDERS", key, *pick.choice([[], [1], [5], [10_000]]), *instant]
        elif chance < 0.76:
            ids = pick.choices(self.ids, k=pick.choice([1, 1, 5, 1500 if len(self.ids) > 1000 else 2]))
            words = ["SWLIMIT.RENEW", key, self.ttl(key), *ids, *instant]
        elif chance < 0.86:
            words = self.admitted(instant)
        elif chance < 0.95 and self.reserved:
            names, identity = self.reserved[-1] if pick.random() < 0.8 else pick.choice(self.reserved)
            used = [pick.choice([0, 1, 1, 5, self.amount(9)]) if name not in self.held else 0 for name in names[1:]]
            words = ["SWLIMIT.SETTLE", len(names), *names, identity, *used, *instant]
        elif chance < 0.98 or not self.stands:
            words = ["SWLIMIT.HOLDERS", key, *instant] if not self.stands else ["SWLIMIT.INFO", key]
        else:
            words = [pick.choice(["PTTL", "PTTL", "PTTL", "DEL"]), key]
        return words, scripted(words, self.sha, self.read_only)

    def ttl(self, key):
        """A time to live in the module's words."""
        least = 1 if self.stands else HOUR
        return f"{max(least, self.span(self.geometry[key]))}ms"

    def admitted(self, instant):
        """ADMIT with a hold: a new one, or one that was admitted before, mostly with the same clauses."""
        pick = self.random
        others = pick.sample([*self.keys[:2], *self.budgets, *self.held[1:]], pick.randint(0, 3))
        names, identity = [self.held[0], *others], pick.choice(self.ids)
        if self.reserved and pick.random() < 0.3:
            names, identity = self.reserved[-1]
        elif others:
            self.reserved = [*self.reserved[-9:], (names, identity)]
        words = ["SWLIMIT.ADMIT", len(names), *names]
        for one in names:
            limit, resolution, subintervals = self.quota(one)
            limit = limit if pick.random() < 0.3 else self.scale
            cost = self.amount(limit) if pick.random() < 0.1 and not self.unit_costs else 1
            if one in self.held:
                own = identity if pick.random() < 0.98 else pick.choice(self.ids)
                words += ["HOLD", limit, self.ttl(one), own, cost]
            elif one in self.budgets:
                words += ["BUDGET", limit, self.end(one), cost]
            else:
                words += ["RATE", limit, f"{resolution * subintervals}ms", f"{resolution}ms", cost,
                          *self.rise((resolution, subintervals))]
        return words + (["STRICT"] if pick.random() < 0.3 else []) + instant

    def end(self, key):
        """When a period ends: mostly the one that was last asked for, while that is ahead."""
        pick, now = self.random, self.clock.ms if self.by_clock else self.now
        if self.ends[key] <= now or pick.random() < 0.1:
            least = 0 if self.stands else HOUR
            spans = [HOUR, DAY, 30 * DAY, MAX_WINDOW - 1, MAX_WINDOW, sum(self.geometry[key])]
            odd = [-1, 0, 1, MAX_WINDOW + 1] if pick.random() < 0.1 else []
            self.ends[key] = max(0, now + pick.choice([max(least, span) for span in spans] + odd))
        return self.ends[key]

    def decide(self, key, chance):
        """ALLOW, PEEK or RECORD."""
        pick = self.random
        limit, resolution, subintervals = self.quota(key)
        cost = self.amount(limit)
        partial, strict = pick.random() < 0.2, pick.random() < 0.3
        name = "ALLOW" if chance < 0.36 else "PEEK" if chance < 0.48 else "RECORD"
        partial = partial and name != "RECORD"
        words = [f"SWLIMIT.{name}", key, limit, f"{resolution * subintervals}ms", f"{resolution}ms"]
        if cost > 1:
            words += ["COST", cost]
        if partial:
            words.append("PARTIAL")
        if strict:
            words.append("STRICT")
        rise = self.rise((resolution, subintervals), 0.8)
        words += rise
        if not self.by_clock:
            words += ["AT", self.now]
        if name != "RECORD" and not rise and pick.random() < 0.5:
            flags = (name == "ALLOW") * COUNT | partial * PARTIAL | strict * STRICT
            return words, packed(key, limit, resolution, subintervals, cost, self.sha, flags,
                                 None if self.by_clock else self.now, self.read_only)
        if not self.stands:
            return words, scripted(words, self.sha, self.read_only)
        if name == "RECORD" and pick.random() < 0.4:
            words += ["AGE", f"{self.span((resolution, subintervals))}ms"]
        if name != "PEEK" and pick.random() < 0.08:
            words += ["BLOCK", f"{max(1, self.span((resolution, subintervals)))}ms"]
        return words, scripted(words, self.sha, self.read_only)

    def spoilt(self):
        """A command with something wrong, or odd, in it."""
        pick = self.random
        name = pick.choice(["ALLOW", "PEEK", "RECORD", "REFUND", "BLOCK", "UNBLOCK", "INFO", "MALLOW", "BUDGET",
                            "ADMIT", "HOLD", "RELEASE", "RENEW", "HOLDERS", "SETTLE"])
        key = pick.choice(self.keys + self.budgets + self.held)
        words = {"REFUND": [1], "BLOCK": ["1m"], "UNBLOCK": [], "INFO": [], "BUDGET": [5, NOW + HOUR],
                 "HOLD": [5, "1m", "id"], "RELEASE": ["id"], "RENEW": ["1m", "id"], "HOLDERS": []}.get(
            name, [5, "1m", "5s"])
        words = words + pick.choice([[], ["COST", 2], ["AT", NOW], ["STRICT"], ["AT"], ["NX"], ["NX", "GT"], ["AGE", 5],
                                     ["AT", 5, "at", 6], ["AGE", 5, "SINCE", 5], ["SINCE", NOW, "age", "x"],
                                     ["WARMUP", "9m"], ["warmup", "9m", "COLD", 5], ["cold", 5]])
        if name in SEVERAL:
            keys = [key, pick.choice(self.keys)][:pick.choice([1, 2, 2])]
            rise = pick.choice([[], [], [], ["WARMUP", "9m"], ["WARMUP", "9m", "cold", 5], ["cold", 5]])
            words = [5, "1m", "5s", 1, *rise] * len(keys) + pick.choice([[], ["STRICT"], ["AT", NOW], ["x"]])
        if name == "ADMIT":
            kinds = [["RATE", 5, "1m", "5s", 1, *rise], ["BUDGET", 5, NOW + HOUR, 1], ["HOLD", 5, "1m", "id", 1]]
            clauses = pick.choices(kinds, k=len(keys))
            words = sum(clauses, []) + pick.choice([[], ["STRICT"], ["AT", NOW], ["AT", 9007199254741], ["x"]])
        if name == "SETTLE":
            words = ["id", *[1] * (len(keys) - 1)] + pick.choice([[], ["AT", NOW], ["x"]])
        for _ in range(pick.choice([0, 1, 1, 2])):
            place = int(pick.random() * (len(words) + 1))
            words[place:place + pick.getrandbits(1)] = pick.choice([[pick.choice(GARBAGE)], []])
        if any(str(one).upper() in ("AT", "SINCE") and str(other).isdigit() and int(other) > LATEST
               for one, other in zip(words, words[1:])):
            return self.spoilt()
        if name in SEVERAL:
            return [f"SWLIMIT.{name}", len(keys), *keys, *words]
        return [f"SWLIMIT.{name}", key, *words]


class Difference(AssertionError):
    """The script has answered otherwise than the module."""


def compare(module, plain, clock, commands, count):
    """Give random commands to a server with the module, and their like to one without; the number of bytes compared.

    Raises `Difference` with the first command whose replies are not the same, byte by byte, except INFO's `memory`.
    """
    with _Raw(module.port) as ours, _Raw(plain.port) as theirs:
        load(theirs)
        for connection in (ours, theirs):  # Redis 8.6 ends a key beside the commands a millisecond before they do
            connection.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        with plain.client() as client:
            version = client.info("server")["redis_version"]
        commands.sha, commands.clock = sha(), clock
        commands.read_only = "EVALSHA_RO" if version >= "7" else "EVALSHA"
        if not (stands(ours) and stands(theirs)):
            commands.leave_the_clock_out()
        compared = done = 0
        while done < count:
            pairs = [commands.next() for _ in range(min(BATCH, count - done))]
            ours.start(words for words, _ in pairs)
            theirs.start(words for _, words in pairs)
            replies = ours.finish(), _unpacked(pairs, theirs.finish())
            if replies[0] != replies[1]:
                replies = [MEMORY.sub(rb"\1:0\r\n", reply) for reply in replies]
                if replies[0] != replies[1]:
                    raise Difference(_first(pairs, ours, theirs, replies, clock))
            compared += len(replies[0])
            done += len(pairs)
            _go_on(commands, clock, ours, theirs)
        return compared


def _unpacked(pairs, replies):
    """The bytes of a batch's replies, as they are of calls in words."""
    limits = [words[2] for (words, call), reply in zip(pairs, _split(replies))
              if isinstance(reply, bytes) and call[0].startswith("EVALSHA") and isinstance(call[4], bytes)]
    limits.reverse()

    def in_words(found):
        return b"*5\r\n" + b"".join(b":%d\r\n" % number for number in unpacked(found[1], limits.pop()))

    return PACKED.sub(in_words, replies)


def _split(replies):
    """The replies that bytes are of."""
    reader, found = parser(), []
    reader.feed(replies)
    while (one := reader.gets()) is not INCOMPLETE:
        found.append(one)
    return found


def stands(connection):
    """Whether a server's clock stands within a batch: Valkey 9.1 adds what the processor's clock says has passed."""
    connection.call("SET", "expiry", "v", "PX", 1_000_000)
    left = {connection.call("PTTL", "expiry") for _ in range(500)}
    connection.call("DEL", "expiry")
    return left == {1_000_000}


def _go_on(commands, clock, ours, theirs):
    """Let the servers' clock go on, and sometimes begin with new keys."""
    pick = commands.random
    resolution, subintervals = pick.choice(list(commands.geometry.values()))
    if commands.stands:  # else keys would expire within a batch, by each server's own clock
        step = pick.choice([0, 1, resolution // 3, resolution, resolution * subintervals])
        clock.set(clock.ms + step if clock.ms < 2 * NOW else NOW)
    if pick.random() < 0.5:
        commands.begin()
    if commands.by_clock:
        commands.now = clock.ms
    if commands.number % 50 == 0:
        for connection in (ours, theirs):
            connection.start([["FLUSHALL"]])
            connection.finish()


def _first(pairs, ours, theirs, replies, clock):
    """What to say of the first command whose replies differ."""
    for number, ((words, call), one, other) in enumerate(zip(pairs, *map(_split, replies))):
        if one != other:
            return (f"command {number} of the batch, clock {clock.ms}:\n{words}\n{call}\n"
                    f"module: {one}\nscript: {other}\n"
                    f"before: {[earlier for earlier, _ in pairs[:number] if words[1] in earlier][-12:]}")
    return f"unequal bytes: {replies}"


class _Raw(Connection):
    """A connection whose replies are read as bytes."""

    def start(self, commands):
        """Send commands; none of their replies is larger than the sockets' buffers together hold."""
        self._waiting = b"".join([encode(*words) for words in commands]) + encode("PING", END)
        self.socket.setblocking(False)
        self._replies = []
        self._pump(all_of_it=False)

    def finish(self):
        """The bytes of all replies."""
        self._pump(all_of_it=True)
        self.socket.setblocking(True)
        return b"".join(self._replies).removesuffix(ENDING)

    def _pump(self, all_of_it):
        """Send and receive as long as either goes on; to the end, if that is wanted."""
        while True:
            moved = False
            if self._waiting:
                try:
                    sent = self.socket.send(self._waiting)
                    self._waiting, moved = self._waiting[sent:], sent > 0
                except BlockingIOError:
                    pass
            try:
                more = self.socket.recv(1 << 20)
                assert more, "the server hung up"
                self._replies.append(more)
                moved = True
            except BlockingIOError:
                pass
            if self._replies and b"".join(self._replies[-3:])[-len(ENDING):] == ENDING:
                return
            if not moved:
                if not all_of_it:
                    return
                ready = select.select([self.socket], [self.socket] if self._waiting else [], [], ANSWER_SECONDS)
                assert any(ready), "the server does not answer"


END = "the end of a batch"
ENDING = b"$%d\r\n%s\r\n" % (len(END), END.encode())

