package swlimit

import (
	"time"
)

const (
	hourMS = 60 * 60 * 1000
	dayMS  = 24 * hourMS
	// Clocks of a zone and of UTC have never been further apart, nor has a zone changed its clocks by more.
	furthest = 26 * hourMS
)

// A Period is what a budget is for: [Hourly], [Daily], [Weekly], [Monthly] or [Yearly]. A day begins at the first
// instant at which the zone's clock shows its midnight or later; longer periods begin with a day.
type Period struct {
	name  string
	begin func(day int64) int64 // the last day at or before this one on which a period begins; nil: hours
	next  func(day int64) int64 // the next day after such a day
	err   error
}

// Hourly periods begin when the zone's clock shows a full hour.
func Hourly() Period { return Period{name: "hour"} }

// Daily periods begin with each day.
func Daily() Period {
	return Period{name: "day", begin: func(day int64) int64 { return day }, next: func(day int64) int64 { return day + 1 }}
}

// Weekly periods begin with this day of the week.
func Weekly(first time.Weekday) Period {
	p := Period{name: "week"}
	if first < time.Sunday || first > time.Saturday {
		p.err = wrong("a week begins with a day from Sunday to Saturday, not %d", int(first))
	}
	// 1970-01-01 was a Thursday.
	p.begin = func(day int64) int64 { return day - past(day+4-int64(first), 7) }
	p.next = func(day int64) int64 { return day + 7 }
	return p
}

// Monthly periods begin with this day of the month, 1 … 31; shorter months have their last day.
func Monthly(day int) Period {
	p := byMonths("month", 1, func(year int, month time.Month) int64 { return dayOf(year, month, day) })
	if day < 1 || day > 31 {
		p.err = wrong("a month begins with a day from 1 to 31, not %d", day)
	}
	return p
}

// Yearly periods begin with this day; where a year has no 29 February, with the 28th.
func Yearly(month time.Month, day int) Period {
	p := byMonths("year", 12, func(year int, _ time.Month) int64 { return dayOf(year, month, day) })
	if month < time.January || month > time.December || day < 1 || dayOf(2000, month, day) != daysOf(2000, month, day) {
		p.err = wrong("a year has no day %d of month %d", day, int(month))
	}
	return p
}

// byMonths are periods of so many months.
func byMonths(name string, length int, first func(int, time.Month) int64) Period {
	start := func(day int64, later int) int64 {
		at := time.UnixMilli(day * dayMS).UTC()
		at = time.Date(at.Year(), at.Month()+time.Month(later*length), 1, 0, 0, 0, 0, time.UTC)
		return first(at.Year(), at.Month())
	}
	return Period{name: name,
		begin: func(day int64) int64 {
			if this := start(day, 0); this <= day {
				return this
			}
			return start(day, -1)
		},
		next: func(day int64) int64 { return start(day, 1) }}
}

// dayOf is a day of a month, or its last one, in days since 1970-01-01.
func dayOf(year int, month time.Month, day int) int64 {
	return min(daysOf(year, month, day), daysOf(year, month+1, 0))
}

func daysOf(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / (dayMS / 1000)
}

// at is the period that holds an instant: from start until before end, in Unix ms.
func (p Period) at(instant int64, location *time.Location) (start, end int64) {
	z := zone{location}
	if p.begin == nil {
		return z.hourBefore(instant), z.hourAfter(instant)
	}
	shown := instant + z.offset(instant)
	day := p.begin((shown - past(shown, dayMS)) / dayMS)
	start = z.firstOf(day)
	for {
		day = p.next(day)
		// Where clocks went back over a midnight, a day that has begun shows the day before once more.
		if end = z.firstOf(day); end > instant {
			return start, end
		}
		start = end
	}
}

// A zone is what the clocks of a place show. Their time is counted like Unix time, in ms.
type zone struct {
	location *time.Location
}

func (z zone) offset(instant int64) int64 {
	_, seconds := time.UnixMilli(instant).In(z.location).Zone()
	return int64(seconds) * 1000
}

// firstOf is the first instant at which the midnight of a day, or anything later, is shown.
func (z zone) firstOf(day int64) int64 {
	midnight := day * dayMS
	before, after := z.offset(midnight-furthest), z.offset(midnight+furthest)
	if before == after {
		return midnight - before
	}
	change := z.change(midnight-furthest, midnight+furthest)
	if midnight-before < change {
		return midnight - before
	}
	return max(change, midnight-after)
}

func (z zone) hourBefore(instant int64) int64 {
	start := instant - past(instant+z.offset(instant), hourMS)
	if z.offset(start) == z.offset(instant) {
		return start
	}
	last := z.change(start, instant) - 1
	return last - past(last+z.offset(last), hourMS)
}

func (z zone) hourAfter(instant int64) int64 {
	end := instant - past(instant+z.offset(instant), hourMS) + hourMS
	if z.offset(end) == z.offset(instant) {
		return end
	}
	change := z.change(instant, end)
	return change + past(-(change+z.offset(change)), hourMS)
}

// change is the first instant with the later offset, of two between which clocks changed.
func (z zone) change(from, to int64) int64 {
	later := z.offset(to)
	for to-from > 1 {
		if middle := from + (to-from)/2; z.offset(middle) == later {
			to = middle
		} else {
			from = middle
		}
	}
	return to
}

// past is what remains of a number after as many whole units as fit, also below 0.
func past(n, unit int64) int64 { return (n%unit + unit) % unit }
