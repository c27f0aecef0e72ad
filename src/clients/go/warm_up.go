package swlimit

const (
	usualCold     = 3
	mostCold      = 1000
	windowsToWarm = 10 // so many windows at least
)

// warmUp is how a limit rises once a key is in use: from one of so many parts to the whole, within a duration in
// ms. A duration of 0 is none.
type warmUp struct {
	duration, cold int64
}

// warmed is a quota whose limit rises as the options say.
func (s *settings) warmed(q quota) (quota, error) {
	switch {
	case s.warmUp.duration == 0 && s.coldGiven:
		return q, wrong("cold needs warm_up")
	case s.warmUp.duration == 0:
		return q, nil
	case s.warmUp.duration < windowsToWarm*q.window:
		return q, wrong("warm_up must be at least ten times the window")
	}
	q.warmUp = s.warmUp
	return q, nil
}

// warms tells whether the limit rises.
func (q *quota) warms() bool { return q.warmUp.duration > 0 }

// limit is what of a limit is in force after so many ms of use.
func (w warmUp) limit(full, used int64) int64 {
	if used >= w.duration {
		return full
	}
	return min(full, max(1, scaleDown(full, w.duration+(w.cold-1)*used, w.cold*w.duration)))
}

// appendWords adds WARMUP and COLD where they say something.
func (w warmUp) appendWords(words []string) []string {
	if w.duration > 0 {
		words = append(words, "WARMUP", ms(w.duration))
		if w.cold != usualCold {
			words = append(words, "COLD", number(w.cold))
		}
	}
	return words
}
