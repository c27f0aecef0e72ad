package swlimit

import (
	"context"
	"slices"
)

// Limits are several rates for any number of keys, which decide together. All its methods may be called by several
// goroutines at once.
type Limits struct {
	limiters []*Limiter
	owned    *Client // what Close closes
}

// NewLimits returns rates such as "100/hour; 5/second", as [ParseQuota] reads each: a request is granted by all of
// them, or counted by none. The options are those of [New].
func NewLimits(client *Client, rates string, options ...Option) (*Limits, error) {
	quotas, err := parseRates(rates)
	if err != nil {
		return nil, err
	}
	limits := &Limits{}
	for _, quota := range quotas {
		l, err := New(client, quota, options...)
		switch {
		case err != nil:
			return nil, err
		case l.block != 0:
			return nil, wrong("limits that are decided at once do not block")
		}
		limits.limiters = append(limits.limiters, l)
	}
	return limits, nil
}

// Open returns a limiter of one rate such as "100/minute", as [ParseQuota] reads it. The Client is the limiter's own:
// its Close closes it, and so does an error.
func Open(client *Client, rate string, options ...Option) (*Limiter, error) {
	quota, err := ParseQuota(rate)
	var l *Limiter
	if err == nil {
		l, err = New(client, quota, options...)
	}
	if err != nil {
		closeOwned(client)
		return nil, err
	}
	l.owned = client
	return l, nil
}

// OpenLimits returns several rates, as [NewLimits] does. The Client is theirs, as [Open] has it.
func OpenLimits(client *Client, rates string, options ...Option) (*Limits, error) {
	l, err := NewLimits(client, rates, options...)
	if err != nil {
		closeOwned(client)
		return nil, err
	}
	l.owned = client
	return l, nil
}

// Close closes the Client of a limiter that [Open] has made. Others need no end.
func (l *Limiter) Close() error {
	if l == nil {
		return nil
	}
	return closeOwned(l.owned)
}

// Close closes the Client of rates that [OpenLimits] has made. Others need no end.
func (l *Limits) Close() error {
	if l == nil {
		return nil
	}
	return closeOwned(l.owned)
}

// closeOwned closes the Client that was made for a limiter, if there is one.
func closeOwned(client *Client) error {
	if client == nil {
		return nil
	}
	return client.Close()
}

// Limiters are those of each rate, in order.
func (l *Limits) Limiters() []*Limiter {
	if l == nil {
		return nil
	}
	return slices.Clone(l.limiters)
}

// keyOfWindow is the name of a key's window of so many milliseconds. All of a key's are in one slot of a cluster.
func keyOfWindow(prefix, key string, window int64) (string, error) {
	if key == "" {
		return "", wrong("key must not be empty")
	}
	if !isTagged(prefix + key) {
		key = "{" + key + "}"
	}
	return prefix + key + ":" + number(window), nil
}

// requests are n units of each rate.
func (l *Limits) requests(key string, n int64) ([]Request, error) {
	if l == nil || len(l.limiters) == 0 {
		return nil, errNotMade
	}
	requests := make([]Request, len(l.limiters))
	for i, one := range l.limiters {
		name, err := keyOfWindow(one.prefix, key, one.quota.window)
		if err != nil {
			return nil, err
		}
		requests[i] = one.Request(name[len(one.prefix):], n)
	}
	return requests, nil
}

// Allow decides one unit, and counts it if all rates grant it: one command.
func (l *Limits) Allow(ctx context.Context, key string) (Decisions, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN is Allow of n units.
func (l *Limits) AllowN(ctx context.Context, key string, n int64) (Decisions, error) {
	requests, err := l.requests(key, n)
	if err != nil {
		return Decisions{}, err
	}
	return AllowAll(ctx, requests...)
}

// Peek is Allow with nothing counted. Each rate is asked by itself.
func (l *Limits) Peek(ctx context.Context, key string) (Decisions, error) {
	return l.PeekN(ctx, key, 1)
}

// PeekN is AllowN of n units with nothing counted.
func (l *Limits) PeekN(ctx context.Context, key string, n int64) (Decisions, error) {
	return l.each(key, n, func(r Request) (Decision, error) { return r.limiter.PeekN(ctx, r.key, r.cost) })
}

// Record counts n units of each rate whatever the limits say: see [Limiter.Record].
func (l *Limits) Record(ctx context.Context, key string, n int64) (Decisions, error) {
	return l.each(key, n, func(r Request) (Decision, error) { return r.limiter.Record(ctx, r.key, r.cost) })
}

func (l *Limits) each(key string, n int64, ask func(Request) (Decision, error)) (Decisions, error) {
	requests, err := l.requests(key, n)
	if err != nil {
		return Decisions{}, err
	}
	decisions := Decisions{Allowed: true}
	for _, r := range requests {
		d, err := ask(r)
		if err != nil {
			return Decisions{}, err
		}
		decisions.Each = append(decisions.Each, d)
		decisions.Allowed = decisions.Allowed && d.Allowed()
	}
	return decisions, nil
}

// Refund gives back up to n units of each rate, the newest first; how many units of each were given back.
func (l *Limits) Refund(ctx context.Context, key string, n int64) ([]int64, error) {
	requests, err := l.requests(key, n)
	given := make([]int64, len(requests))
	for i, r := range requests {
		if given[i], err = r.limiter.Refund(ctx, r.key, n); err != nil {
			return given, err
		}
	}
	return given, err
}

// Reset forgets all that is counted for a key.
func (l *Limits) Reset(ctx context.Context, key string) error {
	requests, err := l.requests(key, 1)
	for _, r := range requests {
		if err = r.limiter.Reset(ctx, r.key); err != nil {
			return err
		}
	}
	return err
}
