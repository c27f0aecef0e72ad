"""Periods of the calendar as Python's zoneinfo has them, in every time zone, of the last fifty years and the next."""

import json
import random
import zoneinfo
from bisect import bisect
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources

import pytest
import tzdata

from support import node

ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})
FIRST, LAST = date(1976, 1, 1), date(2076, 1, 1)
PERIODS = [{"period": "hour"}, {"period": "day"}, {"period": "week"}, {"period": "week", "anchor": "sunday"},
           {"period": "month"}, {"period": "month", "anchor": 15}, {"period": "month", "anchor": 31},
           {"period": "year"}, {"period": "year", "anchor": "04-06"}, {"period": "year", "anchor": "02-29"}]
MINUTE = timedelta(minutes=1)


@cache
def zone(name):
    """As in the release of the database that Node.js has, and not in the system's."""
    with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return zoneinfo.ZoneInfo.from_file(file, name)


def changes(name):
    """The instants at which the zone's clocks were or will be changed, by minutes, found by looking."""
    local, found = zone(name), []
    at, last = datetime(FIRST.year, 1, 1, tzinfo=UTC), datetime(LAST.year, 1, 1, tzinfo=UTC)
    while at < last:
        later = at + timedelta(days=5)
        if at.astimezone(local).utcoffset() != later.astimezone(local).utcoffset():
            early, late = at, later
            while late - early > MINUTE:
                middle = early + (late - early) / 2
                middle -= timedelta(seconds=middle.second, microseconds=middle.microsecond)
                same = middle.astimezone(local).utcoffset() == at.astimezone(local).utcoffset()
                early, late = (middle, late) if same else (early, middle)
            found.append(late)
        at = later
    return found


@cache
def begins(name, day):
    """The first instant at which clocks show midnight of a day or later: where it is not plain, walked by minutes."""
    local = zone(name)
    midnight = datetime(day.year, day.month, day.day)
    plain = midnight.replace(tzinfo=local).astimezone(UTC)
    around = [plain + timedelta(hours=hours) for hours in (-27, 27)]
    if len({at.astimezone(local).utcoffset() for at in [plain, *around]}) == 1:
        return plain
    at = around[0]
    while at.astimezone(local).replace(tzinfo=None) < midnight:
        at += MINUTE
    return at


@cache
def starts(period, anchor):
    """All days on which periods begin."""
    every = [date(FIRST.year - 2, 1, 1) + timedelta(days=days) for days in range((LAST.year - FIRST.year + 4) * 366)]
    return [day for day in every
            if period == "day" or period == "week" and day.strftime("%A").lower() == (anchor or "monday")
            or period == "month" and is_anchor(day, day.month, anchor or 1)
            or period == "year" and is_anchor(day, *map(int, (anchor or "01-01").split("-")))]


def is_anchor(day, month, anchored):
    """Whether a day is this one of the month, or its last one where the month has no such day."""
    is_last = (day + timedelta(days=1)).month != day.month
    return day.month == month and (day.day == anchored or is_last and day.day < anchored)


def expected(name, period, at, anchor=None):
    """The period that an instant is in, in ms."""
    if period == "hour":
        return whole_hours(name, at)
    days = starts(period, anchor)
    first = bisect(days, at.astimezone(zone(name)).date())
    edges = [begins(name, day) for day in days[max(0, first - 4):first + 4]]
    return [ms(max(edge for edge in edges if edge <= at)), ms(min(edge for edge in edges if edge > at))]


def whole_hours(name, at):
    """From a minute at which clocks show a full hour until before the next one."""
    early = at - timedelta(seconds=at.second, microseconds=at.microsecond)
    late = early + MINUTE
    while early.astimezone(zone(name)).minute:
        early -= MINUTE
    while late.astimezone(zone(name)).minute:
        late += MINUTE
    return [ms(early), ms(late)]


def ms(at):
    return round(at.timestamp() * 1000)


def questions(names, random, some):
    """Of each zone and period: instants around changes of its clocks, around its periods' edges, and any."""
    for name in names:
        near = changes(name)
        near = random.sample(near, min(some, len(near)))
        near += [datetime(FIRST.year, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randrange(100 * 365 * 1440))
                 for _ in range(some)]
        for options in PERIODS:
            at = [moment + timedelta(minutes=minutes) for moment in near
                  for minutes in (-1, 0, random.randrange(-1500, 1500))]
            yield name, options, at


def compare(names, seed, some):
    asked = list(questions(names, random.Random(seed), some))
    lines = [json.dumps([options | {"timeZone": name}, [ms(moment) for moment in at]]) for name, options, at in asked]
    done = node.run("calendar.mjs", input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(asked)
    for (name, options, at), line in zip(asked, answers, strict=True):
        for moment, answer in zip(at, json.loads(line), strict=True):
            assert answer == expected(name, at=moment, **options), f"{name} {options} at {moment}"


def test_zones_are_those_of_the_same_release():
    """Else they would differ where only the database does."""
    assert node.run("-p", "process.versions.tz").stdout.strip() == tzdata.IANA_VERSION


def test_some_zones():
    """Clocks that were changed at midnight, by half an hour, by a day, and a few others."""
    odd = ["America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein", "Africa/Cairo",
           "Asia/Beirut", "America/Havana", "Europe/Berlin", "Antarctica/Troll", "Africa/Casablanca"]
    compare(odd + random.Random(1).sample(ZONES, 6), seed=2, some=3)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_every_zone(part):
    compare(ZONES[part::8], seed=part, some=5)
