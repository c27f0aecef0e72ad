package swlimit

import "math/bits"

// maxExact is the largest limit, cost, count and instant: 2^53 - 1, which every client holds exactly.
const maxExact = 1<<53 - 1

// quota is a Quota in milliseconds, complete and checked.
type quota struct {
	limit, window, resolution int64
	strict                    bool
	warmUp                    warmUp
}

// demand is what one request asks of a quota.
type demand struct {
	quota
	cost    int64
	partial bool
}

// least is the smallest cost that has to fit.
func (d *demand) least() int64 {
	if d.partial {
		return 1
	}
	return d.cost
}

// reply is what the server answers: units granted, limit, remaining, and milliseconds. A retryAfter of -1 means never.
type reply struct {
	granted, limit, remaining, retryAfter, resetAfter int64
}

// count is the units of one subinterval.
type count struct {
	subinterval, units int64
}

// counts holds what one key has counted, oldest first. Subintervals are aligned to the Unix epoch.
type counts struct {
	window, resolution int64
	list               []count
}

func (c *counts) subintervals() int64 { return c.window / c.resolution }

func (c *counts) newest() int64 {
	if len(c.list) == 0 {
		return 0
	}
	return c.list[len(c.list)-1].subinterval
}

// endOf is the first instant at which a subinterval has slid out of the window.
func (c *counts) endOf(subinterval int64) int64 {
	return (subinterval + c.subintervals() + 1) * c.resolution
}

// end is the first instant at which no count matters any more; 0 when nothing is counted.
func (c *counts) end() int64 {
	if len(c.list) == 0 {
		return 0
	}
	return c.endOf(c.newest())
}

// endAt is the end as requests of another geometry see it.
func (c *counts) endAt(q *quota) int64 {
	seen := counts{window: q.window, resolution: q.resolution}
	return min(c.end(), seen.endOf(((c.newest()+1)*c.resolution-1)/q.resolution))
}

// decisionInstant is never before the newest count: time never runs backwards for a key.
func (c *counts) decisionInstant(now int64) int64 { return max(now, c.newest()*c.resolution) }

// load returns the units of the whole subintervals, those of the trailing one, and the estimate rounded up.
func (c *counts) load(now int64, strict bool) (full, trailing, estimate int64) {
	instant := c.decisionInstant(now)
	current := instant / c.resolution
	oldest := current - c.subintervals()
	for i := len(c.list) - 1; i >= 0; i-- {
		at := c.list[i]
		if at.subinterval == oldest {
			trailing = at.units
		}
		if at.subinterval <= oldest {
			break
		}
		full += at.units
	}
	if strict || trailing == 0 {
		return full, trailing, full + trailing
	}
	left := c.resolution - (instant - current*c.resolution)
	return full, trailing, full + scaleUp(trailing, left, c.resolution)
}

func (c *counts) add(subinterval, units int64) {
	place := len(c.list)
	for place > 0 && c.list[place-1].subinterval > subinterval {
		place--
	}
	if place > 0 && c.list[place-1].subinterval == subinterval {
		c.list[place-1].units += units
	} else {
		c.list = append(c.list, count{})
		copy(c.list[place+1:], c.list[place:])
		c.list[place] = count{subinterval, units}
	}
	oldest, out := c.newest()-c.subintervals(), 0
	for c.list[out].subinterval < oldest {
		out++
	}
	c.list = append(c.list[:0], c.list[out:]...)
}

// seenAt is these counts as a request of another geometry sees them: each subinterval's units at the latest instant at
// which they may have come, without what either window has passed.
func (c *counts) seenAt(q *quota, now int64) counts {
	if q.window == c.window && q.resolution == c.resolution && now < c.end() {
		return *c
	}
	seen := counts{window: q.window, resolution: q.resolution}
	if now >= c.end() {
		return seen
	}
	decided := c.decisionInstant(now)
	for _, at := range c.list {
		latest := min((at.subinterval+1)*c.resolution-1, decided) / q.resolution
		if min(c.endOf(at.subinterval), seen.endOf(latest)) <= decided {
			continue
		}
		if last := len(seen.list) - 1; last >= 0 && seen.list[last].subinterval == latest {
			seen.list[last].units += at.units
		} else {
			seen.list = append(seen.list, count{latest, at.units})
		}
	}
	return seen
}

// fitsAt is the instant from which the estimate is at most room; 0 when it always was. The estimate sinks only as
// subintervals slide out, oldest first, so one subinterval decides: the first through which too much is counted.
func (c *counts) fitsAt(room int64, strict bool) int64 {
	younger := int64(0)
	for i := len(c.list) - 1; i >= 0; i-- {
		at := c.list[i]
		if younger+at.units > room {
			if strict {
				return c.endOf(at.subinterval)
			}
			return c.endOf(at.subinterval) - scaleDown(room-younger, c.resolution, at.units)
		}
		younger += at.units
	}
	return 0
}

// entry is the window of one key in this process, with the module's arithmetic: counts, a block, or both.
type entry struct {
	counts       counts
	blockedUntil int64
	since        int64 // when the key came into use, if its limit rises; else 0
}

func (e *entry) allow(d *demand, now, block int64) (reply, error) {
	granted, limit, remaining, err := e.decide(d, now)
	if err != nil {
		return reply{}, err
	}
	if granted == 0 {
		if block > 0 && now >= e.blockedUntil {
			e.blockedUntil = now + block
		}
		return e.peek(d, now)
	}
	e.own(d, now, now)
	e.counts.add(e.counts.decisionInstant(now)/d.resolution, granted)
	return reply{granted, limit, remaining - granted, 0, e.resetAfter(d, now)}, nil
}

func (e *entry) peek(d *demand, now int64) (reply, error) {
	granted, limit, remaining, err := e.decide(d, now)
	if err != nil {
		return reply{}, err
	}
	retry := int64(0)
	if granted == 0 {
		retry = e.retryAfter(d, now)
	}
	return reply{granted, limit, remaining, retry, e.resetAfter(d, now)}, nil
}

// record counts whatever the limit says, age milliseconds ago where that still matters.
func (e *entry) record(d *demand, now, age, block int64) (reply, error) {
	seen := e.seen(d, now)
	dated := seen.decisionInstant(now)
	if age > 0 {
		dated = max(0, now-age)
	}
	at := dated / d.resolution
	tooLate := len(seen.list) > 0 && at < seen.newest()-seen.subintervals()
	if age > 0 && (tooLate || seen.endOf(at) <= now) {
		return e.peek(d, now)
	}
	granted, limit, _, err := e.decide(d, now)
	if err != nil {
		return reply{}, err
	}
	if full, trailing, _ := seen.load(dated, true); d.cost > maxExact-full-trailing {
		return reply{}, errOverflow
	}
	e.own(d, now, dated)
	e.counts.add(at, d.cost)
	if granted == 0 && block > 0 && now >= e.blockedUntil {
		e.blockedUntil = now + block
	}
	r := reply{granted, limit, 0, 0, e.resetAfter(d, now)}
	if now >= e.blockedUntil {
		_, _, estimate := e.counts.load(now, d.strict)
		r.remaining = max(0, limit-estimate)
	}
	if granted == 0 {
		r.retryAfter = e.retryAfter(d, now)
	}
	return r, nil
}

// refund gives back units, newest first; with an age of 0 or more, those counted about that long ago, then younger.
func (e *entry) refund(units, now, age int64) int64 {
	c := &e.counts
	if now >= c.end() {
		return 0
	}
	left := units
	take := func(i int) {
		taken := min(left, c.list[i].units)
		left -= taken
		c.list[i].units -= taken
	}
	if age < 0 {
		for i := len(c.list) - 1; i >= 0; i-- {
			take(i)
		}
	} else {
		first := max(0, now-age) / c.resolution
		if c.endOf(first) <= c.decisionInstant(now) {
			return 0
		}
		for i := range c.list {
			if c.list[i].subinterval >= first {
				take(i)
			}
		}
	}
	kept := c.list[:0]
	for _, at := range c.list {
		if at.units > 0 {
			kept = append(kept, at)
		}
	}
	if c.list = kept; len(kept) == 0 {
		e.since = 0
	}
	return units - left
}

func (e *entry) block(duration, now int64, unlessBlocked bool) int64 {
	if !unlessBlocked || now >= e.blockedUntil {
		e.blockedUntil = now + duration
	}
	return e.blockedUntil
}

func (e *entry) unblock(now int64) bool {
	was := now < e.blockedUntil
	e.blockedUntil = 0
	return was
}

func (e *entry) seen(d *demand, now int64) counts {
	if e.counts.window == 0 {
		return counts{window: d.window, resolution: d.resolution}
	}
	return e.counts.seenAt(&d.quota, now)
}

// own stores the counts at the request's geometry: only what counts changes what is stored. A key that was out of use
// comes into use at an instant.
func (e *entry) own(d *demand, now, at int64) {
	seen := e.seen(d, now)
	if e.isOutOfUse(&seen, now) {
		if e.since = 0; d.warms() {
			e.since = max(1, at)
		}
	}
	if e.counts.window == d.window && e.counts.resolution == d.resolution && now >= e.counts.end() {
		e.counts.list = e.counts.list[:0]
		return
	}
	e.counts = seen
}

// end is the first instant at which no count matters any more, nor since when the key is in use: it stays in use until
// nothing has counted for a window.
func (e *entry) end() int64 {
	if e.since > 0 {
		return e.counts.end() + e.counts.window
	}
	return e.counts.end()
}

// isOutOfUse tells whether nothing counts, and of a key whose limit rises nothing has for a window.
func (e *entry) isOutOfUse(seen *counts, now int64) bool {
	return len(seen.list) == 0 && (e.since == 0 || now >= e.end())
}

// inForce is the limit that holds for a request. After idleness the first one is granted whatever it costs.
func (e *entry) inForce(d *demand, seen *counts, now int64) int64 {
	if !d.warms() {
		return d.limit
	}
	limit := d.limit
	if e.isOutOfUse(seen, now) {
		limit = d.warmUp.limit(d.limit, 0)
	} else if e.since > 0 {
		limit = d.warmUp.limit(d.limit, max(0, seen.decisionInstant(now)-e.since))
	}
	if len(seen.list) == 0 && !d.partial && d.cost <= d.limit {
		limit = max(limit, d.cost)
	}
	return limit
}

func (e *entry) decide(d *demand, now int64) (granted, limit, remaining int64, err error) {
	seen := e.seen(d, now)
	limit = e.inForce(d, &seen, now)
	if now < e.blockedUntil {
		return 0, limit, 0, nil
	}
	full, trailing, estimate := seen.load(now, d.strict)
	remaining = max(0, limit-estimate)
	if d.cost <= remaining {
		granted = d.cost
	} else if d.partial {
		granted = remaining
	}
	if granted > maxExact-full-trailing {
		return 0, 0, 0, errOverflow
	}
	return granted, limit, remaining, nil
}

func (e *entry) resetAfter(d *demand, now int64) int64 {
	end := int64(0)
	if len(e.counts.list) > 0 {
		end = e.counts.endAt(&d.quota)
	}
	return max(0, end-now, e.blockedUntil-now)
}

func (e *entry) retryAfter(d *demand, now int64) int64 {
	if d.least() > d.limit {
		return -1
	}
	return max(0, e.fitsAt(d, now)-now, e.blockedUntil-now)
}

func (e *entry) fitsAt(d *demand, now int64) int64 {
	c := &e.counts
	if len(c.list) == 0 {
		return now
	}
	if c.window == d.window && c.resolution == d.resolution && now < c.end() && !d.warms() {
		return c.fitsAt(d.limit-d.least(), d.strict)
	}
	// At another geometry the newest units may be placed later, the later one asks; and a limit may rise meanwhile. What
	// fits once fits from then on.
	low, high := now, max(now, c.end())
	for low < high {
		middle := low + (high-low)/2
		seen := e.seen(d, middle)
		_, _, estimate := seen.load(middle, d.strict)
		if estimate+d.least() <= e.inForce(d, &seen, middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// scaleDown is a*b/c rounded down, exactly; scaleUp is rounded up. The result fits because b <= c or a*b/c is a time.
func scaleDown(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(quotient)
}

func scaleUp(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	quotient, rest := bits.Div64(high, low, uint64(c))
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}
