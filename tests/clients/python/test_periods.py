"""Periods of the calendar, beside what the C library says of each zone's clocks."""

import os
import random
import time
import zoneinfo
from bisect import bisect_right
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from support.lacking import lacking
from swlimit._core.calendar import WEEKDAYS, Calendar

EPOCH = datetime(1970, 1, 1)
DAY, HOUR = 86_400, 3_600
FROM, TO = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1976, 2076))
NOTABLE = ["Europe/Berlin", "America/St_Johns", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe",
           "Pacific/Apia", "Asia/Kathmandu"]


@contextmanager
def clocks_of(zone):
    """Have the C library's clocks show a zone."""
    file = next((file for folder in zoneinfo.TZPATH if (file := Path(folder, zone)).is_file()), None)
    if file is None:
        lacking("the system's database of time zones, tzdata")
    before = os.environ.get("TZ")
    os.environ["TZ"] = f":{file}"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


class Zone:
    """The spans in which a zone's clocks are as far ahead of UTC, found by looking every twelve hours."""

    def __init__(self, name):
        with clocks_of(name):
            looks = range(FROM - 800 * DAY, TO + 2000 * DAY, DAY // 2)
            offset = time.localtime(looks[0]).tm_gmtoff
            self.spans = [[looks[0], looks[0], offset]]
            for look in looks:
                if (found := time.localtime(look).tm_gmtoff) != offset:
                    low, high = look - DAY // 2, look
                    while high - low > 1:
                        middle = (low + high) // 2
                        low, high = (middle, high) if time.localtime(middle).tm_gmtoff == offset else (low, middle)
                    self.spans[-1][1], offset = high, found
                    self.spans.append([high, high, found])
            self.spans[-1][1] = looks[-1]
        self.ends = [last for _, last, _ in self.spans]

    @property
    def changes(self):
        return [first for first, _, _ in self.spans[1:]]

    def begin(self, day):
        """The first second at which the clocks show midnight of this day, or later."""
        midnight = (datetime.combine(day, datetime.min.time()) - EPOCH) // timedelta(seconds=1)
        near = bisect_right(self.ends, midnight - 2 * DAY)
        return next(second for first, last, offset in self.spans[near:near + 9]
                    if (second := max(first, midnight - offset)) < last)

    def hours(self, first, last):
        """The seconds in which a clock begins to show another hour of its span, from first to last."""
        for begin, end, offset in self.spans:
            second = max(begin, first)
            if second == begin and begin != self.spans[0][0]:
                shown_before = begin - 1 + next(off for _, until, off in self.spans if until == begin)
                if begin + offset > shown_before and (begin + offset) // HOUR > shown_before // HOUR:
                    yield begin
                    second += 1
            second += -(second + offset) % HOUR
            yield from range(second, min(end, last), HOUR)


ANCHORS = {"day": [None], "week": WEEKDAYS, "month": [1, 15, 29, 30, 31], "year": ["01-01", "04-15", "02-29", "12-31"]}
ALL_DAYS = [date(1974, 6, 1) + timedelta(days=number) for number in range(106 * 365)]


@cache
def days(period, anchor):
    """The days with which periods begin, counted one by one."""
    begins = {
        "day": lambda day, tomorrow: True,
        "week": lambda day, tomorrow: WEEKDAYS[day.weekday()] == anchor,
        "month": lambda day, tomorrow: day.day == anchor or day.day < anchor and tomorrow.day == 1,
        "year": lambda day, tomorrow: f"{day:%m-%d}" == anchor or (
            anchor == "02-29" and (day.day, tomorrow.month, tomorrow.day) == (28, 3, 1)),
    }[period]
    return [day for day, tomorrow in pairwise(ALL_DAYS) if begins(day, tomorrow)]


def agree(calendar, starts, second):
    """A calendar has these starts of periods, as seen at this instant and around the starts near it."""
    at = bisect_right(starts, second)
    first, last = starts[at - 1] * 1000, starts[at] * 1000
    for instant in (second * 1000 + 999, first, first + 1, last - 1):
        assert calendar.period_at(instant) == (first, last), (calendar, instant)
    assert calendar.period_at(last)[0] == last


def check(name, instants):
    draw = random.Random(name)
    zone = Zone(name)
    near = [change + moved for change in zone.changes for moved in (-DAY, -1, 0, DAY) if FROM < change < TO]
    for period, anchors in ANCHORS.items():
        anchor = draw.choice(anchors)
        calendar, firsts = Calendar(period, name, anchor), days(period, anchor)
        for second in draw.sample(near, min(len(near), instants)) + [draw.randrange(FROM, TO) for _ in range(instants)]:
            at = bisect_right(firsts, (EPOCH + timedelta(seconds=second)).date())
            agree(calendar, sorted({zone.begin(day) for day in firsts[max(0, at - 5):at + 5]}), second)
    for second in draw.sample(near, min(len(near), instants)) or [draw.randrange(FROM, TO)]:
        agree(Calendar("hour", name), sorted({*zone.hours(second - DAY, second + DAY)}), second)


def test_zones_and_years():
    """Those that have done something odd, and a few more."""
    names = sorted(zoneinfo.available_timezones()) or lacking("a database of time zones, tzdata")
    for name in {*random.Random(7).sample(names, 1), *NOTABLE}:
        check(name, 6)


@pytest.mark.long
def test_all_zones_and_years():
    for name in sorted(zoneinfo.available_timezones()):
        check(name, 20)


@pytest.mark.parametrize("words", [
    ("fortnight",), ("month", "Mars/Phobos"), ("month", ""), ("month", "UTC", 0), ("month", "UTC", 32),
    ("month", "UTC", "15"),
    ("month", "UTC", True), ("week", "UTC", "Monday"), ("week", "UTC", 1), ("year", "UTC", "02-30"), ("year", "UTC", 3),
    ("day", "UTC", 6), ("hour", "UTC", 30), ("month", "../etc/passwd"), ("month", None)])
def test_what_is_wrong_is_refused(words):
    with pytest.raises(ValueError, match="must be"):
        Calendar(*words)
