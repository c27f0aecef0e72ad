package swlimit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// A Budget decides for a quota of the calendar, and any number of keys: so many units until a period ends, then
// everything starts over.
type Budget struct {
	asker
	limit    int64
	period   Period
	location *time.Location
	local    *localBudgets
}

// NewBudget returns a budget of so many units in each period of a time zone's calendar. A nil location means UTC.
func NewBudget(client *Client, limit int64, period Period, location *time.Location, options ...Option) (*Budget, error) {
	if err := integer(limit, "limit", 0); err != nil {
		return nil, err
	}
	if period.err != nil {
		return nil, period.err
	}
	if period.name == "" {
		return nil, wrong("a budget needs a period, such as Daily()")
	}
	if location == nil {
		location = time.UTC
	}
	asker, err := newAsker(client, defaults(), options)
	if err != nil {
		return nil, err
	}
	if asker.block != 0 || asker.warmUp.duration != 0 || asker.coldGiven {
		return nil, wrong("budgets do not block, nor warm up")
	}
	if asker.mode == Eventual {
		return nil, wrong("mode eventual is one of rates")
	}
	return &Budget{asker, limit, period, location, &localBudgets{most: int(asker.maxKeys)}}, nil
}

// Allow decides one unit, and counts it if it is granted.
func (b *Budget) Allow(ctx context.Context, key string) (Decision, error) {
	return b.AllowN(ctx, key, 1)
}

// AllowN is Allow of n units, all or none of them.
func (b *Budget) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return b.decide(ctx, key, n, "")
}

// AllowAtMost grants as many of n units as fit.
func (b *Budget) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	return b.decide(ctx, key, n, "PARTIAL")
}

// Record counts n units whatever the limit says. When the server does not answer, that is an error.
func (b *Budget) Record(ctx context.Context, key string, n int64) (Decision, error) {
	return b.decide(ctx, key, n, "FORCE")
}

// Peek is Allow with nothing counted.
func (b *Budget) Peek(ctx context.Context, key string) (Decision, error) { return b.PeekN(ctx, key, 1) }

// PeekN is AllowN of n units with nothing counted.
func (b *Budget) PeekN(ctx context.Context, key string, n int64) (Decision, error) {
	if err := b.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if b.client == nil {
		r, _ := b.here(key, n, "PEEK", b.limit)
		return b.decided(r, FromLocal), nil
	}
	raw, err := b.ask(ctx, infoCommand(b.prefix+key))
	var refused RefusedError
	switch {
	case errors.As(err, &refused) && strings.HasPrefix(string(refused), "ERR no such key"):
		return b.decided(budgeted(0, 0, b.limit, n, false, 0), FromServer), nil
	case err != nil:
		return b.failed(err, key, n, "PEEK")
	}
	used, until := int64(0), int64(0)
	fields, _ := raw.([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		switch fields[i] {
		case "used":
			used, _ = fields[i+1].(int64)
		case "until":
			until, _ = fields[i+1].(int64)
		}
	}
	return b.decided(budgeted(used, until, b.limit, n, false, time.Now().UnixMilli()), FromServer), nil
}

// Refund gives back up to n units of the period; how many were given back. It is never sent twice.
func (b *Budget) Refund(ctx context.Context, key string, n int64) (int64, error) {
	if err := b.check(ctx, n); err != nil {
		return 0, err
	}
	if b.client == nil {
		return b.local.refund(key, n, time.Now().UnixMilli()), nil
	}
	return integerOf(b.change(ctx, refundCommand(b.prefix+key, n)))
}

// Reset forgets what a key has used.
func (b *Budget) Reset(ctx context.Context, key string) error {
	if err := b.check(ctx, 1); err != nil {
		return err
	}
	b.local.refund(key, maxExact, time.Now().UnixMilli())
	return b.reset(ctx, key)
}

func (b *Budget) check(ctx context.Context, n int64) error {
	if err := integer(n, "cost", 1); err != nil {
		return err
	}
	if b == nil || b.settings == nil {
		return errNotMade
	}
	return ctx.Err()
}

// end is when the current period ends, or the one after it, in Unix ms.
func (b *Budget) end(later bool) int64 {
	_, end := b.period.at(time.Now().UnixMilli(), b.location)
	if later {
		_, end = b.period.at(end, b.location)
	}
	return end
}

// inForce asks with the end of the period; where that has passed by the server's clock, with the next one's.
func inForce(ask func(later bool) (any, error)) (any, error) {
	raw, err := ask(false)
	var refused RefusedError
	if errors.As(err, &refused) && strings.HasPrefix(string(refused), "ERR until must be ") {
		return ask(true)
	}
	return raw, err
}

func (b *Budget) decide(ctx context.Context, key string, n int64, how string) (Decision, error) {
	if err := b.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if b.client == nil {
		r, err := b.here(key, n, how, b.limit)
		if err != nil {
			return Decision{}, err
		}
		return b.decided(r, FromLocal), nil
	}
	raw, err := inForce(func(later bool) (any, error) {
		return b.asker.decide(ctx, budgetCommand(b.prefix+key, b.limit, b.end(later), n, how))
	})
	if err != nil {
		return b.failed(err, key, n, how)
	}
	r, err := replyOf(raw)
	if err != nil {
		return Decision{}, err
	}
	return b.decided(r, FromServer), nil
}

func (b *Budget) failed(err error, key string, n int64, how string) (Decision, error) {
	if how == "FORCE" || !b.decides(err) {
		keep(err)
		return Decision{}, err
	}
	r, failed := b.instead(b.limit, n, func(limit int64) (reply, error) { return b.here(key, n, how, limit) })
	keep(err, r.granted)
	if failed != nil {
		return Decision{}, failed
	}
	return b.decided(r, FromFailure), nil
}

// here is what this process decides.
func (b *Budget) here(key string, n int64, how string, limit int64) (reply, error) {
	return b.local.decide(key, n, limit, time.Now().UnixMilli(), b.end(false), how)
}

// budgeted is what so many used units until an instant say to a request, before it is counted.
func budgeted(used, end, limit, cost int64, partial bool, now int64) reply {
	r := reply{limit: limit, remaining: max(0, limit-used)}
	if used > 0 {
		r.resetAfter = max(0, end-now)
	}
	least := cost
	switch {
	case partial:
		r.granted, least = min(cost, r.remaining), 1
	case cost <= r.remaining:
		r.granted = cost
	}
	switch {
	case r.granted > 0:
	case least > limit:
		r.retryAfter = -1
	default:
		r.retryAfter = r.resetAfter
	}
	return r
}

// localBudgets are those of this process.
type localBudgets struct {
	most int

	mu   sync.Mutex
	used bounded[*usage]
}

type usage struct {
	units, end int64
}

func (l *localBudgets) decide(key string, cost, limit, now, end int64, how string) (reply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key = remembered(key)
	held, ok := l.used.get(key)
	if ok && now >= held.end {
		l.used.remove(key)
		ok = false
	}
	if !ok {
		held = &usage{end: end}
	}
	r := budgeted(held.units, held.end, limit, cost, how == "PARTIAL", now)
	counted := r.granted
	switch how {
	case "PEEK":
		return r, nil
	case "FORCE":
		counted = cost
	}
	if counted == 0 {
		return r, nil
	}
	if counted > maxExact-held.units {
		return reply{}, errOverflow
	}
	held.units += counted
	if !ok {
		l.used.put(key, held, l.most)
	}
	r.remaining, r.resetAfter = max(0, limit-held.units), held.end-now
	return r, nil
}

func (l *localBudgets) refund(key string, units, now int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	key = remembered(key)
	held, ok := l.used.get(key)
	if !ok || now >= held.end {
		return 0
	}
	given := min(units, held.units)
	if held.units -= given; held.units == 0 {
		l.used.remove(key)
	}
	return given
}
