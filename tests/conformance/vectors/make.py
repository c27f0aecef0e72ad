"""Make the test vectors that README.md describes, from the model of the tests.

`python tests/conformance/vectors/make.py`
"""

import json
import math
import random
import re
import sys
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

from redis.crc import key_slot

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from conformance.vectors.adaptive import adaptive  # noqa: E402
from conformance.vectors.commands import commands  # noqa: E402
from conformance.vectors.rates import rates  # noqa: E402
from support import model  # noqa: E402
from support.bounds import MAX, MAX_SUBINTERVALS, MAX_WINDOW, T  # noqa: E402
from support.commands import mallow, spelled_rise  # noqa: E402
from support.holding import Refused  # noqa: E402
from support.holding_workload import HoldingWorkload, RisingAdmissions  # noqa: E402
from support.workload import RisingWorkload, Workload  # noqa: E402

UNITS = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def durations():
    """What texts mean, in ms; null where they are no durations."""
    numbers = ["0", "1", "5", "007", "60", "250", "3650", "3651", "87600", "87601", "5256000", "315360000", "315360001",
               "315360000000", "315360000001", "9007199254740991", "9007199254740992", "18446744073709551617"]
    texts = [number + unit for number in numbers for unit in UNITS]
    texts += ["60S", "250Ms", "250mS", "5M", "1H", "7D"]
    texts += ["", "s", "ms", "x", "-5", "+5", "1.5s", "1e3", "0x10", " 5", "5 ", "5 s", "5\n", "5\0", "5w", "5mss",
              "5sm", "5s5", "5h30m", "1_000", "\u0661", "\uff15", "5\u00b5s"]
    for text in texts:
        found = re.fullmatch(r"([0-9]+)(ms|[smhd]?)", text, re.IGNORECASE | re.ASCII)
        ms = int(found[1]) * UNITS[found[2].lower()] if found else 0
        yield {"text": text, "ms": ms if 1 <= ms <= MAX_WINDOW else None}


GEOMETRIES = [(60_000, 5_000), (60_000, 60_000), (60_000, 1_000), (1_000, 100), (3_600_000, 60_000), (90_000, 30_000),
              (7, 1), (315_360_000_000, 86_400_000)]


def decisions():
    """What is answered to a request of a key that holds these counts and this block."""
    yield from steady_decisions()
    yield from rising_decisions()


def steady_decisions(cases=400):
    """With the whole limit in force."""
    draw = random.Random(1)
    kinds = Counter()
    while kinds.total() < cases:
        stored, now = stored_window(draw)
        length, resolution = draw.choice(GEOMETRIES) if draw.random() < 0.4 else (stored.length, stored.resolution)
        if draw.random() < 0.05:
            stored.counts = {}
        blocked_until = now + draw.randint(-length, 2 * length) if draw.random() < 0.2 else 0
        held = sum(stored.counts.values())
        limit = max(0, min(MAX, draw.choice([held, held - 1, held // 2, draw.randint(0, 2 * held + 9), 0, MAX])))
        cost = max(1, min(MAX, draw.choice([1, 1, 2, held // 3, limit, limit + 1, draw.randint(1, 30)])))
        options = {name: draw.random() < 0.3 for name in ("partial", "strict")}
        key = model.Key(stored if stored.counts else None, max(0, blocked_until))
        try:
            decision = key.peek(limit, length, resolution, now, cost, **options)
        except model.CountOverflow:
            continue
        kinds[bool(decision[0]), decision[3] == -1, (length, resolution) == (stored.length, stored.resolution),
              blocked_until > now, *options.values()] += 1
        yield {**held_by(key), "now": now,
               "request": {"limit": limit, "window": length, "resolution": resolution, "cost": cost} | options,
               "decision": decision}
    assert len(kinds) > 34, kinds  # of 40: a blocked key grants nothing


def rising_decisions(cases=400):
    """With the part of the limit in force that a key in use for so long has, mostly near what is counted."""
    draw = random.Random(2)
    kinds = Counter()
    while kinds.total() < cases:
        stored, now = stored_window(draw)
        if draw.random() < 0.2:
            now = max(0, stored.newest * stored.resolution - draw.randint(0, stored.length))  # the clock was set back
        elif draw.random() < 0.2:  # nothing counts any more: still in use for a window
            now = stored.end + draw.choice([0, 1, stored.length - 1, stored.length, draw.randint(0, 2 * stored.length)])
        length, resolution = draw.choice(GEOMETRIES) if draw.random() < 0.3 else (stored.length, stored.resolution)
        if draw.random() < 0.08:
            stored.counts = {}
        warm_up = draw.choice([1, 999, length, 10 * length, draw.randint(1, 30 * length), 600_000, MAX_WINDOW])
        warm_up = min(warm_up, MAX_WINDOW)
        cold = draw.choice([2, 3, 3, 3, 7, draw.randint(2, 1_000), 1_000])
        whole = [warm_up - 1, warm_up, warm_up + 1]
        used_for = draw.choice([0, 1, warm_up // 2, *whole, draw.randint(0, warm_up), -length])
        decided = stored.decision_instant(now)
        since = max(1, decided - used_for) if stored.counts and draw.random() < 0.8 else None
        counted = sum(stored.counts.values())
        part = Fraction(1, cold) + Fraction(cold - 1, cold) * Fraction(max(0, min(used_for, warm_up)), warm_up)
        near = math.ceil((counted + draw.choice([-1, 0, 1, 2, draw.randint(0, 9)])) / part)
        limit = max(0, min(MAX, draw.choice([near, near, near, counted, draw.randint(0, 3 * counted + 9), 0, 1, MAX])))
        cost = max(1, min(MAX, draw.choice([1, 1, 2, counted // 3, limit, limit, limit + 1, draw.randint(1, 30)])))
        options = {name: draw.random() < 0.3 for name in ("partial", "strict")}
        key = model.Key(stored if stored.counts else None, since=since)
        if draw.random() < 0.15:
            key.blocked_until = max(0, now + draw.randint(-length, 2 * length))
        asked = {} if draw.random() < 0.05 else {"warm_up": warm_up, "cold": cold}
        try:
            decision = key.peek(limit, length, resolution, now, cost, **options, warmup=asked.get("warm_up"), cold=cold)
        except model.CountOverflow:
            continue
        kinds[bool(decision[0]), decision[3] == -1, decision[4] == 0, decision[1] < limit, since is None,
              (length, resolution) == (stored.length, stored.resolution), *options.values()] += 1
        yield {**held_by(key), **({"since": since} if since else {}), "now": now,
               "request": {"limit": limit, "window": length, "resolution": resolution, "cost": cost} | options | asked,
               "decision": decision}
    assert len(kinds) > 80, kinds


def held_by(key):
    window = key.window
    stored = window and {"window": window.length, "resolution": window.resolution,
                         "counts": [[i * window.resolution, units] for i, units in sorted(window.counts.items())]}
    return {"stored": stored, "blocked_until": key.blocked_until}


def stored_window(draw):
    """A window with a few counts, and an instant around its life, mostly where something is sliding out."""
    window = model.Window(*draw.choice(GEOMETRIES))
    newest = T // window.resolution + draw.randint(0, 99)
    most = draw.choice([9, 9, 100, 2**32, 2**53 // 20])
    for _ in range(draw.randint(1, 8)):
        window.counts[newest - draw.randint(0, window.subintervals)] = draw.randint(1, most)
    window.counts = window.held()
    ends = draw.choice([window.newest * window.resolution, window.end_of(min(window.counts)), window.end])
    return window, max(0, ends + draw.choice([0, -1, 1, draw.randint(-window.resolution, window.resolution)]))


QUOTA = "10", "60s", "5s"
ERRORS = [
    (["ALLOW", "k", "x", "60", "5"], "ERR limit must be an integer between 0 and 9007199254740991"),
    (["ALLOW", "k", "9007199254740992", "60", "5"], "ERR limit must be an integer between 0 and 9007199254740991"),
    (["PEEK", "k", "10", "0", "5"], "ERR window must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["RECORD", "k", "10", "60", "1.5s"], "ERR resolution must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["ALLOW", "k", "10", "60", "7"], "ERR resolution must divide the window evenly"),
    (["ALLOW", "k", "10", "5", "60"], "ERR resolution must divide the window evenly"),
    (["ALLOW", "k", "10", "1h", "1ms"],
     "ERR window / resolution is 3600000 subintervals, above swlimit.max-subintervals (4096)"),
    (["ALLOW", "k", *QUOTA, "COST", "0"], "ERR cost must be an integer between 1 and 9007199254740991"),
    (["ALLOW", "k", *QUOTA, "AT", "-1"], "ERR AT must be a Unix time in milliseconds"),
    (["ALLOW", "k", *QUOTA, "BLOCK", "0"], "ERR BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["ALLOW", "k", *QUOTA, "STRICT", "strict"], "ERR syntax error near 'strict'"),
    (["ALLOW", "k", *QUOTA, "AGE", "1"], "ERR syntax error near 'AGE'"),
    (["RECORD", "k", *QUOTA, "PARTIAL"], "ERR syntax error near 'PARTIAL'"),
    (["RECORD", "k", *QUOTA, "AGE", "-1"], "ERR AGE must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["REFUND", "k", "0"], "ERR units must be an integer between 1 and 9007199254740991"),
    (["REFUND", "k", "1", "AGE", "x"], "ERR AGE must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["REFUND", "k", "1", "SINCE", "1s"], "ERR SINCE must be a Unix time in milliseconds"),
    (["REFUND", "k", "1", "AGE", "1", "SINCE", "1"], "ERR syntax error near 'SINCE'"),
    (["BLOCK", "k", "0"], "ERR BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["INFO", "missing"], "ERR no such key"),
    (["MALLOW", "2", "a", "10", "60", "5", "1", "10", "60", "5"],
     "ERR numkeys must be a positive integer that matches the keys given"),
    (["MALLOW", "2", "a", "a", *QUOTA, "1", *QUOTA, "1"], "ERR key named twice"),
    (["ALLOW", "text", *QUOTA], "WRONGTYPE Operation against a key holding the wrong kind of value"),
    (["ALLOW", "k", *QUOTA, "WARMUP", "0"], "ERR WARMUP must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["RECORD", "k", *QUOTA, "WARMUP", "3651d"], "ERR WARMUP must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["ALLOW", "k", *QUOTA, "WARMUP", "600s", "COLD", "1"], "ERR COLD must be an integer between 2 and 1000"),
    (["PEEK", "k", *QUOTA, "COLD", "1001", "WARMUP", "600s"], "ERR COLD must be an integer between 2 and 1000"),
    (["ALLOW", "k", *QUOTA, "WARMUP", "600s", "COLD", "2.5"], "ERR COLD must be an integer between 2 and 1000"),
    (["ALLOW", "k", *QUOTA, "COLD", "3"], "ERR syntax error near 'COLD'"),
    (["ALLOW", "k", *QUOTA, "WARMUP", "600s", "WARMUP", "600s"], "ERR syntax error near 'WARMUP'"),
    (["REFUND", "k", "1", "WARMUP", "600s"], "ERR syntax error near 'WARMUP'"),
    (["MALLOW", "2", "a", "b", *QUOTA, "1", "WARMUP", "0", *QUOTA, "1"],
     "ERR WARMUP must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (["MALLOW", "2", "a", "b", *QUOTA, "1", *QUOTA, "1", "WARMUP", "600s", "COLD", "x"],
     "ERR COLD must be an integer between 2 and 1000"),
    (["MALLOW", "1", "a", *QUOTA, "1", "COLD", "3"], "ERR syntax error near 'COLD'"),
    (["ALLOW", "k", "10", "60"], "ERR wrong number of arguments for 'swlimit.allow' command"),
]


def replies():
    """Sequences of commands, each for an empty server, with what is answered."""
    errors = [{"command": ["SET", "text", "x"], "reply": "OK"}]
    yield {"name": "errors", "steps": errors + [
        {"command": [f"SWLIMIT.{name}", *words], "reply": {"error": error}} for (name, *words), error in ERRORS]}
    yield {"name": "several limits", "steps": list(mallows())}
    for seed in range(4):
        workload = Workload(seed, geometry_changes=seed > 1)
        steps = [workload.next() for _ in range(250)]
        yield {"name": f"workload {seed}", "steps": [
            {"command": [str(word) for word in words], "reply": plain(words, reply)} for words, reply in steps
            if words[0] != "SWLIMIT.INFO"]}  # which tells bytes of memory, and what is blocked by the clock
    yield {"name": "limits that rise", "steps": list(rising())}
    yield {"name": "several limits that rise", "steps": list(rising_mallows())}
    for seed in range(4, 7):
        workload = RisingWorkload(seed, geometry_changes=seed > 5)
        steps = [workload.next() for _ in range(250)]
        yield {"name": f"workload {seed}", "steps": [
            {"command": [str(word) for word in words], "reply": plain(words, reply)} for words, reply in steps
            if words[0] != "SWLIMIT.INFO"]}


RISING = 9, 3_600_000, 60_000  # a window of an hour


def rising():
    """The life of a key: cold, in use, idle, given back, joined."""
    keys, now = {"k": model.Key(), "busy": model.Key()}, T

    def step(name, key="k", quota=RISING, warm_up=36_000_000, cold=3, **options):
        words = [f"{name}", key, quota[0], *(f"{ms}ms" for ms in quota[1:])]
        for option, value in options.items():
            words += [option.upper()] if value is True else [
                option.upper(), value if option == "cost" else f"{value}ms"]
        if warm_up:
            words += ["WARMUP", f"{warm_up}ms", *(["COLD", cold] if cold != 3 else [])]
            options |= {"warmup": warm_up, "cold": cold}
        reply = getattr(keys[key], name.lower())(*quota, now, **options)
        return {"command": [f"SWLIMIT.{words[0]}", *map(str, words[1:]), "AT", str(now)], "reply": reply}

    def other(name, key, *words, **options):
        reply = getattr(keys[key], name.lower())(*words, now=now, **options)
        spelled = [option for name, value in options.items() for option in (
            [name.upper()] if value is True else [name.upper(), f"{value}ms"])]
        unit = "ms" if name == "BLOCK" else ""
        return {"command": [f"SWLIMIT.{name}", key, *(f"{word}{unit}" for word in words), *spelled, "AT", str(now)],
                "reply": reply}

    yield step("PEEK", cost=9)
    yield step("PEEK", cost=10)  # never
    yield step("PEEK", cost=9, partial=True)
    yield step("PEEK", quota=(0, *RISING[1:]))
    yield step("PEEK", quota=(1, *RISING[1:]), cold=1_000)
    yield step("PEEK", quota=(MAX, *RISING[1:]), cold=1_000)
    yield step("ALLOW", cost=5)  # dear, and the first
    yield step("ALLOW")
    yield step("ALLOW", warm_up=None)  # by the whole limit
    yield step("RECORD", cost=2)
    for cost in (1, 4, 9):
        for options in ({}, {"partial": True}, {"strict": True}):
            denial = step("ALLOW", cost=cost, **options)
            yield denial
            now += denial["reply"][3] - 1
            yield step("PEEK", cost=cost, **options)
            now += 1
            yield step("ALLOW", cost=cost, **options)
    for _ in range(15):
        now += 2_400_000
        yield step("ALLOW", cost=4)
        yield step("ALLOW", partial=True, cost=9)
    now += 2_400_000
    yield step("PEEK", quota=(100, *RISING[1:]))
    yield step("PEEK", quota=(100, *RISING[1:]), warm_up=360_000_000, cold=10)  # another one, of the same key
    yield step("PEEK", quota=(100, 1_800_000, 300_000))
    now -= 7_200_000  # the clock is set back
    yield step("PEEK", quota=(100, *RISING[1:]))
    yield step("ALLOW", quota=(100, *RISING[1:]), block=7_200_000, cost=99)
    now += 7_200_000 + 3_600_000 + 120_000
    yield step("PEEK", cost=5)  # blocked no more, idle, and in use for a window still
    now += 7_200_000
    yield step("PEEK", cost=5)
    yield step("RECORD", age=1_800_000, cost=2)
    yield step("PEEK")
    yield other("REFUND", "k", 1)
    yield step("PEEK")
    yield other("REFUND", "k", 1)
    now += 60_000
    yield step("ALLOW", cost=2)
    yield step("PEEK")
    yield other("BLOCK", "k", 14_400_000)
    now += 7_200_000
    yield step("ALLOW", cost=5)  # its units have slid out, and it is in use
    now += 120_000
    yield step("ALLOW", cost=5)  # no longer
    yield step("RECORD", cost=5)
    yield other("UNBLOCK", "k")
    yield step("PEEK", cost=4)
    yield step("ALLOW", "busy", warm_up=None, cost=5)
    for _ in range(3):
        now += 1_200_000
        yield step("ALLOW", "busy", cost=2)  # joins: the whole limit
    now += 3_720_000
    yield step("ALLOW", "busy", cost=2)  # from the next idleness on
    yield step("ALLOW", "busy", cost=2)
    for idle in 3_720_000, 7_320_000:
        now += idle
        yield step("ALLOW", "busy", warm_up=None, cost=2)
        yield step("ALLOW", "busy", cost=2)


def rising_mallows():
    """A key with WARMUP, and one without, and one with another."""
    draw, now, keys = random.Random(3), T, {"user": model.Key(), "team": model.Key(), "all": model.Key()}
    rises = {"user": {"warmup": 36_000_000}, "team": {}, "all": {"warmup": 7_200_000, "cold": 10}}
    for _ in range(80):
        now += draw.choice([0, 1_000, 300_000, 1_200_000, 8_000_000])
        limits = [(name, *quota, draw.randint(1, 4)) for name, quota in
                  {"user": (8, 3_600_000, 60_000), "team": (20, 14_400_000, 3_600_000),
                   "all": (12, 3_600_000, 900_000)}.items()]
        asked = [(keys[name], quota, cost, rises[name]) for name, *quota, cost in limits]
        decisions = [key.peek(*quota, now, cost, **rise) for key, quota, cost, rise in asked]
        if granted := all(decision[0] for decision in decisions):
            decisions = [key.allow(*quota, now, cost, **rise) for key, quota, cost, rise in asked]
        spelled = [(name, limit, f"{window}ms", f"{resolution}ms", cost, *spelled_rise(**rises[name]))
                   for name, limit, window, resolution, cost in limits]
        yield {"command": [str(word) for word in mallow(*spelled, options=("AT", now))],
               "reply": [int(granted), *decisions]}


def holds():
    """The same of holds, budgets, and decisions of everything."""
    return of_holding({
        "holds alone": (HoldsAlone, 0), "holds 0": (HoldingWorkload, 0), "holds 1": (HoldingWorkload, 1),
        "holds and rates that rise": (RisingAdmissions, 2)})


def budgets():
    """The same without holds."""
    return of_holding({"budgets alone": (BudgetsAlone, 0), "budgets 3": (BudgetWorkload, 3)})


class BudgetWorkload(HoldingWorkload):
    keys_of = ["budget"] * 3 + ["rate"] * 3
    often = {"budget": 4, "refund": 2, "admit": 4}


class BudgetsAlone(HoldingWorkload):
    keys_of = ["budget"] * 3
    often = {"budget": 4, "refund": 2}


class HoldsAlone(HoldingWorkload):
    keys_of = ["hold"] * 5
    often = {"hold": 6, "release": 3, "renew": 2, "holders": 2}


def of_holding(sequences):
    for name, (kind, seed) in sequences.items():
        workload = kind(seed)
        steps = [workload.next() for _ in range(200)]
        yield {"name": name, "steps": [
            {"command": [str(word) for word in words],
             "reply": {"error": f"ERR {reply}"} if isinstance(reply, Refused) else reply} for words, reply in steps]}


def plain(words, reply):
    """A reply as clients see it."""
    if isinstance(reply, str):
        return {"error": reply}
    return reply if words[0] in ("SWLIMIT.ALLOW", "SWLIMIT.PEEK", "SWLIMIT.RECORD") else reply[0]


def mallows():
    draw, now, keys = random.Random(2), T, {"user": model.Key(), "team": model.Key()}
    for _ in range(60):
        now += draw.choice([0, 1_000, 300_000, 1_200_000])
        limits = [(name, *quota, draw.randint(1, 4)) for name, quota in
                  {"user": (8, 3_600_000, 60_000), "team": (20, 14_400_000, 3_600_000)}.items()]
        asked = [(keys[name], quota, cost) for name, *quota, cost in limits]
        decisions = [key.peek(*quota, now, cost) for key, quota, cost in asked]
        if granted := all(decision[0] for decision in decisions):
            decisions = [key.allow(*quota, now, cost) for key, quota, cost in asked]
        spelled = [(name, limit, f"{window}ms", f"{resolution}ms", cost)
                   for name, limit, window, resolution, cost in limits]
        yield {"command": [str(word) for word in mallow(*spelled, options=("AT", now))],
               "reply": [int(granted), *decisions]}


OPTIONS = {
    "mode": "cached", "on_failure": "local", "local_share": 0.1, "lease_share": 0.1, "sync_interval": 100,
    "timeout": 50, "max_keys": 100_000, "max_waiting": 10, "max_untracked_age": 100, "prefix": "",
}
BREAKER = {"failures": 3, "silent_timeouts": 3, "first_probe": 100, "last_probe": 500, "jitter": 0.2,
           "probe_timeout": 500}
NUMBERS = {
    "poll": 100, "silence": 1_000, "connect": 1_000, "late": 10_000, "max_unanswered": 1_000,
    "sentinel_interval": 1_000, "loop_turns": 3, "script_tries": 5, "script_subintervals": 4_096, "look_from": 20,
    "look_round_trips": 4, "look_denials": 4, "closing": 1_500, "closing_round_trips": 6, "max_kept": 100_000,
    "hold_ttl": 30_000, "min_hold_ttl": 3_000, "max_hold_wait": 3_600_000, "min_hold_poll": 20, "max_hold_poll": 60,
    "max_hold_id": 128, "ids_per_renewal": 1_000, "renewals_per_ttl": 3, "retries_per_ttl": 10, "drift": 1_000,
    "max_admitted": 64, "admission_poll": 100, "admission_jitter": 5, "reservation_ttl": 15_000,
    "hold_retry_after": 1_000, "max_limit": MAX, "max_window": MAX_WINDOW, "max_subintervals": MAX_SUBINTERVALS,
}
WINDOWS = [*range(1, 40), 59, 60, 97, 100, 144, 250, 500, 1_000, 1_001, 1_500, 4_093, 4_099, 8_186, 8_198, 9_999,
           10_000, 30_000, 60_000, 90_000, 3_600_000, 16_769_023, 16_777_216, 86_400_000, 86_400_001, 604_800_000,
           2_592_000_000, MAX_WINDOW]
LIMITS = [0, 1, 2, 3, 9, 10, 11, 99, 100, 101, 1_000_000, MAX - 1, MAX]
RESERVATIONS = {"user": "{user}:reserved", "app:{user}:tokens": "app:{user}:tokens:reserved", "{}a": "{{}a}:reserved",
                "a{}b{c}": "{a{}b{c}}:reserved", "{a": "{{a}:reserved", "}{a}": "}{a}:reserved",
                "\u00fc": "{\u00fc}:reserved", "a}b": "{a}b}:reserved"}
CROSSING = "CROSSSLOT Keys in request don't hash to the same slot"
REFUSALS = {CROSSING: f"{CROSSING}: give the keys of one decision the same hash tag, such as {{user:1}}; a key with a "
            "brace needs one, too"}
SHORT, WRONG = "warm_up must be at least ten times the window", "cold must be an integer between 2 and 1000"
WARM_UPS = [
    (1_000, None, None, None), (1_000, 10_000, None, None), (1_000, 9_999, None, SHORT), (60_000, 60_000, 3, SHORT),
    (1, 10, 1_000, None), (1_000, 10_000, 2, None), (1_000, 10_000, 1, WRONG), (1_000, 10_000, 1_001, WRONG),
    (1_000, 10_000, 0, WRONG), (1_000, 10_000, -3, WRONG), (1_000, 10_000, 2.5, WRONG),
    (1_000, None, 3, "cold needs warm_up")]
SHARES = [0.000001, 0.01, 0.05, 0.1, 0.29, 0.333333, 0.5, 0.57, 0.999999, 1]


LOOKS = ["sssSS", "sccSS", "scsS", "sss-s", "scc-s-ss", "ccccSS", "cccsssS", "sssS-S-sss-s", "sccc-Sccc-Sc-s"]


def looks():
    """Denials by the server (S where a look at the key pays), and known ones (c); a dash: one could be granted."""
    for denials in LOOKS:
        steps, at = [], 0
        for denial in denials:
            at += 60_000 if denial == "-" else 1
            if denial != "-":
                steps.append({"at": at, "pays": None if denial == "c" else denial == "S"})
        yield {"retry_after": 30_000, "denials": steps}


PARTS = [("allow", 100), ("deny", 100), ("local", 100), ("local", 10), ("error", 100)]
"""A policy and a limit each; with a tenth of the limit, only one of the local parts has room for two units."""


def failures(cost=2):
    """What several parts that are decided at once come to while the server is unavailable, each by its own policy."""
    for parts in product(PARTS, repeat=2):
        here = [{"allow": cost, "deny": 0, "local": limit // 10, "error": 0}[policy] for policy, limit in parts]
        granted = all(units >= cost for units in here)
        raises = any(policy == "error" for policy, _ in parts)
        yield {"parts": [{"on_failure": policy, "limit": limit, "cost": cost} for policy, limit in parts],
               "outcome": "error" if raises else "granted" if granted else "denied",
               "left": [units - cost * (granted and not raises) if policy == "local" else None
                        for units, (policy, _) in zip(here, parts)]}


def defaults():
    """What clients and swlimitd do unless they are configured otherwise, and how they round."""
    waits = [0, 1, 2, 3, 10, 100, 999, 1_000, 60_000, 3_600_000, MAX_WINDOW]
    times = [0, 1, 1_000, 1_999, 2_000, 2_001, 9_999, 10_000, 10_010, 20_000, 49_990, 50_000, 50_010, 60_000, 1_000_000]
    return {
        "options": OPTIONS,
        "breaker": BREAKER,
        "numbers": NUMBERS,
        "resolutions": [{"window": window, "resolution": default_resolution(window)} for window in WINDOWS],
        "shares": [{"limit": limit, "share": share, "units": math.ceil(limit * Fraction(str(share)))}
                   for limit in LIMITS for share in SHARES],
        "denials": [{"retry_after": ms, "denied_for_us": max(0, 1_000 * ms - 1_000 - ms)} for ms in waits],
        "looks": list(looks()),
        "reservations": [{"key": key, "name": name, "one_slot": key_slot(key.encode()) == key_slot(name.encode())}
                         for key, name in RESERVATIONS.items()],
        "refusals": [{"reply": reply, "error": error} for reply, error in REFUSALS.items()],
        "failures": list(failures()),
        "warm_ups": [{"window": window, "warm_up": warm_up, "cold": cold, "error": error}
                     for window, warm_up, cold, error in WARM_UPS],
        "deadlines": [{"left_us": left, "wait_us": longest_wait(left)} for left in times],
    }


def default_resolution(window):
    """Of all divisors of the window the largest that fits; the window where none does."""
    small = [number for number in range(1, math.isqrt(window) + 1) if window % number == 0]
    divisors = {*small, *(window // number for number in small)}
    return max((one for one in divisors if 12 * one <= window <= 4096 * one), default=window)


def longest_wait(left):
    """How long a caller's deadline in so many microseconds lets a request wait."""
    return 0 if left < 2_000 else left - sorted([1_000, left // 10, 5_000])[1]


def text(cases):
    """As JSON, one case a line; several parts as one object."""
    if isinstance(cases, dict):
        parts = (f"{json.dumps(name)}: {json.dumps(part) if isinstance(part, dict) else text(part).rstrip()}"
                 for name, part in cases.items())
        return "{\n" + ",\n".join(parts) + "\n}\n"
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


def methods():
    """Which requests' methods a rule matches that names some. GET matches HEAD: its handler often answers both."""
    sent = ["GET", "get", "HEAD", "hEaD", "POST", "post", "PoSt", "PUT", "DELETE", "GETS", "", "p\u00f6st"]
    for named in (["POST"], ["post"], ["GET"], ["get", "POST"], ["HEAD"], ["PUT", "delete"]):
        for exact in (False, True):
            capitals = {method.upper() for method in named}
            also = {"HEAD"} if "GET" in capitals and not exact else set()
            matching = [method for method in sent if (method if exact else method.upper()) in capitals | also]
            yield {"methods": named, "exact": exact, "matching": matching,
                   "other": [method for method in sent if method not in matching]}


# What ends a request without a reply, in the words of no library.
ENDS = {"connection refused": "refused", "socket file missing": "refused", "host unreachable": "refused",
        "name not resolved": "unresolved", "certificate refused": "certificate", "TLS handshake failed": "certificate",
        "no connection in time": "no_answer", "no reply in time": "no_answer", "connection silent": "no_answer",
        "connection closed": "disconnected", "connection reset": "disconnected", "broken pipe": "disconnected",
        "reply late": "slow", "reply not understood": "bad_reply"}
CODES = ["READONLY", "OOM", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "BUSY", "FAILOVER"]
ERROR_REPLIES = {
    "no password": ("NOAUTH Authentication required.", "auth"),
    "HELLO without a password": ("NOAUTH HELLO must be called with the client already authenticated", "auth"),
    "wrong password": ("WRONGPASS invalid username-password pair or user is disabled.", "auth"),
    "password before Redis 6": ("ERR invalid password", "auth"),
    "password that nobody set": ("ERR AUTH <password> called without any password configured for the default user. "
                                 "Are you sure your configuration is correct?", "auth"),
    "too many clients": ("ERR max number of clients reached", "too_many_clients"),
    "too many clients and cluster links": ("ERR max number of clients + cluster connections reached",
                                           "too_many_clients"),
    "no module": ("ERR unknown command 'SWLIMIT.ALLOW', with args beginning with: 'k' ", "module_missing"),
    "redirected while no cluster's client": ("MOVED 7629 127.0.0.1:7001", "cluster"),
    "asked elsewhere while no cluster's client": ("ASK 7629 127.0.0.1:7001", "cluster"),
    "text that names TLS": ("BUSY the script tls-certificate timed out", "BUSY"),
    "an error that is no failure": ("WRONGTYPE Operation against a key holding the wrong kind of value", None),
    "a missing right": ("NOPERM this user has no permissions to run the 'swlimit.allow' command", None),
    "a wrong argument": ("ERR limit must be an integer between 0 and 9007199254740991", None),
    "a wait that ended": ("UNBLOCKED client unblocked via CLIENT UNBLOCK", None),
    "any other code": ("NOVELTY of another server", "other"),
}


def reasons():
    """Why a server counts as unavailable, by what arises; null: the caller's error, and no failure."""
    replies = {f"code {code}": (f"{code} in the server's words", code) for code in CODES} | ERROR_REPLIES
    return {"words": sorted({*ENDS.values(), *CODES, *filter(None, (word for _, word in ERROR_REPLIES.values()))}),
            "ends": [{"name": name, "reason": word} for name, word in ENDS.items()],
            "replies": [{"name": name, "reply": reply, "reason": word} for name, (reply, word) in replies.items()]}


FILES = {"durations.json": durations, "methods.json": methods, "defaults.json": defaults, "decisions.json": decisions,
         "replies.json": replies, "holds.json": holds, "budgets.json": budgets, "commands.json": commands,
         "rates.json": rates, "reasons.json": reasons, "adaptive.json": adaptive}

if __name__ == "__main__":
    for name, cases in FILES.items():
        (HERE / name).write_text(text(cases()))
