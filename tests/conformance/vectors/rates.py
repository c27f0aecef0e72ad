"""Rates as text: what each means by the parts that it is made of, and why others are refused."""

from itertools import product

from redis.crc import key_slot

from support.bounds import MAX, MAX_WINDOW

UNITS = {"ms": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000, "m": 60_000, "min": 60_000,
         "minute": 60_000, "minutes": 60_000, "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000, "d": 86_400_000,
         "day": 86_400_000, "days": 86_400_000}
SPACES = " \t\r\n"


def rates():
    """The parts of rates.json."""
    return {"texts": [*good(), *refused()], "single": list(single()), "names": list(names()),
            "policies": list(policies())}


def good():
    for unit, ms in UNITS.items():
        for text, length in {f"100/{unit}": ms, f"7 /10{unit}": 10 * ms,
                             f"5 / 2 {unit}".upper(): 2 * ms, f"0005/\t\r\n030{unit.capitalize()} ": 30 * ms}.items():
            yield {"text": text, "rates": [[int(text.partition("/")[0]), length]]}
    yield {"text": "0/minute", "rates": [[0, 60_000]]}
    yield {"text": f"{MAX}/s", "rates": [[MAX, 1_000]]}
    yield {"text": f"{'0' * 40}{MAX}/{'0' * 40}1s", "rates": [[MAX, 1_000]]}
    for text in (f"1/{MAX_WINDOW}ms", "1/3650d", "1/87600 hours"):
        yield {"text": text, "rates": [[1, MAX_WINDOW]]}
    for space, separator in product(["", " ", SPACES], ";,"):
        yield {"text": f"{space}100/hour{space}{separator}{space}5/second{space}",
               "rates": [[100, 3_600_000], [5, 1_000]]}
    yield {"text": "1/s;2 / m, 3/30 Min;4/1002 ms,5/1001ms",
           "rates": [[1, 1_000], [2, 60_000], [3, 1_800_000], [4, 1_002], [5, 1_001]]}
    yield {"text": "5/second; 5/hour", "rates": [[5, 1_000], [5, 3_600_000]]}


def refused():
    """First what is wrong with one rate, from left to right; equal windows last."""
    for text in ("", " ", SPACES):
        yield {"text": text, "error": "no rate: write one such as 100/minute"}
    for text in (";", "100/minute;", ",100/minute", "100/hour;;5/second", " 100/hour ; , 5/second", "abc;"):
        yield {"text": text,
               "error": f"'{text.strip(SPACES)}' has a separator without a rate: write such as 100/hour; 5/second"}
    for text in ("abc", "-5/minute", "+5/minute", "1.5/minute", "1e3/minute", "1_000/minute", "0x10/s", "/minute",
                 "5 per minute", "5per 10s", "100/hour|5/second", "minute", "5 minute", "5m", "5 a minute",
                 "5//minute", "5/per minute",
                 "5 0/minute", "5/1 0s", "5/-1s", "5/1.5h", "5/minute/hour",
                 "5/minute 5/hour",
                 "5/minute.", "5/s5", "5/1h30m", "5/min ute", "5:minute", "\u0661/minute", "5/\uff15s", "5/\u017f",
                 "5/\u00b5s", "5/m\u0131n", "\u00a05/minute", "5/\u2003minute", "5/minute\u200b", "5\u2044minute",
                 "5\v/minute", "5/minute\f", "5/minute\0", "'5/minute'", "100/hour AND 5/second", "5r/minute", "r/s",
                 "5 requests/minute"):
        yield {"text": text, "error": f"'{text}' is no rate: write one such as 100/minute or 5/10s"}
    yield {"text": "5/second; abc ;1/year", "error": "'abc' is no rate: write one such as 100/minute or 5/10s"}
    for text in ("5", "5/", "5 /", "5/60", " 5 / 60 ", "0/0", f"{MAX + 1}/60"):
        yield {"text": text, "error": f"'{text.strip()}' has no unit: write one such as 100/minute or 5/10s"}
    for text in ("10r/s", "10R/S", "0 r / m", f"{MAX + 1}r/m"):
        yield {"text": text, "error": f"'{text}' is written as for nginx, where 10r/s admits one request per 100 ms: "
                                      "write that as 1/100ms, or ten at once as 10/second"}
    for unit in ("month", "months", "year", "years"):
        for text in (f"100/{unit}", f"100 / 0 {unit.upper()}", f"{MAX + 1}/9{unit}"):
            yield {"text": text, "error": f"'{text}' has no fixed length: write days, such as 100/30 days, or use a "
                                          f"budget for a calendar {unit.rstrip('s')}"}
    for unit in ("week", "w", "hr", "mins", "secs", "msec", "us", "person", "mss", "per", "ute", "y", "mo"):
        for text in (f"100/{unit}", f"{MAX + 1} / 0{unit}"):
            yield {"text": text, "error": f"'{text}' has an unknown unit: write ms, second, minute, hour or day"}
    for text in (f"{MAX + 1}/s", f"{2**64 + 1}/0s", f"{'9' * 400}/4000d"):
        yield {"text": text, "error": f"'{text}' has a limit above {MAX}: write at most that"}
    for text in ("5/0s", "5/000 days", "0/0ms"):
        yield {"text": text, "error": f"'{text}' has no window: write at least 1 ms"}
    for text in ("5/3651d", f"5/{MAX_WINDOW + 1}ms", f"5/{2**64 + 1}ms", f"5/{MAX}d", f"0/{'9' * 400}s"):
        yield {"text": text, "error": f"'{text}' has a window above 3650 days: write at most that"}
    for text, first, second in (("100/minute; 100/minute", "100/minute", "100/minute"),
                                ("100/60s;1/s,1/min", "100/60s", "1/min"),
                                ("1/s, 1/m, 2/m, 2/s", "1/m", "2/m"), ("1/d,2/24h,3/24h", "1/d", "2/24h")):
        yield {"text": text, "error": f"'{first}' and '{second}' have the same window: keep the lower limit"}
    yield {"text": "1/s, 2/s, 3/w", "error": "'3/w' has an unknown unit: write ms, second, minute, hour or day"}


def single():
    """Where exactly one rate is taken."""
    yield {"text": " 100/minute ", "rate": [100, 60_000]}
    for text, count in ((" 100/hour; 5/second", 2), ("1/s,2/m,3/h", 3)):
        yield {"text": text, "error": f"'{text.strip()}' has {count} rates, and a limiter takes one: use Limits"}
    yield {"text": "1/s,2/s", "error": "'1/s' and '2/s' have the same window: keep the lower limit"}
    yield {"text": "", "error": "no rate: write one such as 100/minute"}


def names():
    """The key of each rate: all of one key are in one slot."""
    for prefix, key in (("", "user"), ("app:", "user"), ("", "a{b}c"), ("{app}:", "user"), ("", "{}"), ("", "a{}b{c}"),
                        ("", "{a"), ("", "a}"), ("", "a}b"), ("", "}{a}"), ("a{", "b}c"), ("a{", "b"),
                        ("", "\u00fc"), ("p:", "{\u00fc}"), ("", "}a"), ("p:", "}a"), ("p{", "}a"), ("{}", "a")):
        whole = prefix + key
        _, _, behind = whole.partition("{")
        tag, closed, _ = behind.partition("}")
        name = f"{whole}:" if tag and closed else f"{prefix}{{{key}}}:"
        shown = [(window_ms, f"{name}{window_ms}") for window_ms in (1_000, MAX_WINDOW)]
        one_slot = len({key_slot(name.encode()) for _, name in shown}) == 1
        for window_ms, name in shown:
            yield {"prefix": prefix, "key": key, "window_ms": window_ms, "name": name, "one_slot": one_slot}
    for prefix in ("", "app:"):
        yield {"prefix": prefix, "key": "", "window_ms": 1_000, "error": "key must not be empty"}


def policies():
    """The names of policies in one header: those that are alike end in the window, then in a number."""
    second, minute, hour, day = 1_000, 60_000, 3_600_000, 86_400_000
    for asked, shown in (([("default", hour)], ["default"]), ([("user", hour), ("ip", hour)], ["user", "ip"]),
                         ([("default", hour), ("default", 10 * second)], ["default-1h", "default-10s"]),
                         ([("a", 7 * day), ("b", day), ("a", 1_500)], ["a-7d", "b", "a-1500ms"]),
                         ([("a", 90 * second)] * 3 + [("a", 90 * minute)], ["a-90s", "a-90s-2", "a-90s-3", "a-90m"]),
                         ([("a-1h-2", hour), ("a", hour), ("a", hour)], ["a-1h-2", "a-1h", "a-1h-3"])):
        yield {"policies": asked, "shown": shown}
