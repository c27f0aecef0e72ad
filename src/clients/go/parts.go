package swlimit

import (
	"context"
	"time"
)

// A Part is one of the limits that [Admit] decides: the Request of a [Limiter], a [Budget] or [Holds]. [Named] names
// it, and [Limited] gives it a limit of its own.
type Part interface {
	asked() asker
	name() string // of the key at the server
	units() int64
	limited() int64
	withLimit(n int64) Part
	clause(id string, later bool) clause
	told(raw any) (reply, error)
	here(local bool) (reply, error) // what this process decides, and counts
	correct(ctx context.Context, more int64, age time.Duration) (int64, error)
	correctHere(more, age int64) (int64, error) // what here has counted; age in ms, or -1
}

type namedPart struct {
	Part
	label string
}

// Named gives a part a name, by which [Admission.SettleNamed] and [Spending.Saw] say what was used of it.
func Named(name string, part Part) Part {
	if named, ok := part.(*namedPart); ok {
		part = named.Part
	}
	return &namedPart{part, name}
}

// Limited gives a part a limit of so many units in place of its limiter's: for limits that depend on who asks.
func Limited(limit int64, part Part) Part {
	if part == nil {
		return nil // which Admit refuses
	}
	return part.withLimit(limit)
}

func (p *namedPart) withLimit(n int64) Part { return &namedPart{p.Part.withLimit(n), p.label} }

// holdRequest is units of a hold, for Admit.
type holdRequest struct {
	holds *Holds
	key   string
	cost  int64
}

// Request is n units held, for Admit.
func (h *Holds) Request(key string, n int64) Part { return &holdRequest{h, key, n} }

type budgetRequest struct {
	budget *Budget
	key    string
	cost   int64
}

// Request is n units of a budget, for Admit.
func (b *Budget) Request(key string, n int64) Part { return &budgetRequest{b, key, n} }

func (r Request) asked() asker {
	if r.limiter == nil {
		return asker{}
	}
	return r.limiter.asker
}
func (r Request) name() string                { return r.limiter.prefix + r.key }
func (r Request) units() int64                { return r.cost }
func (r Request) limited() int64              { return r.limiter.quota.limit }
func (r Request) told(raw any) (reply, error) { return replyOf(raw) }

func (r Request) demand() *demand { return &demand{r.limiter.quota, r.cost, false} }

func (r Request) clause(string, bool) clause { return clause{key: r.name(), rate: r.demand()} }

func (r Request) withLimit(n int64) Part {
	l := *r.limiter
	l.quota.limit, r.limiter = n, &l
	return r
}

func (r Request) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) {
		d := r.demand()
		d.limit = limit
		return r.limiter.windows.allow(r.key, d, 0)
	}
	if local {
		return count(r.limited())
	}
	return r.limiter.instead(r.limited(), r.cost, count)
}

func (r Request) correctHere(more, age int64) (int64, error) {
	switch {
	case !r.limiter.countsHere():
		return 0, nil
	case r.limiter.windows.fake != nil: // which counts nothing
		return more, nil
	case more < 0:
		return -r.limiter.windows.refund(r.key, -more, age), nil
	}
	d := r.demand()
	d.cost = more
	_, err := r.limiter.windows.record(r.key, d, 0, 0)
	return more, err
}

func (r Request) correct(ctx context.Context, more int64, age time.Duration) (int64, error) {
	if more > 0 {
		_, err := r.limiter.Record(ctx, r.key, more)
		return more, err
	}
	given, err := r.limiter.RefundAged(ctx, r.key, -more, age)
	return -given, err
}

func (r *budgetRequest) asked() asker {
	if r.budget == nil {
		return asker{}
	}
	return r.budget.asker
}
func (r *budgetRequest) name() string                { return r.budget.prefix + r.key }
func (r *budgetRequest) units() int64                { return r.cost }
func (r *budgetRequest) limited() int64              { return r.budget.limit }
func (r *budgetRequest) told(raw any) (reply, error) { return replyOf(raw) }

func (r *budgetRequest) clause(_ string, later bool) clause {
	return clause{key: r.name(), limit: r.budget.limit, until: r.budget.end(later), cost: r.cost}
}

func (r *budgetRequest) withLimit(n int64) Part {
	b := *r.budget
	b.limit = n
	return &budgetRequest{&b, r.key, r.cost}
}

func (r *budgetRequest) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) { return r.budget.here(r.key, r.cost, "", limit) }
	if local {
		return count(r.budget.limit)
	}
	return r.budget.instead(r.budget.limit, r.cost, count)
}

func (r *budgetRequest) correctHere(more, _ int64) (int64, error) {
	switch {
	case !r.budget.countsHere():
		return 0, nil
	case more < 0:
		return -r.budget.local.refund(r.key, -more, time.Now().UnixMilli()), nil
	}
	_, err := r.budget.here(r.key, more, "FORCE", r.budget.limit)
	return more, err
}

func (r *budgetRequest) correct(ctx context.Context, more int64, _ time.Duration) (int64, error) {
	if more > 0 {
		_, err := r.budget.Record(ctx, r.key, more)
		return more, err
	}
	given, err := r.budget.Refund(ctx, r.key, -more)
	return -given, err
}

func (r *holdRequest) asked() asker {
	if r.holds == nil {
		return asker{}
	}
	return r.holds.asker
}
func (r *holdRequest) name() string   { return r.holds.prefix + r.key }
func (r *holdRequest) units() int64   { return r.cost }
func (r *holdRequest) limited() int64 { return r.holds.limit }

func (r *holdRequest) told(raw any) (reply, error) {
	n, err := integersOf(raw, 6)
	return reply{n[0], n[1], n[2], n[3], unknownMS}, err
}

func (r *holdRequest) wish(id string) wish { return wish{r.name(), id, r.cost, r.holds.ttl} }

func (r *holdRequest) clause(id string, _ bool) clause {
	return clause{key: r.name(), id: id, limit: r.holds.limit, ttl: r.holds.ttl, cost: r.cost}
}

func (r *holdRequest) withLimit(n int64) Part {
	h := *r.holds
	h.limit = n
	return &holdRequest{&h, r.key, r.cost}
}

func (r *holdRequest) here(local bool) (reply, error) {
	count := func(limit int64) (reply, error) {
		return r.holds.local.take(r.name(), limit, r.cost, true), nil
	}
	if local {
		return count(r.holds.limit)
	}
	return r.holds.instead(r.holds.limit, r.cost, count)
}

func (r *holdRequest) correct(context.Context, int64, time.Duration) (int64, error) { return 0, nil }

func (r *holdRequest) correctHere(more, _ int64) (int64, error) {
	if r.holds.countsHere() {
		r.holds.local.give(r.name(), -more)
	}
	return more, nil
}

// takeBack gives back all that here has counted of a part.
func takeBack(part Part) { _, _ = part.correctHere(-part.units(), -1) }
