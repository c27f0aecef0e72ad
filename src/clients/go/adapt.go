package swlimit

import "math"

const (
	leastSamples  = 10 // of a window that says something
	samplesADrop  = 20 // a larger share of drops than one in these lowers the limit
	meanWindows   = 10 // the long-time mean begins as the mean of so many windows
	shortestTrip  = 100
	longTimeParts = 601 // a window moves the long-time mean by two of so many parts
)

// adaptation says how a limit follows how long requests take: after Netflix' concurrency-limits. Times are
// microseconds. Products are rounded before sums, so that all machines and languages come to the same.
type adaptation struct {
	min, max        float64
	aimd            bool
	window, timeout int64
}

// adapted is what is known so far.
type adapted struct {
	begun                        bool
	ends, samples, sum, inflight int64 // of the window
	drops                        int64
	windows                      int64
	windowsSum, long, estimate   float64
}

// sample is one request: when it ended, how long it took, and how many were under way when it began, it included.
type sample struct {
	end, trip, inflight int64
	dropped             bool
}

func (a *adaptation) step(s *adapted, each sample) {
	if each.trip < shortestTrip {
		return
	}
	s.samples++
	s.sum += each.trip
	s.inflight = max(s.inflight, each.inflight)
	if each.dropped {
		s.drops++
	}
	switch {
	case !s.begun:
		s.begun = true
	case each.end <= s.ends:
		return
	default:
		if s.samples >= leastSamples {
			mean := float64(s.sum) / float64(s.samples)
			if a.aimd {
				a.additive(s, mean)
			} else {
				a.gradient(s, mean)
			}
		}
		s.samples, s.sum, s.inflight, s.drops = 0, 0, 0, 0
	}
	s.ends = each.end + a.window
}

// isOverloaded tells whether more than a trickle was dropped.
func (s *adapted) isOverloaded() bool { return s.drops*samplesADrop > s.samples }

// additive adds one to the limit while it is used, and takes a tenth of it after drops.
func (a *adaptation) additive(s *adapted, mean float64) {
	switch {
	case s.isOverloaded() || mean > float64(a.timeout):
		limit := int64(s.estimate)
		s.estimate = max(a.min, float64(min(limit-1, 9*limit/10)))
	case 2*float64(s.inflight) >= s.estimate:
		s.estimate = min(a.max, s.estimate+1)
	}
}

// gradient has the limit follow how a window's mean compares to the long-time mean.
func (a *adaptation) gradient(s *adapted, mean float64) {
	if s.isOverloaded() {
		s.estimate = max(a.min, float64(0.9*s.estimate))
		return
	}
	if s.windows < meanWindows {
		s.windows++
		s.windowsSum += mean
		s.long = s.windowsSum / float64(s.windows)
	} else {
		s.long += float64((mean-s.long)*2) / longTimeParts
	}
	slope := min(1, max(0.5, float64(1.5*s.long)/mean))
	if s.long/mean > 2 {
		s.long = float64(s.long * 0.95)
	}
	if 2*float64(s.inflight) >= s.estimate {
		next := float64(s.estimate*slope) + 4
		s.estimate = max(a.min, min(a.max, float64(0.8*s.estimate)+float64(0.2*next)))
	}
}

// limit is the estimate, rounded down.
func (s *adapted) limit() int64 { return int64(math.Floor(s.estimate)) }
