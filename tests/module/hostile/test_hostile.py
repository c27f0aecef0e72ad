"""Hostile input: damaged DUMP payloads, random argument vectors, absurd but legal values, gigantic keys.

Whatever comes in, the server stays up and answers within 10 ms a command, its memory comes back, and no key is broken.
Payloads are loaded with the server's checksum check off, so that the module's own checks are what is tested. Printed
figures show with `pytest -s`.
"""

import itertools
import random
import re
import time
from pathlib import Path

import pytest

from support.bounds import EDGES, MAX, MAX_SUBINTERVALS, MAX_WINDOW
from support.commands import mallow
from support.contents import info
from support.payloads import Frame, blocked, damaged, value_of
from support.resp import Connection, Failed

SLOW_MICROSECONDS = 10_000
SHOWN_MICROSECONDS = 500  # slower commands are remembered, to print the slowest
NOW = 1_700_000_000_000
REFUSALS = re.compile(
    r"ERR (limit must be an integer between 0 and|(window|resolution|BLOCK|AGE) must be a duration|"
    r"resolution must divide|window / resolution is \d+ subintervals, above|(cost|units) must be an integer|"
    r"(AT|SINCE) must be a Unix time|not an effect: |"
    r"syntax error near '|numkeys must be|key named twice|count would overflow|"
    r"no such key|wrong number of arguments)|WRONGTYPE ")


@pytest.fixture
def hostile(start):
    """A server that skips checksums, obeys any window and remembers slow commands; alive and light at the end."""
    server = start(options={"slowlog-log-slower-than": SHOWN_MICROSECONDS, "slowlog-max-len": 4096,
                            "sanitize-dump-payload": "yes", "maxmemory-policy": "noeviction"})
    with Connection(server.port) as pipe:
        assert pipe.call("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1) == b"OK"
        assert pipe.call("CONFIG", "SET", "swlimit.max-subintervals", MAX_SUBINTERVALS) == b"OK"
    yield server
    assert server.alive, server.log
    assert "REDIS BUG REPORT" not in server.log and "panicked" not in server.log


@pytest.fixture
def pipe(hostile):
    with Connection(hostile.port) as pipe:
        yield pipe


class Pace:
    """Watches for slow commands. One that is slow counts only if it is slow again every time it is repeated."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.slowest = (0, "")
        self.noise = 0
        pipe.call("SLOWLOG", "RESET")

    def check(self, repeat):
        """Look at what was slow since the last look; `repeat` does the same work again."""
        slow = self._slow()
        for _ in range(4):
            if not slow:
                return
            repeat()
            again = self._slow()
            self.noise += len(slow - again)
            slow &= again
        assert not slow, f"over {SLOW_MICROSECONDS} us each time: {slow}"

    def _slow(self):
        slow = set()
        for entry in self.pipe.call("SLOWLOG", "GET", -1):
            words = b" ".join(entry[3])[:100]
            if not words.startswith(b"SLOWLOG"):
                self.slowest = max(self.slowest, (entry[2], repr(words[:40])))
                if entry[2] > SLOW_MICROSECONDS:
                    slow.add(words)
        self.pipe.call("SLOWLOG", "RESET")
        return slow


def resident_peak(server):
    """The most memory the server process ever had, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def memory_settles(pipe, most, seconds=10):
    """Wait until no more than `most` bytes are in use; how many are."""
    deadline = time.monotonic() + seconds
    while True:
        used = info(pipe, "memory")["used_memory"]
        if used <= most:
            return used
        assert time.monotonic() < deadline, f"{used} bytes are still in use, above {most}"
        time.sleep(0.05)


def broken(reply):
    """What is wrong with a key, going by SWLIMIT.INFO; None if counting and blocking could have led to it."""
    if isinstance(reply, Failed):
        return reply
    shown = dict(zip(reply[::2], reply[1::2]))
    window, resolution, subintervals = shown[b"window"], shown[b"resolution"], shown[b"subintervals"]
    starts, units = zip(*shown[b"counts"]) if shown[b"counts"] else ((), ())
    newest = shown[b"newest"]
    if not starts:
        nothing = window == resolution == subintervals == newest == shown[b"total"] == 0
        return None if nothing and shown[b"memory"] > 24 else f"neither counts nor a block alone: {shown}"
    for rule, kept in {
        "geometry": window == resolution * subintervals and resolution > 0 and subintervals > 0,
        "bounds": window <= MAX_WINDOW and subintervals <= MAX_SUBINTERVALS,
        "order": all(a < b for a, b in zip(starts, starts[1:])),
        "alignment": all(start % resolution == 0 for start in starts),
        "newest": starts[-1] == newest <= MAX,
        "oldest": newest - starts[0] <= window,
        "units": all(unit > 0 for unit in units) and sum(units) == shown[b"total"] <= MAX,
        "memory": shown[b"memory"] >= 24,
        "block": shown[b"blocked"] <= MAX + MAX_WINDOW,
    }.items():
        if not kept:
            return f"{rule}: {shown}"
    return None


def odd_decision(reply, limit, cost, partial, may_exceed=False):
    """What is wrong with five integers; None if nothing is."""
    granted, told_limit, remaining, retry, reset = reply
    fits = (granted in (0, cost) or partial and 0 < granted < cost) and told_limit == limit
    never = cost > limit if not partial else limit == 0
    if not fits or not 0 <= remaining <= limit or reset < 0 or reset > 2**54 or retry < -1:
        return f"out of range: {reply}"
    if (retry == -1) != (never and granted == 0) or granted > limit:
        return f"never: {reply}"
    if granted and retry != 0 or not granted and retry == 0 and not may_exceed:
        return f"retry: {reply}"
    return None


def treatment(rng, key, reply):
    """Every command for an accepted key, `reply` being its SWLIMIT.INFO: with its own geometry and with others."""
    shown = dict(zip(reply[::2], reply[1::2]))
    window, resolution, newest = shown[b"window"], shown[b"resolution"], shown[b"newest"]
    near = [newest, newest + resolution, newest - 1, newest - window, newest - window - resolution, newest + window,
            newest + window + resolution, 0, MAX, rng.randint(0, MAX)]
    at = [min(max(instant, 0), MAX) for instant in rng.sample(near, 5)]
    limit = rng.choice((0, 1, shown[b"total"], shown[b"total"] + 1, MAX))
    cost = rng.choice((1, shown[b"total"], MAX))
    own = (f"{window}ms", f"{resolution}ms") if window else ("60", "1")
    other = rng.choice((("1ms", "1ms"), ("3650d", "3650d"), ("1000000ms", "1ms"), ("60", "60"), ("3650d", "315360s"),
                        (own[0], own[0])))
    copy = key + b"'"
    yield from (("SWLIMIT.PEEK", key, limit, *own, "COST", cost, "AT", at[0]),
                ("SWLIMIT.PEEK", key, limit, *other, "COST", cost, "PARTIAL", "STRICT", "AT", at[1]),
                ("SWLIMIT.RECORD", key, limit, *own, "COST", cost, "AT", at[2]),
                ("SWLIMIT.ALLOW", key, MAX, *own, "AT", at[0]),
                ("SWLIMIT.MALLOW", 2, key, copy, limit, *own, cost, MAX, *other, 1, "AT", at[3]),
                ("SWLIMIT.REFUND", copy, rng.choice((1, cost)), "AT", at[1]),
                ("SWLIMIT.ALLOW", key, limit, *other, "PARTIAL", "COST", cost, "AT", at[4]),
                ("SWLIMIT.RECORD", copy, limit, *other, "STRICT", "COST", cost, "AT", at[3]),
                ("SWLIMIT.INFO", key), ("SWLIMIT.INFO", copy), ("DUMP", key), ("DEBUG", "DIGEST-VALUE", key),
                ("SWLIMIT.ALLOW", copy, 0, *other, "BLOCK", rng.choice(("1ms", "3650d")), "AT", at[2]),
                ("SWLIMIT.BLOCK", key, rng.choice(("1ms", "3650d")), *rng.choice(((), ("NX",))), "AT", at[3]),
                ("SWLIMIT.UNBLOCK", copy, "AT", at[rng.randrange(5)]), ("SWLIMIT.INFO", key),
                ("SWLIMIT.REFUND", key, cost, "AT", at[4]),
                ("SWLIMIT.REFUND", copy, MAX, "AT", at[0]), ("SWLIMIT.INFO", copy))


class Payloads:
    """Feeds payloads to a server, and puts every accepted key through every command."""

    def __init__(self, rng, pipe):
        self.rng = rng
        self.pipe = pipe
        self.pace = Pace(pipe)
        self.accepted = self.commands = self.tried = 0
        self.refusals = {}
        self.keys = [b"k%d" % number for number in range(250)]

    def feed(self, payloads):
        """Try them, a batch of as many as there are keys at a time."""
        for begin in range(0, len(payloads), len(self.keys)):
            batch = payloads[begin:begin + len(self.keys)]
            seed = self.rng.getrandbits(64)
            self._batch(batch, seed)
            self.pace.check(lambda: self._batch(batch, seed, count=False))

    def _batch(self, payloads, seed, count=True):
        rng = random.Random(seed)
        pipe = self.pipe
        assert pipe.call("FLUSHALL") == b"OK"
        loads = pipe.calls([("RESTORE", key, 0, payload, "REPLACE") for key, payload in zip(self.keys, payloads)])
        for reply in loads:
            assert reply == b"OK" or re.match("ERR (Bad data format|DUMP payload version)", reply), reply
        kept = [(key, payload) for key, payload, reply in zip(self.keys, payloads, loads) if reply == b"OK"]
        keys = [key for key, _ in kept]
        shown = pipe.calls([("SWLIMIT.INFO", key) for key in keys])
        for (_, payload), reply in zip(kept, shown):
            assert not broken(reply), (broken(reply), payload)
        self._round_trip(keys, shown)
        commands = [words for key, reply in zip(keys, shown) for words in treatment(rng, key, reply)]
        for words, reply in zip(commands, pipe.stream(commands)):
            if isinstance(reply, Failed):
                assert REFUSALS.match(reply), (words, reply)
            elif words[0] == "SWLIMIT.INFO":
                assert not broken(reply), (broken(reply), words)
            elif words[0] in ("SWLIMIT.ALLOW", "SWLIMIT.PEEK", "SWLIMIT.RECORD"):
                cost = words[words.index("COST") + 1] if "COST" in words else 1
                odd = odd_decision(reply, words[2], cost, "PARTIAL" in words, may_exceed="RECORD" in words[0])
                assert not odd, (odd, words)
        if count:
            self.tried += len(payloads)
            self.accepted += len(keys)
            self.commands += len(commands) + 6 * len(keys)
            for reply in loads:
                self.refusals[reply] = self.refusals.get(reply, 0) + 1

    def _round_trip(self, keys, shown):
        """A copy and a reloaded dump are the same window."""
        pipe = self.pipe
        dumps = pipe.calls([("DUMP", key) for key in keys])
        again = [words for key, dump in zip(keys, dumps)
                 for words in (("RESTORE", b"d" + key, 0, dump), ("COPY", key, key + b"'", "REPLACE"),
                               ("MEMORY", "USAGE", key), ("DUMP", b"d" + key),
                               ("DEBUG", "DIGEST-VALUE", key, key + b"'", b"d" + key), ("UNLINK", b"d" + key))]
        replies = list(pipe.stream(again))
        for dump, reply, six in zip(dumps, shown, zip(*[iter(replies)] * 6)):
            restored, copied, usage, second, digests, unlinked = six
            assert (restored, copied, unlinked) == (b"OK", 1, 1), (six, reply)
            assert second == dump and len(set(digests)) == 1, (six, reply)
            assert usage >= reply[reply.index(b"memory") + 1], (usage, reply)

    def say(self, what):
        print(f"\n{what}: {self.tried} payloads tried, {self.accepted} accepted, {self.commands} commands on those; "
              f"slowest {self.pace.slowest[0]} us ({self.pace.slowest[1]}), {self.pace.noise} slow only once")


def sound_values(rng):
    """Windows of every shape, and blocks: bytes as the module writes them."""
    second = NOW // 1000
    minute = [(second - 60 + number, rng.randint(1, 99)) for number in range(0, 61, 3)]
    return [
        value_of(60_000, 1, [(NOW // 60_000, 7)]),
        value_of(1000, 60, minute),
        value_of(1000, 60, [(subinterval, units << 40) for subinterval, units in minute]),
        value_of(1000, 3600, [(second + number * 9, 1 << number) for number in range(40)]),
        value_of(1, 4096, [(NOW + number, 1) for number in range(200)]),
        value_of(1, MAX_SUBINTERVALS, [(NOW + number * 3333, 1 + number) for number in range(300)]),
        value_of(315_360, MAX_SUBINTERVALS, [(NOW // 315_360 - 500, 3), (NOW // 315_360, MAX - 3)]),
        value_of(MAX_WINDOW, 1, [(MAX // MAX_WINDOW - 1, 1), (MAX // MAX_WINDOW, 1)]),
        value_of(1, 1, [(MAX - 1, 1), (MAX, MAX - 1)]),
        value_of(1, 1000, [(0, 1), (1000, 2)]),
        blocked(1), blocked(NOW + 3_600_000), blocked(MAX + MAX_WINDOW),
        blocked(NOW + 3_600_000, value_of(1000, 60, minute)), blocked(1, value_of(60_000, 1, [(NOW // 60_000, 7)])),
    ]


def frame_of(pipe):
    """How this server frames a window."""
    pipe.call("SWLIMIT.RECORD", "frame", 1, 60, 1, "AT", 5000)
    dump = pipe.call("DUMP", "frame")
    pipe.call("DEL", "frame")
    return Frame(dump)


def test_intact_payloads_are_accepted(pipe):
    """What the other tests damage is sound before, so that what they refuse is refused for its damage."""
    values = sound_values(random.Random(1))
    frame = frame_of(pipe)
    payloads = Payloads(random.Random(2), pipe)
    payloads.feed([frame.around(value) for value in values])
    assert payloads.accepted == len(values)


@pytest.mark.parametrize("size", [5_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_damaged_values(hostile, pipe, size):
    """The window's bytes with bits, bytes, fields and parts changed, inserted, removed, spliced; the frame intact.

    What is accepted is a sound window that survives every command; memory neither peaks nor stays.
    """
    rng = random.Random(size)
    frame, values, payloads = frame_of(pipe), sound_values(rng), Payloads(rng, pipe)
    payloads.feed([frame.around(value) for value in values])
    before, peak = info(pipe, "memory")["used_memory"], resident_peak(hostile)
    for _ in range(0, size, 5000):
        payloads.feed([frame.around(damaged(rng, rng.choice(values), rng.choice(values))) for _ in range(5000)])
    pipe.call("FLUSHALL")
    used, grown = memory_settles(pipe, before + (1 << 19)), resident_peak(hostile) - peak
    payloads.say(f"damaged values (seed {size})")
    print(f"memory in use {before} -> {used}, resident peak +{grown}")
    assert info(pipe)["swlimit_keys"] == info(pipe)["swlimit_memory"] == 0
    assert payloads.accepted > size / 50, "hardly anything was accepted: the damage is too coarse to test what is"
    assert payloads.tried - payloads.accepted > size / 10, "hardly anything was refused"
    assert grown < 64 << 20


@pytest.mark.parametrize("size", [3_000, pytest.param(150_000, marks=pytest.mark.long)])
def test_damaged_frames_and_random_bytes(pipe, size):
    """The frame around the value damaged too (type's name, opcodes, lengths), and values that are random bytes.

    The type's byte stays: with another one, the bytes are another type's affair.
    """
    rng = random.Random(size)
    frame, values, payloads = frame_of(pipe), sound_values(rng), Payloads(rng, pipe)
    before = info(pipe, "memory")["used_memory"]
    for _ in range(0, size, 3000):
        batch = []
        for number in range(3000):
            if number % 3 == 0:
                body = frame.body(rng.choice(values))
                at = rng.choice((1, 10, 10, len(body) - 1))  # to the name as seldom as it deserves
                body = body[:at] + damaged(rng, body[at:], body)
            elif number % 3 == 1:
                body = frame.body(rng.randbytes(rng.randint(0, 40)))
            else:
                body = frame.head[:10] + rng.randbytes(rng.randint(0, 60))
            batch.append(body + frame.foot)
        payloads.feed(batch)
    pipe.call("FLUSHALL")
    used = memory_settles(pipe, before + (1 << 19))
    payloads.say(f"damaged frames and random bytes (seed {size})")
    print(f"memory in use {before} -> {used}; refusals: {payloads.refusals}")
    assert info(pipe)["swlimit_keys"] == info(pipe)["swlimit_memory"] == 0
    assert payloads.tried >= size and payloads.accepted < payloads.tried / 2


COMMANDS = (b"SWLIMIT.ALLOW", b"SWLIMIT.PEEK", b"SWLIMIT.RECORD", b"SWLIMIT.REFUND", b"SWLIMIT.INFO", b"SWLIMIT.MALLOW",
            b"SWLIMIT.BLOCK", b"SWLIMIT.UNBLOCK", b"SWLIMIT.APPLY")
EFFECTS = (b"c1000*60@%d", b"c1*1000000@%d+9007199254740991", b"c5000*1@%d:5+3!", b"r1@%d", b"r9@%d:0", b"b%d~0",
           b"u@%d", b"p9007199254740991@%d", b"ha>9007199254740#5@%d+9007199254740991~1", b"ha%%00,>5#5@%d",
           b"na,b>9007199254740@%d", b"ea@%d", b"ha>9#8@%d;c1*1@1=k;p1$00112233445566778899aabbccddeeff")
KEYS = (b"a", b"b", b"\0\xff\r\n", b"", b"string", b"list")
WORDS = (*(b"%d" % edge for edge in EDGES), b"60", b"1", b"10", b"1ms", b"250ms", b"3650d", b"3650D", b"1000000ms",
         b"87600h", b"COST", b"PARTIAL", b"STRICT", b"BLOCK", b"NX", b"AGE", b"SINCE", b"AT", b"cost", b"at",
         b"-1", b"+1", b"1.5", b" 1", b"1 ", b"nan", b"", b"\0", b"1\0", b"%s%n", b"\r\n", b"-1ms", b"0x10", b"1e3",
         b"9" * 400, b"A" * 5000)


def random_vector(rng):
    """A call of one of the commands: pure noise, or a sentence of the grammar with a few words replaced."""
    command = rng.choice(COMMANDS)
    noise = rng.random()
    if noise < 0.35:
        lengths = rng.choices((0, 1, 3, 8, 40), k=rng.randint(0, 12))
        return [command, *map(rng.randbytes, lengths)]
    if noise < 0.6:
        return [command, *rng.choices(KEYS + WORDS, k=rng.randint(0, 14))]

    def quota():
        return [rng.choice(KEYS[:4]), rng.choice((b"0", b"10", b"9007199254740991")),
                *rng.choice(((b"60", b"1"), (b"60", b"60"), (b"1ms", b"1ms"), (b"3650d", b"3650d"), (b"1d", b"1h"),
                             (b"1000000ms", b"1ms"), (b"3650d", b"315360s")))]

    def number():
        return b"%d" % rng.choice((1, 2, 10, rng.getrandbits(53) or 1, MAX))

    if command == b"SWLIMIT.MALLOW":
        keys = rng.randint(1, 4)
        words = mallow(*((*quota(), number()) for _ in range(keys)))[1:]
    elif command == b"SWLIMIT.REFUND":
        words = [rng.choice(KEYS), number()]
    elif command == b"SWLIMIT.APPLY":
        words = []
        for _ in range(rng.randint(1, 4)):
            word = bytearray(rng.choice(EFFECTS) % rng.choice((0, 1, NOW, NOW + rng.getrandbits(20), MAX)))
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                word[rng.randrange(len(word))] = rng.choice(b"0123456789abc*@+!~:;=$%,#>\0\xff")
            words += [rng.choice(KEYS), bytes(word)]
        return [command, *words]
    elif command == b"SWLIMIT.BLOCK":
        words = [rng.choice(KEYS), rng.choice((b"1ms", b"60", b"3650d"))]
        words += rng.choice(([], [b"NX"]))
    elif command in (b"SWLIMIT.INFO", b"SWLIMIT.UNBLOCK"):
        words = [rng.choice(KEYS)]
    else:
        words = quota()
        words += [b"COST", number()] if rng.random() < 0.5 else []
        words += [b"BLOCK", b"1h"] if rng.random() < 0.2 else []
    words += rng.choice(([], [b"STRICT"], [b"PARTIAL"]))
    if rng.random() < 0.6:
        words += [b"AT", b"%d" % rng.choice((0, NOW, NOW + rng.getrandbits(20), rng.getrandbits(53), MAX))]
    for _ in range(rng.choice((0, 0, 1, 2))):
        words[rng.randrange(len(words))] = rng.choice((rng.choice(WORDS), rng.randbytes(4)))
    return [command, *words]


@pytest.mark.parametrize("size", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_random_arguments(hostile, pipe, size):
    """Random argument vectors for every command: each is understood or refused in the documented words."""
    rng = random.Random(size)
    pace = Pace(pipe)
    before, peak = info(pipe, "memory")["used_memory"], resident_peak(hostile)
    tried = understood = 0
    refusals = {}
    while tried < size:
        batch = [random_vector(rng) for _ in range(500)]
        if tried % 20_000 == 0:
            pipe.call("FLUSHALL")
            pipe.calls([("SET", "string", "x"), ("RPUSH", "list", "x")])
        for words, reply in zip(batch, pipe.calls(batch)):
            if isinstance(reply, Failed):
                assert REFUSALS.match(reply), (words, reply)
                kind = REFUSALS.match(reply)[0].split(" is ")[0][:36]
                refusals[kind] = refusals.get(kind, 0) + 1
            else:
                understood += 1
                if words[0] == b"SWLIMIT.INFO":
                    assert not broken(reply), (broken(reply), words)
        tried += len(batch)
        pace.check(lambda: pipe.calls(batch))
        for key in KEYS[:4]:
            reply = pipe.call("SWLIMIT.INFO", key)
            assert reply == "ERR no such key" or not broken(reply), (key, broken(reply))
    pipe.call("FLUSHALL")
    used, grown = memory_settles(pipe, before + (1 << 19)), resident_peak(hostile) - peak
    print(f"\nrandom arguments (seed {size}): {tried} tried, {understood} understood; slowest {pace.slowest}; "
          f"memory {before} -> {used}, resident peak +{grown}; refusals {refusals}")
    assert understood > size / 20 and len(refusals) >= 12, refusals
    assert grown < 64 << 20


LIMITS = (0, 1, MAX)
GEOMETRIES = (("1ms", "1ms"), ("1000000ms", "1ms"), ("3650d", "3650d"), ("3650d", "315360ms"), ("3650d", "1d"),
              ("2ms", "1ms"))
COSTS = (1, MAX)
INSTANTS = (0, 1, NOW, NOW + 1, MAX - 1, MAX)
UNITS = {"ms": 1, "d": 86_400_000}
FLAGS = ((), ("STRICT",), ("PARTIAL",), ("PARTIAL", "STRICT"))


def milliseconds(duration):
    number, unit = re.fullmatch(r"(\d+)(\D+)", duration).groups()
    return int(number) * UNITS[unit]


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.long)])
def test_absurd_bounds(pipe, rounds):
    """Every combination of the bounds of every argument, in random order on few keys, so that each meets any state.

    Replies are within their ranges, keys sound, and for the window that a key is kept at, `retry_after` is exact: PEEK
    agrees then, and not 1 ms earlier.
    """
    rng = random.Random(rounds)
    pace = Pace(pipe)
    combinations = list(itertools.product(("ALLOW", "PEEK", "RECORD"), LIMITS, GEOMETRIES, COSTS, INSTANTS, FLAGS))
    combinations = [combination for combination in combinations
                    if combination[0] != "RECORD" or "PARTIAL" not in combination[5]]
    granted = refused = retried = tried = 0
    for _ in range(rounds):
        rng.shuffle(combinations)
        batch = []
        for command, limit, geometry, cost, at, flags in combinations:
            key = b"k%d" % rng.randrange(40)
            batch.append((f"SWLIMIT.{command}", key, limit, *geometry, "COST", cost, *flags, "AT", at))
            if command == "ALLOW" and rng.random() < 0.1:
                batch.append(("SWLIMIT.REFUND", key, rng.choice((1, 10**6, MAX)), "AT", at))
                batch.append(mallow((key, limit, *geometry, cost), (b"m", MAX, "60", "60", 1), options=("AT", at)))
        denied = []
        for words, reply in zip(batch, pipe.stream(batch)):
            tried += 1
            if isinstance(reply, Failed):
                refused += 1
                assert reply in ("ERR count would overflow",), (words, reply)
            elif words[0] in ("SWLIMIT.ALLOW", "SWLIMIT.PEEK", "SWLIMIT.RECORD"):
                granted += reply[0] > 0
                odd = odd_decision(reply, words[2], words[words.index("COST") + 1], "PARTIAL" in words,
                                   may_exceed="RECORD" in words[0])
                assert not odd, (odd, words)
        kept_at = {}
        for number in range(40):
            reply = pipe.call("SWLIMIT.INFO", b"k%d" % number)
            assert reply == "ERR no such key" or not broken(reply), broken(reply)
            if not isinstance(reply, Failed):
                kept_at[b"k%d" % number] = (reply[1], reply[3])
        peeks = [("SWLIMIT.PEEK", key, limit, *geometry, "COST", cost, *flags, "AT", at)
                 for key, kept in kept_at.items()
                 for geometry in GEOMETRIES if tuple(map(milliseconds, geometry)) == kept
                 for limit, cost, flags, at in itertools.product((1, NOW, MAX), (1, NOW), FLAGS, INSTANTS)]
        for words, reply in zip(peeks, pipe.stream(peeks)):
            if not isinstance(reply, Failed) and reply[3] > 0 and words[-1] + reply[3] <= MAX:
                denied.append((words, reply[3]))
        later = [(*words[:-1], words[-1] + retry - early) for words, retry in denied for early in (1, 0)]
        answers = list(pipe.stream(later))
        for words, before, then in zip(later[::2], answers[::2], answers[1::2]):
            retried += 1
            assert (before[0] == 0 if not isinstance(before, Failed) else False), (words, before)
            # By then, what the full units weigh is granted, unless holding it would overflow.
            assert then == "ERR count would overflow" or then[0] > 0, (words, then)
        pace.check(lambda: list(pipe.stream(batch)))
    print(f"\nabsurd bounds (seed {rounds}): {tried} commands, {granted} granted, {refused} overflowed, "
          f"{retried} times of retry confirmed; slowest {pace.slowest}")
    assert granted and refused and retried


def giant_calls(newest, units):
    """Commands on a key with a million counts of 1 ms, each with its name."""
    half, most = MAX_SUBINTERVALS // 2, MAX
    own = ("1000000ms", "1ms")
    for command in ("PEEK", "ALLOW", "RECORD"):
        for what, quota, at in (("in the newest subinterval", own, newest), ("in the next one", own, newest + 1),
                                ("half a window later", own, newest + half), ("at half the resolution",
                                ("2000000ms", "2ms"), newest), ("as one subinterval", ("1000", "1000"), newest),
                                ("at half the window", ("500000ms", "1ms"), newest)):
            yield f"{command} {what}", (f"SWLIMIT.{command}", "k", most, *quota, "AT", at)
    yield "RECORD in the middle", ("SWLIMIT.RECORD", "k", most, *own, "AT", newest - half)
    yield "RECORD in the oldest", ("SWLIMIT.RECORD", "k", most, *own, "AT", newest - MAX_SUBINTERVALS + 1)
    yield "RECORD before the oldest", ("SWLIMIT.RECORD", "k", most, *own, "AT", newest - MAX_SUBINTERVALS)
    yield "MALLOW", ("SWLIMIT.MALLOW", 1, "k", most, *own, 1, "AT", newest)
    yield "REFUND of the newest subinterval", ("SWLIMIT.REFUND", "k", units, "AT", newest)
    yield "REFUND of half the counts", ("SWLIMIT.REFUND", "k", units * half, "AT", newest)
    yield "REFUND of everything", ("SWLIMIT.REFUND", "k", most, "AT", newest)
    yield "MEMORY USAGE", ("MEMORY", "USAGE", "k")
    yield "DEL", ("DEL", "k")
    yield "UNLINK", ("UNLINK", "k")


@pytest.mark.parametrize("units", [1, pytest.param(9_000_000_000, marks=pytest.mark.long)], ids=["narrow", "wide"])
def test_key_with_a_million_counts(pipe, units):
    """No single command goes over the largest key there can be more than a few times; those that copy or show it aside.

    RESTORE of it, which goes over it once, is the measure. RESTORE, DUMP and COPY move its bytes, SWLIMIT.INFO replies
    with a million pairs: those are printed only.
    """
    newest = NOW + MAX_SUBINTERVALS - 1
    payload = frame_of(pipe).around(value_of(1, MAX_SUBINTERVALS, [(NOW + number, units)
                                                                   for number in range(MAX_SUBINTERVALS)]))
    pipe.call("CONFIG", "SET", "slowlog-log-slower-than", 0)

    def microseconds(words):
        """How long RESTORE of the key takes, and these words right after it."""
        pipe.call("SLOWLOG", "RESET")
        assert pipe.call("RESTORE", "k", 0, payload, "REPLACE") == b"OK"
        reply = pipe.call(*words)
        assert not isinstance(reply, Failed), (words[:3], reply)
        latest, restored, _reset = pipe.call("SLOWLOG", "GET", -1)
        assert latest[3][0] == str(words[0]).encode(), latest
        return restored[2], latest[2]

    print(f"\na million counts of {units} (us): ", end="")
    for words in (("DUMP", "k"), ("COPY", "k", "c", "REPLACE"), ("SWLIMIT.INFO", "k")):
        restored, taken = microseconds(words)
        print(f"RESTORE {restored}, {words[0]} {taken}", end=", ")
    slow = {}
    for name, words in giant_calls(newest, units):
        # A machine that is busy with other things slows both, and not each time.
        for _ in range(10):
            restored, taken = microseconds(words)
            if taken <= 4 * restored:
                break
        else:
            slow[name] = (taken, restored)
        print(f"{name} {taken}", end="; ")
    assert not slow, f"costs more than four times RESTORE of the key each time: {slow}"
