package swlimit

import (
	"context"
	"errors"
	"slices"
	"time"
)

// settlement is what a Settle came to, once it is done.
type settlement struct {
	done    chan struct{}
	changes []int64
	err     error
}

// Settle says how many units of each part were really used, in order, without the holds, which end. What was not used
// goes back; what was used beyond is counted. That happens once, even if replies are lost. It returns what was changed
// of each; nil where nothing goes back: it was settled before, or the reservation had ended. Without a server, and
// where OnFailure is Local, it corrects what this process has counted.
//
// ctx ends the wait for that, and not the settlement: it is repeated until the server answers, or the reservation has
// ended.
func (a *Admission) Settle(ctx context.Context, used ...int64) ([]int64, error) {
	s, err := a.settle(used)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.done:
		return s.changes, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// SettleSoon is Settle that waits for nothing: Close of the Client waits for it. Its error is about the arguments; what
// fails later is logged.
func (a *Admission) SettleSoon(used ...int64) error {
	s, err := a.settle(used)
	if err != nil || a.client == nil {
		return err
	}
	a.client.spawn(func() {
		if <-s.done; s.err != nil {
			a.client.log().Warn("an admission could not be settled", "key", a.parts[0].name(), "error", s.err)
		}
	})
	return nil
}

// SettleNamed is Settle by the names of parts. A part that is left out has used what was reserved.
func (a *Admission) SettleNamed(ctx context.Context, used map[string]int64) ([]int64, error) {
	units, err := a.unitsOf(used)
	if err != nil {
		return nil, err
	}
	return a.Settle(ctx, units...)
}

// SettleNamedSoon is SettleSoon by the names of parts.
func (a *Admission) SettleNamedSoon(used map[string]int64) error {
	units, err := a.unitsOf(used)
	if err != nil {
		return err
	}
	return a.SettleSoon(units...)
}

// counted are the parts but the holds.
func (a *Admission) counted() []Part {
	return slices.DeleteFunc(slices.Clone(a.parts), func(part Part) bool {
		_, ok := part.(*holdRequest)
		return ok
	})
}

// unitsOf is what was used of each part but the holds, by their names.
func (a *Admission) unitsOf(used map[string]int64) ([]int64, error) {
	if a == nil {
		return nil, errNotMade
	}
	var units []int64
	found := 0
	for i, part := range a.parts {
		if _, ok := part.(*holdRequest); ok {
			continue
		}
		n, ok := used[a.labels[i]]
		if !ok || a.labels[i] == "" {
			n = part.units()
		} else {
			found++
		}
		units = append(units, n)
	}
	if found < len(used) {
		return nil, wrong("each name must be that of a rate or a budget of the admission, given with Named: %v", used)
	}
	return units, nil
}

// settle begins the settlement.
func (a *Admission) settle(used []int64) (*settlement, error) {
	if a == nil {
		return nil, errNotMade
	}
	parts := a.counted()
	switch {
	case !a.Allowed:
		return nil, wrong("nothing was granted that could be settled")
	case len(used) != len(parts):
		return nil, wrong("what was used of each part but the holds is %d numbers, not %d", len(parts), len(used))
	}
	for _, units := range used {
		if err := integer(units, "used", 0); err != nil {
			return nil, err
		}
	}
	s := &settlement{done: make(chan struct{})}
	a.mu.Lock()
	first := !a.settled
	a.settled = true
	a.mu.Unlock()
	if first && a.reservation != nil { // nothing else ends it now, as Close of the Client would
		a.reservation.once.Do(func() {})
	}
	switch {
	case !first:
		close(s.done)
	case a.client == nil:
		a.run(s, used)
	case !a.client.settle(func() { a.run(s, used) }):
		return nil, ErrClosed
	}
	return s, nil
}

// run settles, and ends the holds.
func (a *Admission) run(s *settlement, used []int64) {
	defer close(s.done)
	defer a.Release()
	switch {
	case a.Each[0].Source != FromServer:
		s.changes, s.err = a.correct(used, true, correctHere)
	case a.reservation == nil:
		s.changes, s.err = a.correct(used, true, a.correctThere)
	default:
		s.changes, s.err = a.settleOnce(used)
	}
}

func correctHere(part Part, more int64, age time.Duration) (int64, error) {
	return part.correctHere(more, age.Milliseconds())
}

func (a *Admission) correctThere(part Part, more int64, age time.Duration) (int64, error) {
	return part.correct(a.client.ctx, more, age)
}

// correct puts each part right by itself: without a reservation nothing is remembered.
func (a *Admission) correct(used []int64, back bool,
	correct func(part Part, more int64, age time.Duration) (int64, error)) ([]int64, error) {
	changes := make([]int64, len(used))
	passed := now() - a.sent
	age := (passed + a.timeout).Truncate(time.Millisecond) + time.Millisecond
	for i, part := range a.counted() {
		more := used[i] - part.units()
		isOver := passed >= a.Each[slices.Index(a.parts, part)].ResetAfter // what is there now was counted since
		if more == 0 || more < 0 && (!back || isOver) {
			continue
		}
		change, err := correct(part, more, age)
		if err != nil {
			return changes, err
		}
		changes[i] = change
	}
	return changes, nil
}

// settleOnce asks until the server answers, as long as the reservation is live.
func (a *Admission) settleOnce(used []int64) ([]int64, error) {
	var names []string
	units := make([]int64, len(a.parts)) // of holds none
	at := 0
	for i, part := range a.parts {
		names = append(names, part.name())
		if _, ok := part.(*holdRequest); !ok {
			units[i] = used[at]
			at++
		}
	}
	held := a.reservation
	defer held.over(nil)
	cmd := settleCommand(held.key, held.ID, names, units)
	for inDoubt := false; ; {
		raw, err := a.client.ask(a.client.ctx, cmd, asking{timeout: a.timeout, always: true})
		switch {
		case errors.Is(err, ErrUnavailable) && held.Live():
			inDoubt = inDoubt || wasSent(err)
			if !sleep(a.client.ctx, time.Duration(held.ttl)*time.Millisecond/endAgain) {
				return nil, ErrClosed
			}
			continue
		case err != nil:
			return nil, err
		}
		for _, name := range names {
			a.client.denials.forget(name)
		}
		list, _ := raw.([]any)
		if len(list) != 1+len(units) || list[0] != int64(1) {
			if !inDoubt { // the reservation had ended: what was used beyond is counted all the same
				_, err = a.correct(used, false, a.correctThere)
			}
			return nil, err
		}
		var changes []int64
		for i, part := range a.parts {
			if _, ok := part.(*holdRequest); !ok {
				change, _ := list[1+i].(int64)
				changes = append(changes, change)
			}
		}
		for _, hold := range a.Holds { // which the server has ended
			hold.once.Do(func() { hold.over(nil) })
		}
		return changes, nil
	}
}
