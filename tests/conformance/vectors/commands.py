"""Every command as clients send it, and what takes it back: commands.json, which README.md describes.

This follows the description of the commands alone. Of the clients' code nothing is used.
"""

import struct
from itertools import product

from support.bounds import MAX, MAX_WINDOW

NOW = 1_760_054_400_000  # a day begins
LATER = 2_000_000_000_000  # when a budget's period ends
NEEDING_THE_MODULE = "ACQUIRE", "TOP"
FIRST = "ALLOW", "PEEK", "RECORD", "REFUND", "INFO", "MALLOW"
MAX_SCRIPT_SUBINTERVALS = 4096
RATE = {"limit": 10, "window": 60_000, "resolution": 5_000}
OTHER_RATE = {"limit": 1_000, "window": 3_600_000, "resolution": 60_000}
BOTH = False, True
ID = b"\x00\x9f\x92\x96mine\r\n"  # no UTF-8


def commands():
    """The entries, in the order of the commands' documentation."""
    entries = [*rates(), *several_rates(), *holds(), *budgets(), *admissions(), entry("TOP", {"count": 10}, [10])]
    said = set()
    for one in entries:
        if one["script"] and one["command"] not in said:
            said.add(one["command"])
            one["script"] |= dated(one)
        yield one


def entry(name, fields, words, undo=(), counted=None):
    """`words`: those after the keys; `counted`: the keys, where their number comes before them."""
    keys = counted or ([fields["key"]] if "key" in fields else [])
    numkeys = [len(counted)] if counted else []
    return {"command": name, "fields": {field: text(value) for field, value in fields.items()},
            "words": spelled(f"SWLIMIT.{name}", *numkeys, *keys, *words), "keys": spelled(*keys),
            "since": "0.1.0" if name in FIRST and not rises(fields) else "0.2.0",
            "reads": name in ("PEEK", "INFO", "HOLDERS", "TOP"),
            "script": script(name, fields, words), "undo": list(undo)}


def text(value):
    """Bytes as JSON has them."""
    if isinstance(value, list):
        return [text(one) for one in value]
    if isinstance(value, dict):
        return {field: text(one) for field, one in value.items()}
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def spelled(*words):
    return [text(word if isinstance(word, bytes) else str(word)) for word in words]


def ms(duration):
    return f"{duration}ms"


def quota(rate):
    return [rate["limit"], ms(rate["window"]), ms(rate["resolution"])]


def rises(fields):
    """Whether a limit of the command rises after idleness."""
    return any("warm_up" in one for one in (fields, *fields.get("members", ()), *fields.get("clauses", ())))


def rise(rate):
    """What follows a rate, or stands among the options."""
    if "warm_up" not in rate:
        return []
    return ["WARMUP", ms(rate["warm_up"]), *(["COLD", rate["cold"]] if rate["cold"] != 3 else [])]


def options(fields):
    """In the order of the commands' documentation."""
    yield from ["COST", fields["cost"]] if fields.get("cost", 1) != 1 else []
    yield from [name.upper() for name in ("partial", "strict", "force") if fields.get(name)]
    yield from ["WAIT", ms(fields["wait"])] if fields.get("wait") is not None else []
    yield from ["AGE", ms(fields["age"])] if fields.get("age") else []
    yield from rise(fields)
    yield from ["BLOCK", ms(fields["block"])] if fields.get("block") else []


def combined(**choices):
    return [dict(zip(choices, chosen)) for chosen in product(*choices.values())]


# What the script gets.


def script(name, fields, words):
    if name in NEEDING_THE_MODULE:
        return None
    if name in ("ALLOW", "PEEK") and not fields.get("block") and not rises(fields):
        subintervals = fields["window"] // fields["resolution"]
        flags = (name == "ALLOW") + 2 * fields["partial"] + 4 * fields["strict"]
        if subintervals <= MAX_SCRIPT_SUBINTERVALS:
            numbers = fields["limit"], fields["resolution"], subintervals, fields["cost"]
            return {"packed": struct.pack("<B4Q", flags, *numbers).hex()}
    if name == "MALLOW" and len(fields["members"]) > 1 and not rises(fields):
        flags = 1 + 4 * fields["strict"] + 8
        numbers = [number for one in fields["members"] for number in (
            one["limit"], one["resolution"], one["window"] // one["resolution"], one["cost"])]
        return {"packed": struct.pack(f"<B{len(numbers)}Q", flags, *numbers).hex()}
    waits = fields.get("wait") is not None
    return {"words": spelled(name, *(words[:-2] if waits else words))}


def dated(entry):
    """What the script gets whose caller's clock decides."""
    packed = entry["script"].get("packed")
    if packed:
        return {"dated": packed + struct.pack("<Q", NOW).hex()}
    return {"dated": [*entry["script"]["words"], "AT", str(NOW)]} if entry["command"] != "INFO" else {}


# What takes a command back. Its neighbours have two units of each key.


def case(reply, *commands, **more):
    return {"reply": reply, **more, "commands": [spelled(*words) for words in commands]}


ERROR = case({"error": "OOM command not allowed when used memory > 'maxmemory'."})


def denial(part):
    """What a rate or a budget replies of which nothing is left."""
    return [0, part["limit"], 0, -1 if part["cost"] > part["limit"] else 1_000, 60_000]


def grant(part, units=None, remaining=None):
    units = part["cost"] if units is None else units
    left = part["window"] + part["resolution"] if "window" in part else LATER - NOW
    return [units, part["limit"], part["limit"] - units - 2 if remaining is None else remaining, 0, left]


def refund(part, units, since=NOW):
    """Of a rate as of an instant before it was granted. Of a budget as of the last ms of its period, or as much earlier
    as that instant is before the grant."""
    return ["SWLIMIT.REFUND", part["key"], units, "SINCE", since + (0 if "window" in part else LATER - NOW - 1)]


def undone(part):
    """One rate or budget."""
    if part["cost"] <= part["limit"] - 2:
        yield case(grant(part), refund(part, part["cost"]), since=NOW)
    if part.get("partial") and part["cost"] > 1:
        yield case(grant(part, part["cost"] - 1, remaining=0), refund(part, part["cost"] - 1), since=NOW)
    if "until" in part:
        earliest = NOW - (LATER - NOW - 1)
        yield case(grant(part), refund(part, part["cost"], earliest), since=earliest)
    yield case(denial(part))
    yield ERROR
    yield case(None)


# The commands.

RISING = {"warm_up": 600_000, "cold": 3}
COLDER = {"warm_up": 315_360_000_000, "cold": 10}


def rates():
    asked = [{"key": "k"} | RATE | chosen for chosen in combined(cost=[1, 3], partial=BOTH, strict=BOTH)]
    edges = [asked[0] | edge for edge in (
        {"key": ""}, {"key": "t\u00eate\r\n"}, {"limit": 0}, {"limit": 2, "cost": 3},
        {"limit": MAX, "window": MAX_WINDOW, "resolution": 86_400_000, "cost": MAX - 3},
        {"window": 1, "resolution": 1}, {"window": 60_000, "resolution": 60_000}, {"window": 4_096, "resolution": 1},
        {"key": b"\xff\x00k"}, {"window": 4_097, "resolution": 1})]
    for fields in [one | {"block": block} for block in (0, 900_000) for one in asked + edges * (block == 0)]:
        yield entry("ALLOW", fields, [*quota(fields), *options(fields)], undone(fields))
    for chosen in combined(cost=[1, 3], partial=BOTH, block=[0, 900_000]):
        fields = {"key": "k"} | RATE | {"strict": chosen["partial"]} | chosen | (COLDER if chosen["block"] else RISING)
        yield entry("ALLOW", fields, [*quota(fields), *options(fields)], undone(fields))
    for fields in [*(asked[0] | one for one in (RISING, COLDER)), asked[-1] | COLDER]:
        yield entry("PEEK", fields, [*quota(fields), *options(fields)])
    for fields in asked + edges[-2:]:
        yield entry("PEEK", fields, [*quota(fields), *options(fields)])
    for chosen in combined(cost=[1, 3], strict=BOTH, age=[0, 250], block=[0, 900_000]):
        fields = {"key": "k"} | RATE | chosen
        yield entry("RECORD", fields, [*quota(fields), *options(fields)])
        if chosen["strict"] == bool(chosen["age"]):
            fields |= RISING if chosen["cost"] == 1 else COLDER
            yield entry("RECORD", fields, [*quota(fields), *options(fields)])
    for chosen in combined(timeout=[0, 1_500], cost=[1, 3], strict=BOTH):
        fields = {"key": "k"} | RATE | chosen
        yield entry("ACQUIRE", fields, [*quota(fields), ms(fields["timeout"]), *options(fields)], undone(fields))
    for rising in RISING, COLDER:
        fields = {"key": "k"} | RATE | {"timeout": 1_500, "cost": 3, "strict": True} | rising
        yield entry("ACQUIRE", fields, [*quota(fields), ms(fields["timeout"]), *options(fields)], undone(fields))
    for units, age, since in (1, None, None), (3, 0, None), (3, 1_150, None), (MAX, None, NOW):
        words = [*(["AGE", ms(age)] if age is not None else []), *(["SINCE", since] if since is not None else [])]
        yield entry("REFUND", {"key": "k", "units": units, "age": age, "since": since}, [units, *words])
    for nx in BOTH:
        yield entry("BLOCK", {"key": "k", "duration": 900_000, "nx": nx}, [ms(900_000), *(["NX"] if nx else [])])
    yield entry("UNBLOCK", {"key": "k"}, [])
    yield entry("INFO", {"key": "k"}, [])


def several_rates():
    every = [{"key": "{u}:1"} | RATE | {"cost": 3}, {"key": "{u}:2"} | OTHER_RATE | {"cost": 1},
             {"key": b"{u}:\xff"} | RATE | {"cost": 7}]
    some = [[every[0] | RISING], [every[0] | COLDER, every[1]], [every[0], every[1] | RISING, every[2] | COLDER]]
    for members, strict in product((every[:1], every[:2], every, *some), BOTH):
        words = [word for member in members for word in (*quota(member), member["cost"], *rise(member))]
        undo = [case([1, *map(grant, members)], *(refund(member, member["cost"]) for member in members), since=NOW),
                case([0, *map(denial, members)]), ERROR, case(None)]
        yield entry("MALLOW", {"members": members, "strict": strict}, [*words, *(["STRICT"] if strict else [])], undo,
                    [member["key"] for member in members])


def held(clause):
    """What a hold's grant replies."""
    return [clause["cost"], clause["limit"], clause["limit"] - clause["cost"] - 2, 0, clause["ttl"], NOW * 1_000 + 1]


def holds():
    for key, id in ("k", "mine"), (b"\xff\x00k", ID):
        for chosen in combined(cost=[1, 3], wait=[None, 0, 1_500], own_id=BOTH) if key == "k" else \
                [{"cost": 1, "wait": None, "own_id": True}]:
            fields = {"key": key, "limit": 10, "ttl": 30_000, "id": id} | chosen
            release = case(held(fields), ["SWLIMIT.RELEASE", key, id], repeat_for=30_000)
            undo = [release, case([0, 10, 0, 1_000, 0, 0]), ERROR, release | {"reply": None}]
            yield entry("HOLD", fields, [10, ms(30_000), id, *options(fields)], undo if fields["own_id"] else [])
    for ids in (["mine"], ["one", ID]):
        yield entry("RELEASE", {"key": "k", "ids": ids}, ids)
        yield entry("RENEW", {"key": "k", "ttl": 30_000, "ids": ids}, [ms(30_000), *ids])
    yield entry("HOLDERS", {"key": "k", "count": 100}, [100])


def budgets():
    for cost, option in product((1, 3), (None, "partial", "force")):
        fields = {"key": "k", "limit": 10, "until": LATER, "cost": cost,
                  "partial": option == "partial", "force": option == "force"}
        yield entry("BUDGET", fields, [10, LATER, *options(fields)], [] if fields["force"] else undone(fields))


def admissions():
    rate = {"kind": "RATE", "key": "{u}:rate"} | RATE | {"cost": 3}
    other = {"kind": "RATE", "key": b"{u}:\xff"} | OTHER_RATE | {"cost": 1}
    budget = {"kind": "BUDGET", "key": "{u}:budget", "limit": 10, "until": LATER, "cost": 3}
    hold = {"kind": "HOLD", "key": "{u}:hold", "limit": 10, "ttl": 30_000, "id": "mine", "cost": 1}
    own, chosen = hold | {"id": ID, "own_id": True}, hold | {"own_id": False}
    also_own, also_chosen = ({**one, "key": "{u}:also", "cost": 2} for one in (own, chosen))
    for clauses in ([budget], [own], [chosen], [own, budget], [chosen, budget], [own, also_own], [chosen, also_chosen]):
        yield admission(clauses, False)
    for clauses in ([rate], [rate, other], [rate, budget], [budget, rate], [rate, own], [other, own, budget],
                    [rate, chosen], [own, rate, also_own], [chosen, rate, also_chosen]):
        yield from (admission(clauses, strict) for strict in BOTH)
    for clauses in ([rate | RISING], [rate | COLDER, other], [rate | RISING, own], [other, own, rate | COLDER, budget],
                    [chosen, rate | RISING]):
        yield from (admission(clauses, strict) for strict in BOTH)
    for used in ([], [2], [0, MAX]):
        reserved = [{"key": clause["key"], "used": units} for clause, units in zip((rate, other), used)]
        keys = [hold["key"], *(one["key"] for one in reserved)]
        yield entry("SETTLE", {"key": hold["key"], "id": ID, "reserved": reserved}, [ID, *used], counted=keys)


def admission(clauses, strict):
    asked = {"RATE": lambda rate: quota(rate), "BUDGET": lambda budget: [budget["limit"], budget["until"]],
             "HOLD": lambda hold: [hold["limit"], ms(hold["ttl"]), hold["id"]]}
    words = [word for one in clauses for word in (one["kind"], *asked[one["kind"]](one), one["cost"], *rise(one))]
    return entry("ADMIT", {"clauses": clauses, "strict": strict}, [*words, *(["STRICT"] if strict else [])],
                 undone_together(clauses), [one["key"] for one in clauses])


def undone_together(clauses):
    """All that is granted at once; with a hold, by settling it, where its id was drawn for this command alone."""
    hold = next((one for one in clauses if one["kind"] == "HOLD"), None)
    others = [one for one in clauses if one is not hold]
    reply = [1, *(held(one) if one["kind"] == "HOLD" else grant(one) for one in clauses)]
    denied = case([0, *([0, 10, 0, 1_000, 0, 0] if one["kind"] == "HOLD" else denial(one) for one in clauses)])
    if hold is None:
        yield case(reply, *(refund(one, one["cost"]) for one in others), since=NOW)
        yield from (denied, ERROR, case(None))
    elif hold["own_id"]:
        keys = [one["key"] for one in (hold, *others)]
        settle = ["SWLIMIT.SETTLE", len(keys), *keys, hold["id"], *(0 for _ in others)]
        yield case(reply, settle, repeat_for=hold["ttl"])
        yield from (denied, ERROR, case(None, settle, repeat_for=hold["ttl"]))
