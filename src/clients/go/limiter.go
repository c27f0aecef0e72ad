package swlimit

import (
	"context"
	"errors"
	"time"
)

// asker is what all kinds of limiters have in common.
type asker struct {
	*settings
	client *Client // nil: this process decides
	counts *counters
}

func newAsker(client *Client, s *settings, options []Option) (asker, error) {
	if client != nil && !client.isMade() {
		return asker{}, errClientNotMade
	}
	if err := s.apply(client, options); err != nil {
		return asker{}, err
	}
	if s.mode == Local {
		client = nil
	}
	if client != nil {
		client.denials.atMost(s.maxKeys)
		client.longest(s.timeout)
	}
	return asker{s, client, new(counters)}, nil
}

func (a asker) ask(ctx context.Context, cmd command) (any, error) {
	return a.client.ask(ctx, cmd, asking{timeout: a.timeout})
}

// decide asks for a decision that the policy makes in place of an error: then keep says what it granted.
func (a asker) decide(ctx context.Context, cmd command) (any, error) {
	return a.client.ask(ctx, cmd, asking{timeout: a.timeout, decides: true})
}

func (a asker) change(ctx context.Context, cmd command) (any, error) {
	return a.client.change(ctx, cmd, a.timeout)
}

// decides tells whether OnFailure decides in place of an error.
func (a asker) decides(err error) bool {
	return errors.Is(err, ErrUnavailable) && a.onFailure != FailError
}

// countsHere tells whether this process counts what it decides in place of a server.
func (a asker) countsHere() bool { return a.client == nil || a.onFailure == FailLocal }

// instead is what OnFailure decides of a cost, where count asks what this process counts of so many units.
func (a asker) instead(limit, cost int64, count func(limit int64) (reply, error)) (reply, error) {
	switch a.onFailure {
	case FailAllow:
		return unknown(cost, limit, 0), nil
	case FailDeny:
		return unknown(0, limit, unknownMS), nil
	}
	return count(shareOf(limit, a.localShare))
}

// A Limiter decides for one quota and any number of keys. All its methods may be called by several goroutines at once.
type Limiter struct {
	asker
	quota    quota
	windows  *windows
	eventual *eventual // nil: another mode
	owned    *Client   // what Close closes
}

// New returns a limiter. Limiters are cheap to make, need not be closed, and share what the Client knows. Without a
// Client, that is with nil, this process decides alone.
func New(client *Client, q Quota, options ...Option) (*Limiter, error) {
	checked, err := q.checked()
	if err != nil {
		return nil, err
	}
	asker, err := newAsker(client, defaults(), options)
	if err != nil {
		return nil, err
	}
	if checked, err = asker.warmed(checked); err != nil {
		return nil, err
	}
	l := &Limiter{asker: asker, quota: checked, windows: newWindows(asker.maxKeys, &asker.counts.evicted)}
	if l.mode == Eventual {
		l.eventual = newEventual(&l.asker, &checked)
	}
	return l, nil
}

// With returns a limiter of the same keys and options with another quota: for limits that depend on who asks. The key's
// window should stay one.
func (l *Limiter) With(q Quota) (*Limiter, error) {
	checked, err := q.checked()
	if err != nil {
		return nil, err
	}
	if l == nil || l.settings == nil {
		return nil, errNotMade
	}
	if checked, err = l.warmed(checked); err != nil {
		return nil, err
	}
	return &Limiter{asker: l.asker, quota: checked, windows: l.windows, eventual: l.eventual}, nil
}

// Name is the limiter's name in the headers of responses.
func (l *Limiter) Name() string {
	if l == nil || l.settings == nil {
		return ""
	}
	return l.name
}

// Quota is the limiter's quota, with its resolution.
func (l *Limiter) Quota() Quota {
	if l == nil {
		return Quota{}
	}
	q := l.quota
	return Quota{q.limit, duration(q.window), duration(q.resolution), q.strict}
}

// Allow decides one unit, and counts it if it is granted. A denial is no error.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.allow(ctx, key, 1, false)
}

// AllowN is Allow of n units, all or none of them.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.allow(ctx, key, n, false)
}

// AllowAtMost grants as many of n units as fit.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	return l.allow(ctx, key, n, true)
}

func (l *Limiter) allow(ctx context.Context, key string, cost int64, partial bool) (Decision, error) {
	if err := l.check(ctx, cost); err != nil {
		return Decision{}, err
	}
	d := demand{l.quota, cost, partial}
	if l.client == nil {
		r, err := l.here(key, &d, l.block)
		if err != nil {
			return Decision{}, err
		}
		return l.decided(r, FromLocal), nil
	}
	if r, ok := l.known(key, &d); ok {
		return l.decided(r, FromCache), nil
	}
	if l.eventual != nil {
		return l.allowEventually(ctx, key, d)
	}
	r, source, err := l.answered(ctx, key, d)
	if err != nil {
		return Decision{}, err
	}
	return l.decided(r, source), nil
}

// allowEventually decides by what the server last said, unless that may have been forgotten.
func (l *Limiter) allowEventually(ctx context.Context, key string, d demand) (Decision, error) {
	if d.least() > d.limit {
		return l.decided(unknown(0, d.limit, -1), FromCache), nil
	}
	name := l.prefix + key
	r, source, err := l.eventual.allow(name, &d)
	switch {
	case err != nil:
		return Decision{}, err
	case source == FromFailure:
		return l.failed(l.eventual.unsynchronized(name), key, &d, 0)
	case source == FromServer:
		if r, source, err = l.answered(ctx, key, d); err != nil {
			return Decision{}, err
		}
		if source == FromServer {
			l.eventual.hear(name, &d.quota, r)
		}
	}
	return l.decided(r, source), nil
}

// known is a denial that is known without asking.
func (l *Limiter) known(key string, d *demand) (reply, bool) {
	if l.mode != Cached {
		return reply{}, false
	}
	return l.client.denials.find(l.prefix+key, d, l.block > 0)
}

// answered is what the server decides, or OnFailure in its place.
func (l *Limiter) answered(ctx context.Context, key string, d demand) (reply, Source, error) {
	r, err := l.told(ctx, key, d)
	if err == nil || !errors.Is(err, ErrUnavailable) {
		return r, FromServer, err
	}
	r, err = l.policy(err, key, &d, l.block)
	return r, FromFailure, err
}

// told is what the server decides.
func (l *Limiter) told(ctx context.Context, key string, d demand) (reply, error) {
	name := l.prefix + key
	var asked question
	var p *server
	if l.mode == Cached {
		if p, _ = l.client.primary(ctx, name, l.timeout); p != nil {
			asked = l.client.denials.ask(name, p.tracker.isOpen())
		}
	}
	raw, err := l.decide(ctx, allowCommand(name, &d, l.block))
	if err != nil {
		return reply{}, err
	}
	r, err := replyOf(raw)
	if err == nil && r.granted == 0 && p != nil {
		wanted := d
		p.tracker.denied(name, &wanted, r, asked, l.block, l.settings)
	}
	return r, err
}

// ready refuses limiters that New has not made, and callers who have gone.
func (l *Limiter) ready(ctx context.Context) error {
	if l == nil || l.settings == nil {
		return errNotMade
	}
	return ctx.Err()
}

// check refuses wrong costs besides.
func (l *Limiter) check(ctx context.Context, cost int64) error {
	if cost < 1 || cost > maxExact {
		return integer(cost, "cost", 1)
	}
	return l.ready(ctx)
}

// failed is what OnFailure decides; other errors are the caller's.
func (l *Limiter) failed(err error, key string, d *demand, block int64) (Decision, error) {
	r, failed := l.policy(err, key, d, block)
	if failed != nil {
		return Decision{}, failed
	}
	return l.decided(r, FromFailure), nil
}

// policy is what OnFailure decides, not counted yet. What the server still grants beyond it goes back.
func (l *Limiter) policy(err error, key string, d *demand, block int64) (reply, error) {
	if !l.decides(err) {
		keep(err)
		return reply{}, err
	}
	r, failed := l.instead(d.limit, d.cost, func(limit int64) (reply, error) {
		wanted := *d
		wanted.limit = limit
		return l.here(key, &wanted, block)
	})
	keep(err, r.granted)
	return r, failed
}

// here is what this process decides.
func (l *Limiter) here(key string, d *demand, block int64) (reply, error) {
	return l.windows.allow(key, d, block)
}

// Peek is Allow with nothing counted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.PeekN(ctx, key, 1)
}

// PeekN is AllowN of n units with nothing counted.
func (l *Limiter) PeekN(ctx context.Context, key string, n int64) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	r, source, err := l.look(ctx, key, demand{l.quota, n, false})
	if err != nil {
		return Decision{}, err
	}
	return l.decided(r, source), nil
}

// look is what a PEEK says, not counted as a decision yet.
func (l *Limiter) look(ctx context.Context, key string, d demand) (reply, Source, error) {
	look := func(limit int64) (reply, error) {
		wanted := d
		wanted.limit = limit
		return l.windows.peek(key, &wanted)
	}
	if l.client == nil {
		r, err := look(d.limit)
		return r, FromLocal, err
	}
	raw, err := l.ask(ctx, peekCommand(l.prefix+key, &d))
	if err != nil {
		if !l.decides(err) {
			return reply{}, FromFailure, err
		}
		r, err := l.instead(d.limit, d.cost, look)
		return r, FromFailure, err
	}
	r, err := replyOf(raw)
	return r, FromServer, err
}

// Record counts n units whatever the limit says: for usage that is known only afterwards. When the server does not
// answer, that is an error, whatever OnFailure says. In mode Eventual the server gets it later.
func (l *Limiter) Record(ctx context.Context, key string, n int64) (Decision, error) {
	return l.RecordAged(ctx, key, n, 0)
}

// RecordAged is Record of units that were used so long ago, in whole milliseconds.
func (l *Limiter) RecordAged(ctx context.Context, key string, n int64, age time.Duration) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	ago, err := milliseconds(age, "age", 0)
	if err != nil {
		return Decision{}, err
	}
	r, source, err := l.record(ctx, key, &demand{l.quota, n, false}, ago)
	if err != nil {
		return Decision{}, err
	}
	return l.decided(r, source), nil
}

func (l *Limiter) record(ctx context.Context, key string, d *demand, age int64) (reply, Source, error) {
	if l.client == nil {
		r, err := l.windows.record(key, d, age, l.block)
		return r, FromLocal, err
	}
	if l.eventual != nil {
		r, err := l.eventual.record(l.prefix+key, d, age)
		return r, FromEventual, err
	}
	raw, err := l.ask(ctx, recordCommand(l.prefix+key, d, age, l.block))
	if err != nil {
		return reply{}, FromServer, err
	}
	r, err := replyOf(raw)
	return r, FromServer, err
}

// Refund gives back up to n units, the newest first; how many were given back. It is never sent twice.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) (int64, error) {
	return l.refund(ctx, key, n, -1)
}

// RefundAged gives back units that were counted so long ago, in whole milliseconds: it takes nobody else's younger
// units while the age is not understated.
func (l *Limiter) RefundAged(ctx context.Context, key string, n int64, age time.Duration) (int64, error) {
	ago, err := milliseconds(age, "age", 0)
	if err != nil {
		return 0, err
	}
	return l.refund(ctx, key, n, ago)
}

func (l *Limiter) refund(ctx context.Context, key string, n, age int64) (int64, error) {
	if err := integer(n, "units", 1); err != nil {
		return 0, err
	}
	if err := l.ready(ctx); err != nil {
		return 0, err
	}
	if l.client == nil {
		return l.windows.refund(key, n, age), nil
	}
	unsent := int64(0)
	if l.eventual != nil && age < 0 {
		if unsent = l.eventual.takeBack(l.prefix+key, &l.quota, n); unsent == n {
			return n, nil
		}
	}
	var dated []string
	if age >= 0 {
		dated = []string{"AGE", ms(age)}
	}
	sent, err := integerOf(l.change(ctx, refundCommand(l.prefix+key, n-unsent, dated...)))
	return unsent + sent, err
}

// Block blocks a key from now on for so long, in whole milliseconds. It returns when that ends.
func (l *Limiter) Block(ctx context.Context, key string, d time.Duration) (time.Time, error) {
	return l.blocked(ctx, key, d, false)
}

// BlockUnlessBlocked is Block of a key that is not blocked; else the block stays as it is.
func (l *Limiter) BlockUnlessBlocked(ctx context.Context, key string, d time.Duration) (time.Time, error) {
	return l.blocked(ctx, key, d, true)
}

func (l *Limiter) blocked(ctx context.Context, key string, d time.Duration, unless bool) (time.Time, error) {
	length, err := milliseconds(d, "duration", 1)
	if err == nil {
		err = l.ready(ctx)
	}
	if err != nil {
		return time.Time{}, err
	}
	if l.client == nil {
		return time.Now().Add(duration(l.windows.block(key, length, unless))), nil
	}
	until, err := integerOf(l.change(ctx, blockCommand(l.prefix+key, length, unless)))
	if err != nil {
		return time.Time{}, err
	}
	return time.UnixMilli(until), nil
}

// Unblock lifts a key's block, and tells whether there was one.
func (l *Limiter) Unblock(ctx context.Context, key string) (bool, error) {
	if err := l.ready(ctx); err != nil {
		return false, err
	}
	if l.client == nil {
		return l.windows.unblock(key), nil
	}
	lifted, err := integerOf(l.change(ctx, unblockCommand(l.prefix+key)))
	return lifted == 1, err
}

// Reset forgets all that a key holds: its counts and its block.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	l.windows.forget(key)
	return l.reset(ctx, key)
}

func (a asker) reset(ctx context.Context, key string) error {
	if a.client == nil {
		return nil
	}
	_, err := a.change(ctx, unlinkCommand(a.prefix+key))
	return err
}

func integerOf(raw any, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	if n, ok := integral(raw); ok {
		return n, nil
	}
	return 0, unexpected(raw)
}
