package swlimit

import (
	"slices"
	"time"
)

// mostBatches is the most batches of a key. Above, neighbours are merged.
const mostBatches = 16

// A tally is what one key has used of which the server knows nothing yet, by three counts, as the sliding-window
// limiters of large fleets keep them: local, granted since the last synchronization began; cached, being sent or to be
// sent again; and global, what the server last said. It is a function of what happens and when: no server, no clock.
type tally struct {
	local       int64
	cached      []batch // the first underWay of them are being sent, and may have arrived
	cachedUnits int64
	underWay    int

	isKnown          bool // the server has said something
	isRecent         bool // the key was part of every synchronization since
	limit, remaining int64
	retryAt, resetAt time.Duration
	round            uint64 // the last synchronization that it was, or is, part of
	isQueued         bool   // it waits for the next one
	refused          error  // why the server refuses the key
}

// A batch is units that were granted before an instant, the latest of them just before.
type batch struct {
	units   int64
	at      time.Duration
	inDoubt bool // it was sent, and nobody knows whether it was counted
}

// What became of a batch that was sent.
type outcome int

const (
	wasNotCounted outcome = iota // the server could not decide
	wasCounted
	wasRefused // for good
	isInDoubt  // the connection closed without a reply
)

// What this process knows without the server.
type known struct {
	share float64 // the part of the limit of which a key may use units while the server was not heard just now
	round uint64  // the last synchronization that began: what was heard in one before it is not recent
}

// allow decides a demand, and counts what it grants.
func (t *tally) allow(d *demand, k known, at time.Duration) reply {
	r := t.peek(d, k, at)
	t.local += r.granted
	r.remaining -= r.granted
	return r
}

// peek is the decision with nothing counted.
func (t *tally) peek(d *demand, k known, at time.Duration) reply {
	limit, remaining := t.limits(d, k, at)
	r := reply{limit: limit, remaining: remaining, resetAfter: upTo(t.resetAt - at)}
	switch {
	case d.cost <= r.remaining:
		r.granted = d.cost
	case d.partial && r.remaining > 0:
		r.granted = r.remaining
	case d.least() > d.limit:
		r.retryAfter = -1
	default: // the server is asked again by then, at the earliest
		r.retryAfter = max(1, upTo(t.retryAt-at))
	}
	return r
}

// limits are the limit in force, as the server said it last, and what of it is left.
func (t *tally) limits(d *demand, k known, at time.Duration) (limit, remaining int64) {
	limit, remaining = d.warmUp.limit(d.limit, 0), t.remaining
	if d.warms() && t.isKnown {
		limit = t.limit
	}
	switch {
	case !t.isKnown:
		remaining = shareOf(limit, k.share)
	case !t.isRecent || t.round != k.round: // others may have used up what remained
		remaining = min(remaining, shareOf(limit, k.share))
	case d.warms() && !d.partial && d.cost <= d.limit && at >= t.resetAt && t.unsent() == 0:
		// After idleness the first request is granted whatever it costs.
		limit, remaining = max(limit, d.cost), max(remaining, d.cost)
	}
	return limit, max(0, remaining-t.local-t.cachedUnits)
}

// record counts units whatever is available, as used at an instant. Batches are so far apart.
func (t *tally) record(units int64, at, apart time.Duration) {
	t.cachedUnits += units
	for i := len(t.cached) - 1; i >= t.underWay; i-- {
		if b := &t.cached[i]; !b.inDoubt && (b.at-at).Abs() < apart {
			b.units, b.at = b.units+units, max(b.at, at)
			return
		}
	}
	t.cached = append(t.cached, batch{units: units, at: at})
	t.merge()
}

// merge merges neighbours in time towards the younger, those that are closest, until there are few enough.
func (t *tally) merge() {
	for len(t.cached)-t.underWay > mostBatches {
		unsent := t.cached[t.underWay:]
		slices.SortStableFunc(unsent, func(a, b batch) int {
			if a.inDoubt != b.inDoubt {
				if b.inDoubt {
					return -1
				}
				return 1
			}
			return int(a.at - b.at)
		})
		closest := -1
		for i := range len(unsent) - 1 {
			if unsent[i].inDoubt == unsent[i+1].inDoubt &&
				(closest < 0 || unsent[i+1].at-unsent[i].at < unsent[closest+1].at-unsent[closest].at) {
				closest = i
			}
		}
		unsent[closest+1].units += unsent[closest].units
		t.cached = slices.Delete(t.cached, t.underWay+closest, t.underWay+closest+1)
	}
}

// takeBack takes back units that were not sent yet, the youngest first; how many.
func (t *tally) takeBack(units int64) int64 {
	own := min(units, t.local)
	t.local -= own
	for left := units - own; left > 0 && len(t.cached) > t.underWay; {
		youngest := &t.cached[len(t.cached)-1]
		if youngest.inDoubt {
			break
		}
		part := min(left, youngest.units)
		youngest.units, t.cachedUnits = youngest.units-part, t.cachedUnits-part
		own, left = own+part, left-part
		if youngest.units == 0 {
			t.cached = t.cached[:len(t.cached)-1]
		}
	}
	return own
}

// begin begins a synchronization, and is what it sends. What is older than a window does not matter any more.
func (t *tally) begin(round uint64, window, apart, at time.Duration) []batch {
	t.isQueued = false
	t.isRecent = t.isRecent && t.round+1 == round
	t.round = round
	if t.local > 0 {
		local := t.local
		t.local = 0
		t.record(local, at, apart)
	}
	t.cached = slices.DeleteFunc(t.cached, func(b batch) bool { return at >= b.at+window })
	t.underWay = len(t.cached)
	t.sum()
	return slices.Clone(t.cached)
}

// end ends the synchronization: what became of the batches that were sent, in their order, and what the server says of
// the key now, if it does. Units that it refuses, those that are lost because they are in doubt twice, and those that
// are sent again and may count twice.
func (t *tally) end(outcomes []outcome, global *reply, at time.Duration) (refused, lost, again int64) {
	var left []batch
	for i, b := range t.cached[:t.underWay] {
		switch o := outcomes[i]; {
		case o == wasCounted:
		case o == wasRefused:
			refused += b.units
		case o == isInDoubt && b.inDoubt:
			lost += b.units
		case o == isInDoubt:
			again += b.units
			b.inDoubt = true
			left = append(left, b)
		default:
			left = append(left, b)
		}
	}
	t.cached, t.underWay = append(left, t.cached[t.underWay:]...), 0
	t.sum()
	t.merge()
	if global != nil {
		t.hear(global, at)
	}
	return refused, lost, again
}

// hear learns what the server says of the key.
func (t *tally) hear(global *reply, at time.Duration) {
	t.isKnown, t.isRecent, t.refused = true, true, nil
	t.limit, t.remaining = global.limit, global.remaining
	t.retryAt, t.resetAt = at+after(global.retryAfter), at+after(global.resetAfter)
}

// after is a reply's time, of which the largest say years.
func after(ms int64) time.Duration {
	return min(max(0, duration(max(0, ms))), forever)
}

// giveUp forgets what is unsent, and says how much that was.
func (t *tally) giveUp() int64 {
	units := t.unsent()
	t.local, t.cached = 0, t.cached[:t.underWay]
	t.sum()
	return units - t.cachedUnits
}

// unsent is what the server does not know, or may not.
func (t *tally) unsent() int64 { return t.local + t.cachedUnits }

// isPinned tells whether it must not be forgotten.
func (t *tally) isPinned() bool { return t.isQueued || t.underWay > 0 || t.unsent() > 0 }

func (t *tally) sum() {
	t.cachedUnits = 0
	for _, b := range t.cached {
		t.cachedUnits += b.units
	}
}

// upTo is a time in whole ms, rounded up.
func upTo(d time.Duration) int64 {
	return int64((max(0, d) + time.Millisecond - 1) / time.Millisecond)
}
