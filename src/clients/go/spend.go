package swlimit

import (
	"context"
	"errors"
	"sync"
)

// An ErrorPolicy says what [Spend] settles when its function fails before it saw any usage.
type ErrorPolicy string

const (
	// Keep leaves counted what was reserved.
	Keep ErrorPolicy = "keep"
	// GiveBack gives everything back.
	GiveBack ErrorPolicy = "give_back"
)

// OnError says what Spend settles when its function fails, and no usage was seen: [Keep], unless [GiveBack] is given.
// Usage that was seen is settled in any case. What was cancelled has used nobody knows how much: it stays counted.
func OnError(policy ErrorPolicy) AdmitOption {
	return func(o *admitting) error {
		o.onError = policy
		if policy != Keep && policy != GiveBack {
			return wrong("on error must be keep or give_back, not %q", policy)
		}
		return nil
	}
}

// A Spending is an admission that [Spend] settles.
type Spending struct {
	*Admission
	ctx  context.Context
	mu   sync.Mutex
	seen map[string]int64
}

// Context is cancelled when Spend's is, with the cause ErrLost when one of the holds is lost, and when Spend returns.
func (s *Spending) Context() context.Context { return s.ctx }

// Saw says what was used so far, by the names of parts: the last number of each name is settled.
func (s *Spending) Saw(used map[string]int64) error {
	if _, err := s.unitsOf(used); err != nil {
		return err
	}
	for _, units := range used {
		if err := integer(units, "used", 0); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, units := range used {
		s.seen[name] = units
	}
	return nil
}

// Spend has f run with an admission of parts, and settles it once: by the usage that f saw, else as OnError says after
// an error or a panic, and as it was reserved after none. A denial is ErrDenied: a *DeniedError that names the part.
// What f returns is returned. A settlement that the server does not answer in time goes on: Close of the Client waits
// for it.
func Spend(ctx context.Context, parts []Part, f func(*Spending) error, options ...AdmitOption) (err error) {
	a, err := admit(ctx, parts, options, true)
	if err != nil {
		return err
	}
	if denied := a.DeniedBy(); denied != nil {
		return denied
	}
	s := &Spending{Admission: a, seen: map[string]int64{}}
	working, cancel := context.WithCancelCause(ctx)
	s.ctx = working
	for _, hold := range a.Holds {
		defer context.AfterFunc(hold.ctx, func() {
			if cause := context.Cause(hold.ctx); cause == ErrLost { // no end of the caller's own
				cancel(cause)
			}
		})()
	}
	failed := true
	defer func() {
		cancel(nil)
		if settling := s.end(ctx, failed); err == nil {
			err = settling
		}
	}()
	err = f(s)
	failed = err != nil && !errors.Is(err, context.Canceled) // of which nobody knows what it has used
	return err
}

// end settles, and waits for that as long as for any request.
func (s *Spending) end(ctx context.Context, failed bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, err := s.unitsOf(s.seen)
	if err != nil {
		return err
	}
	if failed && len(s.seen) == 0 && s.options.onError == GiveBack {
		clear(used)
	}
	waiting, stop := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer stop()
	if _, err = s.Settle(waiting, used...); errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}
