"""Periods of the calendar, in any time zone. No clock: instants are Unix times in ms."""

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from itertools import count
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Period = Literal["hour", "day", "week", "month", "year"]
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_OF_YEAR = re.compile(r"(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", re.ASCII)
_HOUR = 3600
_EPOCH = datetime(1970, 1, 1)


class Span(NamedTuple):
    """One period, from `start` up to `end`."""

    start: int
    end: int


class Calendar:
    """Divides time into periods: hours, days, weeks, months or years of a time zone.

    time_zone: a name of the IANA database.
    anchor: where periods begin; of a week "monday" (the default) to "sunday", of a month 1 to 31 (in shorter months:
        the last day), of a year "MM-DD" ("02-29" is 02-28 in other years). Hours and days have none.

    A period that begins with a day begins at the first instant of that day: at midnight, at the first of two, or, where
    clocks were put forward at midnight, right after. Of an hour that comes twice, each is one.
    """

    def __init__(self, period: Period, time_zone: str = "UTC", anchor: int | str | None = None) -> None:
        if period not in get_args(Period):
            raise ValueError(f"period must be {', '.join(map(repr, get_args(Period)))}, not {period!r}")
        self.period, self.time_zone = period, time_zone
        self._zone = _zone(time_zone)
        self.anchor = _checked_anchor(period, anchor)

    def __repr__(self) -> str:
        return f"Calendar({self.period!r}, {self.time_zone!r}, {self.anchor!r})"

    def period_at(self, instant: int) -> Span:
        """The period that this instant is in."""
        starts = self._hours(instant) if self.period == "hour" else self._days(instant)
        start = next(starts)
        for end in starts:
            if instant < end * 1000:
                break
            start = end
        return Span(start * 1000, end * 1000)

    def _days(self, instant: int) -> Iterator[int]:
        """The seconds at which periods of days begin, from one before this instant on."""
        day = (_EPOCH + timedelta(seconds=instant // 1000)).date() - timedelta(days=2)
        return (self._begin(first) for first in _first_days(self.period, self.anchor, day))

    def _begin(self, day: date) -> int:
        """The first second of a day; of a day that the zone left out, that of the next."""
        midnight = datetime.combine(day, time())
        early, late = sorted(self._second(midnight.replace(fold=fold)) for fold in (0, 1))
        if self._local(early) == midnight:
            return early
        return _first(lambda second: self._local(second) >= midnight, early, late)

    def _hours(self, instant: int) -> Iterator[int]:
        """The seconds at which hours begin, from one before this instant on.

        Where an offset changes, an hour begins if the clocks show a full hour then, or have jumped over one.
        """
        second = instant // 1000 - 2 * _HOUR
        second -= (second + self._offset(second)) % _HOUR
        while True:
            yield second
            offset = self._offset(second)
            following = second + _HOUR - (second + offset) % _HOUR
            if self._offset(following) != offset:
                change = self._change(second, following)
                shown, before = change + self._offset(change), change + offset
                begins = shown % _HOUR == 0 or shown // _HOUR > (before - 1) // _HOUR
                following = change if begins else change + -shown % _HOUR
            second = following

    def _change(self, first: int, last: int) -> int:
        """The second from which on the offset is another one than at the first."""
        offset = self._offset(first)
        return _first(lambda second: self._offset(second) != offset, first, last)

    def _local(self, second: int) -> datetime:
        """What the zone's clocks show."""
        return (_EPOCH.replace(tzinfo=timezone.utc) + timedelta(seconds=second)).astimezone(self._zone).replace(
            tzinfo=None, fold=0)

    def _second(self, local: datetime) -> int:
        """When the zone's clocks show this."""
        return (local.replace(tzinfo=self._zone) - _EPOCH.replace(tzinfo=timezone.utc)) // timedelta(seconds=1)

    def _offset(self, second: int) -> int:
        """How many seconds the zone's clocks are ahead of UTC."""
        return (self._local(second) - _EPOCH) // timedelta(seconds=1) - second


def _first_days(period: str, anchor: int | str | None, day: date) -> Iterator[date]:
    """The days with which periods begin, from one that is not after this day on."""
    if period in ("day", "week"):
        step = timedelta(days=7 if period == "week" else 1)
        day -= timedelta(days=(day.weekday() - WEEKDAYS.index(str(anchor))) % 7 if period == "week" else 0)
        while True:
            yield day
            day += step
    months = count(day.year * 12 + day.month - 2) if period == "month" else count((day.year - 1) * 12, 12)
    month, of_month = (0, int(anchor or 1)) if period == "month" else map(int, str(anchor).split("-"))
    for number in months:
        year, index = divmod(number + max(0, month - 1), 12)
        yield date(year, index + 1, min(of_month, monthrange(year, index + 1)[1]))


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number above `low` for which something holds, as it does for `high`."""
    return bisect_left(range(low + 1, high), True, key=holds) + low + 1


def _checked_anchor(period: str, anchor: int | str | None) -> int | str | None:
    if period == "week":
        anchor = "monday" if anchor is None else anchor
        fits = anchor in WEEKDAYS
    elif period == "month":
        anchor = 1 if anchor is None else anchor
        fits = isinstance(anchor, int) and not isinstance(anchor, bool) and 1 <= anchor <= 31
    elif period == "year":
        anchor = "01-01" if anchor is None else anchor
        found = _DAY_OF_YEAR.fullmatch(anchor) if isinstance(anchor, str) else None
        fits = found is not None and int(found[2]) <= monthrange(2024, int(found[1]))[1]  # a leap year
    else:
        fits = anchor is None
    if not fits:
        raise ValueError(f"anchor must be {_ANCHORS[period]}, not {anchor!r}")
    return anchor


_ANCHORS = {"hour": "None for hours", "day": "None for days", "week": f"one of {', '.join(WEEKDAYS)}",
            "month": "a day of the month, 1 to 31", "year": "a day of the year such as '04-15'"}


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"time_zone must be the name of a time zone such as 'Europe/Berlin', not {name!r}; where the "
                         "system has no database of them, install the package tzdata") from error
