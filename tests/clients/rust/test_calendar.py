"""Periods of the calendar, in all time zones, beside Python's own time zones."""

import bisect
import datetime
import functools
import random
import subprocess
from calendar import monthrange
from zoneinfo import ZoneInfo, available_timezones

import pytest

from support.crates import built

# Fifty years either way. Before 1972 some zones had offsets with seconds.
FIRST, LAST = 1976, 2076
UTC = datetime.UTC
ZONES = sorted(available_timezones() - {"localtime"})
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
KINDS = [("hour", "-"), ("day", "-"), ("week", "-"), ("week", "thursday"), ("month", "-"), ("month", "15"),
         ("month", "31"), ("year", "-"), ("year", "02-29")]


@pytest.fixture(scope="session")
def program():
    return built("swlimit-client", "--example", "periods")


def first_days(period, anchor, year):
    """The days of a year on which a period begins."""
    if period == "year":
        month, day = (1, 1) if anchor == "-" else map(int, anchor.split("-"))
        return [datetime.date(year, month, min(day, monthrange(year, month)[1]))]
    if period == "month":
        day = 1 if anchor == "-" else int(anchor)
        return [datetime.date(year, month, min(day, monthrange(year, month)[1])) for month in range(1, 13)]
    length = 366 if monthrange(year, 2)[1] == 29 else 365
    days = [datetime.date(year, 1, 1) + datetime.timedelta(days) for days in range(length)]
    weekday = DAYS.index("monday" if anchor == "-" else anchor)
    return [day for day in days if period == "day" or day.weekday() == weekday]


@functools.cache
def days_around(period, anchor, year):
    return [day for around in range(year - 3, year + 4) for day in first_days(period, anchor, around)]


def first_instant(day, zone):
    """The first instant at which the zone's clock has come to a day, found by trying instants."""
    def has_come(instant):
        return datetime.datetime.fromtimestamp(instant, zone).date() >= day

    late = int(datetime.datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) + 30 * 3600
    early = late - 60 * 3600
    # Where the clock is set back past midnight, the day comes twice: the first time counts.
    step = 900
    found = next(instant for instant in range(early, late + step, step) if has_come(instant))
    low, high = found - step, found
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if has_come(middle) else (middle, high)
    return high


def quick_first_instant(day, zone):
    """The same, found by the offset where that is the only one of the days around."""
    midnight = datetime.datetime(day.year, day.month, day.day)
    around = {(midnight + datetime.timedelta(hours=hours)).replace(tzinfo=zone).utcoffset() for hours in (-30, 0, 30)}
    if len(around) == 1:
        return int((midnight - around.pop()).replace(tzinfo=UTC).timestamp())
    return first_instant(day, zone)


def hours_around(instant, zone):
    """The nearest instants at which the zone's clock shows a full hour, at or before an instant, and after it."""
    def is_full(second):
        local = datetime.datetime.fromtimestamp(second, zone)
        return local.minute == local.second == 0

    # Kiritimati was behind by 10 hours and 40 minutes until 1979, Monrovia did not count in full minutes before 1972.
    step = 300
    near = instant - instant % step
    return (next(second for second in range(near, near - 3 * 3600, -step) if is_full(second)),
            next(second for second in range(near + step, near + 4 * 3600, step) if is_full(second)))


def changes(zone, year):
    """Instants of a year around which a zone's clock was set, to the hour."""
    start = int(datetime.datetime(year, 1, 1, tzinfo=UTC).timestamp())
    offsets = [datetime.datetime.fromtimestamp(start + day * 86_400, zone).utcoffset() for day in range(366)]
    for day in range(365):
        if offsets[day] != offsets[day + 1]:
            for hour in range(24):
                instants = [start + day * 86_400 + (hour + more) * 3600 for more in (0, 1)]
                before, after = [datetime.datetime.fromtimestamp(instant, zone).utcoffset() for instant in instants]
                if before != after:
                    yield instants[0]


def expected(period, anchor, instant, zone):
    if period == "hour":
        return hours_around(instant, zone)
    near = datetime.datetime.fromtimestamp(instant, zone).date()
    days = days_around(period, anchor, near.year)
    at = bisect.bisect(days, near)
    edges = [quick_first_instant(day, zone) for day in days[at - 3:at + 3]]
    return max(edge for edge in edges if edge <= instant), min(edge for edge in edges if edge > instant)


def compare(program, zones, years, rng):
    asked = []
    for name in zones:
        zone = ZoneInfo(name)
        instants = []
        for year in years:
            start = int(datetime.datetime(year, 1, 1, tzinfo=UTC).timestamp())
            instants += [start + rng.randrange(365 * 86_400), start + rng.choice([-1, 0, 1])]
            for change in changes(zone, year):
                instants += [change + rng.randrange(-7200, 10_800), change + rng.randrange(-90_000, 90_000)]
        asked += [(period, name, anchor, instants) for period, anchor in KINDS]
    lines = [" ".join([period, name, anchor, *map(str, instants)]) for period, name, anchor, instants in asked]
    told = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    compared = 0
    for line, (period, name, anchor, instants) in zip(told.splitlines(), asked, strict=True):
        edges = list(map(int, line.split()))
        for at, instant in enumerate(instants):
            found = tuple(edges[2 * at:2 * at + 2])
            assert found == expected(period, anchor, instant, ZoneInfo(name)), (period, name, anchor, instant)
            compared += 1
    return compared


ODD = ["Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "Pacific/Apia", "Australia/Lord_Howe",
       "America/Havana", "Asia/Gaza", "Antarctica/Troll", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kwajalein"]


def test_odd_zones(program):
    """Midnights that do not exist, or come twice; a day that was left out; half an hour of summer time."""
    assert compare(program, ODD, range(1986, 2036, 5), random.Random(1)) > 1000


def test_some_of_all_zones(program):
    rng = random.Random(3)
    zones = rng.sample(ZONES, 40)
    assert compare(program, zones, [rng.randrange(FIRST, LAST)], rng) >= 40 * len(KINDS) * 2


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_all_zones(program, part):
    """Every other year; which, the part says."""
    assert compare(program, ZONES[part::4], range(FIRST + part // 2, LAST, 2), random.Random(part)) > 50_000
