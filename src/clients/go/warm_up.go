package swlimit

import "math"

const (
	warmUpSteps   = 20
	usualCold     = 3
	mostCold      = 1000
	windowsToWarm = 10 // so many windows at least
)

// warmUp is how a limit rises after idleness: from about a cold-th of it, as Guava's does under saturation. Products
// are rounded before sums, so that all machines and languages come to the same.
type warmUp struct {
	period int64 // ms
	cold   float64
}

// warmth is what a process knows of a key: its age in ms, when it was last fed, and the step in which it last looked.
type warmth struct {
	age, at, looked int64
}

func (w *warmUp) checked(window int64) error {
	switch {
	case w.cold <= 1 || w.cold > mostCold || math.IsNaN(w.cold):
		return wrong("cold must be above 1 and at most %d", mostCold)
	case w.period < windowsToWarm*window:
		return wrong("warm_up must be at least ten times the window")
	}
	return nil
}

func (w *warmUp) step(age int64) int64 { return warmUpSteps * age / w.period }

// begins is the age at which a step begins.
func (w *warmUp) begins(step int64) int64 { return (step*w.period + warmUpSteps - 1) / warmUpSteps }

// limit is what of a limit a step grants.
func (w *warmUp) limit(full, step int64) int64 {
	if step >= warmUpSteps {
		return full
	}
	square := float64(w.cold * w.cold)
	risen := float64((square-1)*float64(step)) / warmUpSteps
	return min(full, max(1, int64(math.Floor(float64(full)/math.Sqrt(square-risen)))))
}

// shown is the age that so many counted units prove.
func (w *warmUp) shown(full, used int64) int64 {
	if used == 0 || float64(used)*w.cold <= float64(full) {
		return 0
	}
	square, part := float64(w.cold*w.cold), float64(full)/float64(used)
	proved := (square - float64(part*part)) / (square - 1)
	return min(w.period, max(0, int64(math.Floor(float64(w.period)*proved))))
}

// wait is how long a cost has to wait for a step that grants it.
func (w *warmUp) wait(age, full, cost int64) int64 {
	step := w.step(age)
	for step < warmUpSteps && w.limit(full, step) < cost {
		step++
	}
	return w.begins(step) - age
}

// aged is what is known at an instant; what was known of a key that was idle for long is forgotten.
func (w *warmUp) aged(known *warmth, now int64) warmth {
	if known == nil || now-known.at >= w.period {
		return warmth{0, now, -1}
	}
	return warmth{min(w.period, known.age+max(0, now-known.at)), now, known.looked}
}

// ask is the limit to ask with. A key that was not asked for longer than quiet may be idle.
func (w *warmUp) ask(known *warmth, now, full, quiet int64) int64 {
	if known == nil || now-known.at >= quiet {
		return w.limit(full, 0)
	}
	return w.limit(full, w.step(w.aged(known, now).age))
}

// feed is what is known after a reply; nil: there was none.
func (w *warmUp) feed(known *warmth, now, full int64, r *reply) warmth {
	next := w.aged(known, now)
	if r == nil {
		return next
	}
	used := r.limit - r.remaining
	if r.granted > 0 && used <= r.granted {
		next.age, next.looked = 0, -1
	} else {
		next.age = max(next.age, w.shown(full, used))
	}
	return next
}

// look tells whether to look at how much is counted, once in each step.
func (w *warmUp) look(known *warmth) bool {
	step := w.step(known.age)
	if step <= known.looked {
		return false
	}
	known.looked = step
	return true
}
