package swlimit

import (
	"context"
	"sync"
	"time"
)

// warming is what a limiter with a warm-up knows of its keys.
type warming struct {
	warmUp
	most int

	mu    sync.Mutex
	known bounded[*warmth]
}

func newWarming(s *settings, q *quota) (*warming, error) {
	switch {
	case s.warmUp == 0 && s.coldGiven:
		return nil, wrong("cold needs warm_up")
	case s.warmUp == 0:
		return nil, nil
	case s.block != 0:
		return nil, wrong("warm_up does not go with block")
	}
	w := &warming{warmUp: warmUp{s.warmUp, s.cold}, most: int(s.maxKeys)}
	return w, w.checked(q.window)
}

// ask is the limit to ask with; without a warm-up the whole one.
func (w *warming) ask(key string, q *quota) int64 {
	if w == nil {
		return q.limit
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known, _ := w.known.get(remembered(key))
	return w.warmUp.ask(known, now().Milliseconds(), q.limit, q.window+q.resolution)
}

// feed learns from a reply, if it came from where the units are counted.
func (w *warming) feed(key string, q *quota, r reply, source Source) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key = remembered(key)
	known, found := w.known.get(key)
	told := &r
	if source != FromServer && source != FromLocal {
		told = nil
	}
	next := w.warmUp.feed(known, now().Milliseconds(), q.limit, told)
	if !found {
		known = new(warmth)
		w.known.put(key, known, w.most)
	}
	*known = next
}

// looks tells whether to look behind a denial; see look.
func (w *warming) looks(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.known.get(remembered(key))
	return ok && w.look(known)
}

// later has a denial that a higher limit would not have said never say when that limit comes.
func (w *warming) later(key string, q *quota, r *reply, cost int64) {
	if w == nil || r.granted > 0 || r.retryAfter >= 0 || r.limit >= q.limit || cost > q.limit {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known, _ := w.known.get(remembered(key))
	r.retryAfter = max(1, w.wait(w.aged(known, now().Milliseconds()).age, q.limit, cost))
}

// allowWarming asks with the limit of the step, and once more where that shows that the step is a later one.
func (l *Limiter) allowWarming(ctx context.Context, key string, d demand) (Decision, error) {
	full, began := d.quota, now()
	r, source, err := l.askWarming(ctx, key, d, &full, false)
	if err == nil && r.granted == 0 && source != FromFailure && r.limit < full.limit {
		if looks := l.warming.looks(key); looks || l.warming.ask(key, &full) > r.limit {
			rest, cancel := l.rest(ctx, began)
			defer cancel()
			if looks {
				l.lookWarming(rest, key, &full)
			}
			if l.warming.ask(key, &full) > r.limit {
				if again, by, failed := l.askWarming(rest, key, d, &full, true); failed == nil {
					r, source = again, by
				}
			}
		}
		l.warming.later(key, &full, &r, d.least())
	}
	if err != nil {
		return Decision{}, err
	}
	return l.decided(r, source), nil
}

// rest is ctx with what is left of the time that a request waits for the server. It is over when that is.
func (a asker) rest(ctx context.Context, began time.Duration) (context.Context, context.CancelFunc) {
	if a.client == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, began+a.timeout-now())
}

// askWarming asks with the limit of the step. again tells whether it was denied before: then nobody decides in the
// server's place.
func (l *Limiter) askWarming(ctx context.Context, key string, d demand, full *quota, again bool) (r reply,
	source Source, err error) {
	d.limit = l.warming.ask(key, full)
	known := false
	if l.client == nil {
		source = FromLocal
		r, err = l.here(key, &d, 0)
	} else if r, known = l.known(key, &d); known {
		source = FromCache
	} else if again {
		source = FromServer
		r, err = l.told(ctx, key, d)
		keep(err)
	} else {
		r, source, err = l.answered(ctx, key, d)
	}
	if err == nil {
		l.warming.feed(key, full, r, source)
	}
	return r, source, err
}

// lookWarming sees behind a denial how much is counted, which only a reply at the whole limit shows.
func (l *Limiter) lookWarming(ctx context.Context, key string, full *quota) {
	if r, source, err := l.look(ctx, key, demand{*full, 1, false}); err == nil {
		r.granted = 0
		l.warming.feed(key, full, r, source)
	}
}

// decide decides several limits, each with the limit of its step, and once more where one is shown to have risen.
func (all allOf) decide(ctx context.Context) (answer, error) {
	began := now()
	a, err := all.ask(ctx, false)
	if err != nil || a.allowed || a.source == FromFailure {
		return a, err
	}
	rest, cancel := all[0].limiter.rest(ctx, began)
	defer cancel()
	again := false
	for i, r := range all {
		full := r.limiter.quota
		if each := a.replies[i]; r.limiter.warming != nil && each.granted == 0 && each.limit < full.limit {
			if r.limiter.warming.looks(r.key) {
				r.limiter.lookWarming(rest, r.key, &full)
			}
			again = again || r.cost <= full.limit && r.limiter.warming.ask(r.key, &full) > each.limit
		}
	}
	if again {
		if second, err := all.ask(rest, true); err == nil {
			a = second
		}
	}
	for i, r := range all {
		r.limiter.warming.later(r.key, &r.limiter.quota, &a.replies[i], r.cost)
	}
	return a, nil
}
