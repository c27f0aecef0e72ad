"""The instants that the stamps of logs stand for."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNIX = re.compile(r"\d+(\.\d+)?")
DISORDER = timedelta(days=30)


class Calendar:
    """Turns stamps into instants: adds the time zone and the year where a stamp names none.

    Stamps are `10/Oct/2024:13:55:36 +0000`, ISO 8601, Unix seconds, or syslog's `Oct 10 13:55:36`. One without a year
    follows the line before it: a step back of up to DISORDER is disorder in the file, a longer one is the turn of a
    year. The first takes the latest year in which it has happened already, if none is given.
    """

    def __init__(self, zone=UTC, year=None, now=None):
        self.zone = zone
        self.year = year
        self.assumed = None  # the year that had to be assumed
        self.now = (now or datetime.now(UTC)).astimezone(zone).replace(tzinfo=None)
        self.previous = None

    def instant(self, stamp):
        """Unix time in milliseconds; None if there is no such date, or one before 1970."""
        try:
            moment = self._with_year(stamp) if stamp[:1].isalpha() else _dated(stamp)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=self.zone)
            local = moment.astimezone(self.zone).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return None
        at = (moment - EPOCH) // timedelta(milliseconds=1)
        if at < 0:
            return None
        self.previous = local
        return at

    def _with_year(self, stamp):
        date = datetime.strptime(f"2000 {stamp}", "%Y %b %d %H:%M:%S")  # a leap year
        if self.previous:
            nearby, earliest = range(self.previous.year - 1, self.previous.year + 2), self.previous - DISORDER
            return _first(moment for moment in _in(nearby, date) if moment >= earliest)
        if self.year:
            return date.replace(year=self.year)
        recent = range(self.now.year, self.now.year - 9, -1)
        first = _first(moment for moment in _in(recent, date) if moment <= self.now)
        self.assumed = first.year
        return first


@lru_cache(maxsize=1024)  # busy logs repeat their stamps
def _dated(stamp):
    if UNIX.fullmatch(stamp):
        return EPOCH + timedelta(seconds=float(stamp))
    if "/" in stamp:
        return datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z")
    return datetime.fromisoformat(stamp)


def _in(years, date):
    """The date in those of these years that have it: not every year has a 29 February."""
    for year in years:
        with suppress(ValueError):
            yield date.replace(year=year)


def _first(moments):
    for moment in moments:
        return moment
    raise ValueError("no such date")
