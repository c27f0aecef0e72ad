package swlimit

import (
	"context"
	"errors"
	"sync"
	"time"
)

// AdaptiveOptions say how an [Adaptive] limit moves. Each field that is 0 has its usual value.
type AdaptiveOptions struct {
	// Min and Max bound the number of permits: 20 and 200 unless others are given. The limit begins at Min.
	Min, Max int64
	// Algorithm is [Gradient2], unless [AIMD] is given.
	Algorithm Algorithm
	// Window is how long samples are collected before the limit moves, in whole milliseconds: 1 s unless another is given.
	Window time.Duration
	// Timeout is the mean time from which AIMD lowers the limit, in whole milliseconds: 5 s unless another is given.
	Timeout time.Duration
}

// An Algorithm moves an [Adaptive] limit.
type Algorithm string

const (
	// Gradient2 follows how long requests take, compared to how long they took before. Drops of more than 5 % of a window's
	// requests take a tenth of the limit.
	Gradient2 Algorithm = "gradient2"
	// AIMD adds one to the limit while it is used, and takes a tenth of it after drops of more than 5 %, and where the mean
	// is above Timeout.
	AIMD Algorithm = "aimd"
)

// An Adaptive limits how many requests this process has under way, by how long they take. All its methods may be called
// by several goroutines at once.
type Adaptive struct {
	adaptation adaptation
	mu         sync.Mutex
	state      adapted
	inflight   int64
	counts     AdaptiveStatistics
}

// AdaptiveStatistics says the number of permits that came back as Done, as dropped and as ignored, and how often none
// was free.
type AdaptiveStatistics struct {
	Done, Dropped, Ignored, Denied int64
}

// Statistics says how requests ended, since the limit was made.
func (a *Adaptive) Statistics() AdaptiveStatistics {
	if a == nil {
		return AdaptiveStatistics{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts
}

// NewAdaptive returns a limit that adapts.
func NewAdaptive(o AdaptiveOptions) (*Adaptive, error) {
	if o.Min == 0 {
		o.Min = 20
	}
	if o.Max == 0 {
		o.Max = max(200, o.Min)
	}
	if o.Algorithm == "" {
		o.Algorithm = Gradient2
	}
	if o.Window == 0 {
		o.Window = time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	_, windowErr := milliseconds(o.Window, "window", 1)
	_, timeoutErr := milliseconds(o.Timeout, "timeout", 1)
	if err := errors.Join(integer(o.Min, "min", 1), integer(o.Max, "max", o.Min), windowErr, timeoutErr); err != nil {
		return nil, err
	}
	if o.Algorithm != Gradient2 && o.Algorithm != AIMD {
		return nil, wrong("algorithm must be gradient2 or aimd, not %q", o.Algorithm)
	}
	return &Adaptive{
		adaptation: adaptation{float64(o.Min), float64(o.Max), o.Algorithm == AIMD, o.Window.Microseconds(),
			o.Timeout.Microseconds()},
		state: adapted{estimate: float64(o.Min)},
	}, nil
}

// Limit is how many permits there are now: a number between Min and Max.
func (a *Adaptive) Limit() int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.limit()
}

// InFlight is how many permits are out: a number of requests.
func (a *Adaptive) InFlight() int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inflight
}

// A Permit is one request under way. Its end is Done or Ignore; the first of them counts.
type Permit struct {
	of       *Adaptive
	began    time.Duration
	inflight int64
	over     bool // guarded by of.mu
}

// Permit lets a request begin. Without a free permit the error is ErrDenied, at once: nobody knows when one comes back.
func (a *Adaptive) Permit() (*Permit, error) {
	if a == nil || a.adaptation == (adaptation{}) {
		return nil, errNotMade
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit := a.state.limit(); a.inflight >= limit {
		a.counts.Denied++
		none := reply{limit: limit, retryAfter: unknownMS, resetAfter: unknownMS}
		return nil, &DeniedError{Decision: none.decision(FromLocal)}
	}
	a.inflight++
	return &Permit{of: a, began: now(), inflight: a.inflight}, nil
}

// Done ends a request, and says whether it was dropped: by a time-out, or because the other side had too much to do.
func (p *Permit) Done(dropped bool) {
	p.end(func(a *Adaptive) {
		end := now()
		a.adaptation.step(&a.state, sample{end.Microseconds(), (end - p.began).Microseconds(), p.inflight, dropped})
		if dropped {
			a.counts.Dropped++
		} else {
			a.counts.Done++
		}
	})
}

// Ignore ends a request that says nothing of the load, such as one that failed by an error of its own.
func (p *Permit) Ignore() { p.end(func(a *Adaptive) { a.counts.Ignored++ }) }

func (p *Permit) end(learn func(*Adaptive)) {
	if p == nil || p.of == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.over {
		p.over = true
		p.of.inflight--
		learn(p.of)
	}
}

// Run has f run with a permit. An error of f that is a time-out is a drop; another says nothing: grpclimit.Run knows
// the codes of gRPC. Without a permit the error is ErrDenied.
func (a *Adaptive) Run(f func() error) error {
	permit, err := a.Permit()
	if err != nil {
		return err
	}
	defer permit.Ignore() // where f panics
	if err = f(); err == nil || IsTimeout(err) {
		permit.Done(err != nil)
	}
	return err
}

// IsTimeout tells whether an error is a time-out: of a context, or of a connection.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
