package swlimit

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A Part is one of the limits that [Admit] decides: the Request of a [Limiter], a [Budget] or [Holds].
type Part interface {
	asked() asker
	name() string // of the key at the server
	units() int64
	limited() int64
	clause(later bool) clause
	told(raw any) (reply, error)
	here(local bool) (reply, error) // what this process decides, and counts
	takeBack()                      // what here has counted
	correct(ctx context.Context, more int64, age time.Duration) (int64, error)
}

// An Admission is the answer to all parts together.
type Admission struct {
	// Allowed tells whether all granted; else nothing was counted anywhere.
	Allowed bool
	// Each holds what each part says, in order.
	Each []Decision
	// Hold is the hold among them, while it lasts; nil where there was none or nothing was granted.
	Hold *Hold

	conn    *Conn
	parts   []Part // but the hold
	key     string // the hold's, at the server
	sent    time.Duration
	timeout time.Duration
	mu      sync.Mutex
	settled bool
}

// holdRequest is units of a hold, for Admit.
type holdRequest struct {
	holds *Holds
	wish  wish
}

// Request is n units held, for Admit.
func (h *Holds) Request(key string, n int64) Part { return &holdRequest{h, h.wish(key, n)} }

type budgetRequest struct {
	budget *Budget
	key    string
	cost   int64
}

// Request is n units of a budget, for Admit.
func (b *Budget) Request(key string, n int64) Part { return &budgetRequest{b, key, n} }

// Admit decides rates, budgets and one hold at once: all or nothing. All parts have the same Conn, and in a cluster all
// keys are of one slot. Settle corrects what was counted by what was really used.
func Admit(ctx context.Context, parts ...Part) (*Admission, error) {
	holding, strict, err := checkParts(ctx, parts)
	if err != nil {
		return nil, err
	}
	first := parts[0].asked()
	a := &Admission{conn: first.conn, timeout: first.timeout, sent: now()}
	for _, part := range parts {
		if part != Part(holding) || holding == nil {
			a.parts = append(a.parts, part)
		}
	}
	if first.conn == nil {
		return a, a.decideHere(ctx, parts, FromLocal)
	}
	since := sinceBoot()
	raw, err := inForce(func(later bool) (any, error) {
		clauses := make([]clause, len(parts))
		for i, part := range parts {
			clauses[i] = part.clause(later)
		}
		return first.ask(ctx, admitCommand(clauses, strict))
	})
	if err != nil {
		for _, part := range parts {
			if !part.asked().decides(err) {
				return nil, err
			}
		}
		return a, a.decideHere(ctx, parts, FromFailure)
	}
	list, _ := raw.([]any)
	if len(list) != 1+len(parts) {
		return nil, unexpected(raw)
	}
	a.Allowed = list[0] == int64(1)
	for i, part := range parts {
		r, err := part.told(list[1+i])
		if err != nil {
			return nil, err
		}
		if h, ok := part.(*holdRequest); ok && a.Allowed {
			numbers, _ := integersOf(list[1+i], 6)
			if a.Hold, err = h.holds.held(ctx, h.wish, numbers, since); err != nil {
				return nil, err
			}
			a.key = h.wish.key
			a.Each = append(a.Each, r.decision(FromServer))
			continue
		}
		a.Each = append(a.Each, part.asked().decided(r, FromServer))
	}
	return a, nil
}

func checkParts(ctx context.Context, parts []Part) (holding *holdRequest, strict bool, err error) {
	if len(parts) == 0 {
		return nil, false, wrong("an admission needs at least one part")
	}
	names, rates := map[string]bool{}, 0
	for _, part := range parts {
		if err := integer(part.units(), "cost", 1); err != nil {
			return nil, false, err
		}
		if part.asked().conn != parts[0].asked().conn {
			return nil, false, wrong("limits that are decided at once need the same Conn")
		}
		names[part.name()] = true
		switch part := part.(type) {
		case *holdRequest:
			if holding != nil {
				return nil, false, wrong("an admission takes one hold")
			}
			holding = part
		case Request:
			if rates++; rates > 1 && part.limiter.quota.strict != strict {
				return nil, false, wrong("limits that are decided at once must all be strict or none")
			}
			if part.limiter.block != 0 {
				return nil, false, wrong("limits that are decided at once do not block")
			}
			strict = part.limiter.quota.strict
		}
	}
	if len(names) < len(parts) {
		return nil, false, wrong("a key is named twice")
	}
	return holding, strict, ctx.Err()
}

// decideHere takes each part in this process, and gives all back where one does not fit.
func (a *Admission) decideHere(ctx context.Context, parts []Part, source Source) error {
	a.Allowed = true
	for i, part := range parts {
		r, err := part.here(source == FromLocal)
		if err == nil {
			a.Each = append(a.Each, part.asked().decided(r, source))
		}
		if err == nil && r.granted > 0 {
			continue
		}
		for _, taken := range parts[:i] {
			taken.takeBack()
		}
		a.Allowed = false
		if err != nil {
			return err
		}
		for _, other := range parts[i+1:] {
			r := unknown(0, other.limited(), unknownMS)
			a.Each = append(a.Each, other.asked().decided(r, source))
		}
		return nil
	}
	for _, part := range parts {
		if h, ok := part.(*holdRequest); ok {
			a.Hold = h.holds.made(ctx, h.wish, source)
			a.Hold.release = part.takeBack
		}
	}
	return nil
}

// Release ends the hold, and leaves all else counted as it is.
func (a *Admission) Release() {
	if a.Hold != nil {
		a.Hold.Release()
	}
}

// Settle says how many units of each part were really used, in order, without the hold, which ends. What was not used
// goes back; what was used beyond is counted. That happens once, even if replies are lost. It returns what was changed
// of each; nil where nothing goes back: it was settled before, the hold had ended, or OnFailure had granted.
func (a *Admission) Settle(ctx context.Context, used ...int64) ([]int64, error) {
	if !a.Allowed {
		return nil, wrong("nothing was granted that could be settled")
	}
	if len(used) != len(a.parts) {
		return nil, wrong("what was used of each part but the hold is %d numbers, not %d", len(a.parts), len(used))
	}
	for _, units := range used {
		if err := integer(units, "used", 0); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	first := !a.settled
	a.settled = true
	a.mu.Unlock()
	if !first {
		return nil, nil
	}
	if a.conn != nil && a.Each[0].Source == FromFailure {
		a.Release()
		return nil, nil
	}
	if a.conn == nil || a.Hold == nil {
		defer a.Release()
		return a.correct(ctx, used, true)
	}
	return a.settle(ctx, used)
}

// correct puts each part right by itself: without a hold nothing is remembered.
func (a *Admission) correct(ctx context.Context, used []int64, back bool) ([]int64, error) {
	changes := make([]int64, len(used))
	age := (now() - a.sent + a.timeout).Truncate(time.Millisecond) + time.Millisecond
	for i, part := range a.parts {
		more := used[i] - part.units()
		if more == 0 || more < 0 && !back {
			continue
		}
		change, err := part.correct(ctx, more, age)
		if err != nil {
			return changes, err
		}
		changes[i] = change
	}
	return changes, nil
}

// settle asks until the server answers, as long as the hold is live.
func (a *Admission) settle(ctx context.Context, used []int64) ([]int64, error) {
	names := make([]string, len(a.parts))
	for i, part := range a.parts {
		names[i] = part.name()
	}
	cmd := settleCommand(a.key, a.Hold.ID, names, used)
	for first := true; ; first = false {
		raw, err := a.conn.ask(context.WithoutCancel(ctx), cmd, asking{timeout: a.timeout, always: true})
		switch {
		case errors.Is(err, ErrUnavailable) && a.Hold.Live():
			if !sleep(a.conn.ctx, time.Duration(a.Hold.ttl)*time.Millisecond/endAgain) {
				return nil, ErrClosed
			}
			continue
		case err != nil:
			return nil, err
		}
		a.Hold.once.Do(func() { a.Hold.over(nil) })
		list, _ := raw.([]any)
		if len(list) == 1+len(used) && list[0] == int64(1) {
			changes := make([]int64, len(used))
			for i := range changes {
				changes[i], _ = list[1+i].(int64)
			}
			return changes, nil
		}
		if first { // the hold had ended: what was used beyond is counted all the same
			_, err = a.correct(ctx, used, false)
		}
		return nil, err
	}
}

func (r Request) asked() asker                { return r.limiter.asker }
func (r Request) name() string                { return r.limiter.prefix + r.key }
func (r Request) units() int64                { return r.cost }
func (r Request) limited() int64              { return r.limiter.quota.limit }
func (r Request) told(raw any) (reply, error) { return replyOf(raw) }

func (r Request) demand() *demand { return &demand{r.limiter.quota, r.cost, false} }

func (r Request) clause(bool) clause { return clause{key: r.name(), rate: r.demand()} }

func (r Request) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) {
		d := r.demand()
		d.limit = limit
		e, held := r.limiter.windows.lock(r.key)
		defer held.mu.Unlock()
		return e.allow(d, clock(), 0)
	}
	if local {
		return count(r.limited())
	}
	return r.limiter.instead(r.limited(), r.cost, count)
}

func (r Request) takeBack() {
	if r.limiter.conn == nil || r.limiter.onFailure == Local {
		e, held := r.limiter.windows.lock(r.key)
		defer held.mu.Unlock()
		e.refund(r.cost, clock(), -1)
	}
}

func (r Request) correct(ctx context.Context, more int64, age time.Duration) (int64, error) {
	if more > 0 {
		_, err := r.limiter.Record(ctx, r.key, more)
		return more, err
	}
	given, err := r.limiter.RefundAged(ctx, r.key, -more, age)
	return -given, err
}

func (r *budgetRequest) asked() asker                { return r.budget.asker }
func (r *budgetRequest) name() string                { return r.budget.prefix + r.key }
func (r *budgetRequest) units() int64                { return r.cost }
func (r *budgetRequest) limited() int64              { return r.budget.limit }
func (r *budgetRequest) told(raw any) (reply, error) { return replyOf(raw) }

func (r *budgetRequest) clause(later bool) clause {
	return clause{key: r.name(), limit: r.budget.limit, until: r.budget.end(later), cost: r.cost}
}

func (r *budgetRequest) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) { return r.budget.here(r.key, r.cost, "", limit) }
	if local {
		return count(r.budget.limit)
	}
	return r.budget.instead(r.budget.limit, r.cost, count)
}

func (r *budgetRequest) takeBack() {
	if r.budget.conn == nil || r.budget.onFailure == Local {
		r.budget.local.refund(r.key, r.cost, time.Now().UnixMilli())
	}
}

func (r *budgetRequest) correct(ctx context.Context, more int64, _ time.Duration) (int64, error) {
	if more > 0 {
		_, err := r.budget.Record(ctx, r.key, more)
		return more, err
	}
	given, err := r.budget.Refund(ctx, r.key, -more)
	return -given, err
}

func (r *holdRequest) asked() asker   { return r.holds.asker }
func (r *holdRequest) name() string   { return r.wish.key }
func (r *holdRequest) units() int64   { return r.wish.cost }
func (r *holdRequest) limited() int64 { return r.holds.limit }

func (r *holdRequest) told(raw any) (reply, error) {
	n, err := integersOf(raw, 6)
	return reply{n[0], n[1], n[2], n[3], unknownMS}, err
}

func (r *holdRequest) clause(bool) clause {
	return clause{key: r.wish.key, id: r.wish.id, limit: r.holds.limit, ttl: r.wish.ttl, cost: r.wish.cost}
}

func (r *holdRequest) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) {
		return r.holds.local.take(r.wish.key, limit, r.wish.cost, true), nil
	}
	if local {
		return count(r.holds.limit)
	}
	return r.holds.instead(r.holds.limit, r.wish.cost, count)
}

func (r *holdRequest) takeBack() {
	if r.holds.conn == nil || r.holds.onFailure == Local {
		r.holds.local.give(r.wish.key, r.wish.cost)
	}
}

func (r *holdRequest) correct(context.Context, int64, time.Duration) (int64, error) { return 0, nil }
