package swlimit

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// A Decider says where decisions are made: the value of [Mode] and of [OnFailure].
type Decider string

const (
	// Direct asks the server for every request.
	Direct Decider = "direct"
	// Cached asks for every one but those that are known to be denied. It is the mode unless another is given.
	Cached Decider = "cached"
	// Local decides in this process alone: as a mode with the whole limit, when the server fails with part of it.
	Local Decider = "local"
	// Allow grants everything while the server does not answer.
	Allow Decider = "allow"
	// Deny denies everything while the server does not answer.
	Deny Decider = "deny"
	// Error returns an error that is [ErrUnavailable] while the server does not answer.
	Error Decider = "error"
)

// settings are the options, complete and checked.
type settings struct {
	mode, onFailure Decider
	localShare      float64
	timeout         time.Duration
	maxKeys         int64
	maxWaiting      int
	maxUntrackedAge time.Duration
	prefix, name    string
	block           int64 // ms; 0: none
	warmUp          int64 // ms; 0: none
	cold            float64
	coldGiven       bool
}

// An Option changes what a limiter does.
type Option func(*settings) error

// Mode says where decisions are made: [Direct], [Cached] or [Local].
func Mode(d Decider) Option {
	return func(s *settings) error {
		s.mode = d
		if !slices.Contains([]Decider{Direct, Cached, Local}, d) {
			return wrong("mode must be direct, cached or local, not %q", d)
		}
		return nil
	}
}

// OnFailure says what decides while the server does not answer: [Local] (unless another is given), [Allow], [Deny] or
// [Error].
func OnFailure(d Decider) Option {
	return func(s *settings) error {
		s.onFailure = d
		if !slices.Contains([]Decider{Local, Allow, Deny, Error}, d) {
			return wrong("on failure must be local, allow, deny or error, not %q", d)
		}
		return nil
	}
}

// LocalShare is the part of the limit that this process grants with OnFailure(Local): 0.000001 … 1, 0.1 unless another
// is given.
func LocalShare(part float64) Option {
	return func(s *settings) error {
		s.localShare = part
		if !(part >= 0.000001 && part <= 1) {
			return wrong("local share must be a number between 0.000001 and 1, not %v", part)
		}
		return nil
	}
}

// Timeout is the longest that a request waits for the server, in whole milliseconds: 50 ms unless another is given.
func Timeout(d time.Duration) Option {
	return func(s *settings) error {
		s.timeout = d
		_, err := milliseconds(d, "timeout", 1)
		return err
	}
}

// MaxKeys is the most keys that this process remembers: 100,000 unless another number is given.
func MaxKeys(n int64) Option {
	return func(s *settings) error {
		s.maxKeys = n
		return integer(n, "max keys", 1)
	}
}

// MaxWaiting is the most connections on which calls of Wait and Acquire wait for their turn: 10 unless another number
// is given. All limiters of a Conn share them.
func MaxWaiting(n int) Option {
	return func(s *settings) error {
		s.maxWaiting = n
		return integer(int64(n), "max waiting", 1)
	}
}

// MaxUntrackedAge is the longest that a denial is remembered whose end the server does not tell, in whole milliseconds:
// 100 ms unless another is given.
func MaxUntrackedAge(d time.Duration) Option {
	return func(s *settings) error {
		s.maxUntrackedAge = d
		_, err := milliseconds(d, "max untracked age", 0)
		return err
	}
}

// Prefix is put before every key.
func Prefix(text string) Option {
	return func(s *settings) error {
		s.prefix = text
		return nil
	}
}

// Name is the limiter's name in the headers of responses: "default" unless another is given.
func Name(text string) Option {
	return func(s *settings) error {
		s.name = text
		return nil
	}
}

// BlockFor blocks a key for so long, in whole milliseconds, when a request is denied.
func BlockFor(d time.Duration) Option {
	return func(s *settings) (err error) {
		s.block, err = milliseconds(d, "block", 1)
		return err
	}
}

// WarmUp has a limit begin at a third of it when a key was idle, and rise to all of it within so long, in whole
// milliseconds: for what is slow at first, such as caches and pools of connections. It takes at least ten windows.
func WarmUp(d time.Duration) Option {
	return func(s *settings) (err error) {
		s.warmUp, err = milliseconds(d, "warm up", 1)
		return err
	}
}

// Cold says at which part of the limit a [WarmUp] begins: one of so many parts, above 1 and at most 1000, 3 unless
// another is given.
func Cold(parts float64) Option {
	return func(s *settings) error {
		s.cold, s.coldGiven = parts, true
		return nil
	}
}

func settingsOf(conn *Conn, options []Option) (*settings, error) {
	s := &settings{mode: Cached, onFailure: Local, localShare: 0.1, timeout: 50 * time.Millisecond, maxKeys: 100_000,
		maxWaiting: 10, maxUntrackedAge: 100 * time.Millisecond, name: "default", cold: usualCold}
	if conn == nil {
		s.mode = Local
	}
	for _, option := range options {
		if err := option(s); err != nil {
			return nil, err
		}
	}
	if conn == nil && s.mode != Local {
		return nil, wrong("mode %q needs a Conn", s.mode)
	}
	return s, nil
}

// asker is what all kinds of limiters have in common.
type asker struct {
	*settings
	conn   *Conn // nil: this process decides
	counts *[4]atomic.Int64
}

func newAsker(conn *Conn, options []Option) (asker, error) {
	s, err := settingsOf(conn, options)
	if err != nil {
		return asker{}, err
	}
	if s.mode == Local {
		conn = nil
	}
	if conn != nil {
		conn.denials.atMost(s.maxKeys)
	}
	return asker{s, conn, new([4]atomic.Int64)}, nil
}

// Statistics says how many decisions were made by whom.
type Statistics struct {
	Server, Cache, Failure, Local int64
	// TakenOver is how many keys the Conn has handed from the script to the module, for all its limiters.
	TakenOver int64
}

// Statistics says how many decisions were made by whom, since the limiter was made.
func (a asker) Statistics() Statistics {
	s := Statistics{a.counts[0].Load(), a.counts[1].Load(), a.counts[2].Load(), a.counts[3].Load(), 0}
	if a.conn != nil {
		s.TakenOver = a.conn.takenOver.Load()
	}
	return s
}

func (a asker) decided(r reply, source Source) Decision {
	at := 0
	switch source {
	case FromCache:
		at = 1
	case FromFailure:
		at = 2
	case FromLocal:
		at = 3
	}
	a.counts[at].Add(1)
	return r.decision(source)
}

func (a asker) ask(ctx context.Context, cmd command) (any, error) {
	return a.conn.ask(ctx, cmd, asking{timeout: a.timeout})
}

// askFor asks for a caller that may wait: who was denied before gets that denial when the reply comes too late.
func (a asker) askFor(ctx context.Context, cmd command, waited bool) (any, error) {
	return a.conn.ask(ctx, cmd, asking{timeout: a.timeout, returns: waited})
}

func (a asker) change(ctx context.Context, cmd command) (any, error) {
	return a.conn.change(ctx, cmd, a.timeout)
}

// decides tells whether OnFailure decides in place of an error.
func (a asker) decides(err error) bool {
	return errors.Is(err, ErrUnavailable) && a.onFailure != Error
}

// countsHere tells whether this process counts what it decides in place of a server.
func (a asker) countsHere() bool { return a.conn == nil || a.onFailure == Local }

// instead is what OnFailure decides of a cost, where count asks what this process counts of so many units.
func (a asker) instead(limit, cost int64, count func(limit int64) (reply, error)) (reply, error) {
	switch a.onFailure {
	case Allow:
		return unknown(cost, limit, 0), nil
	case Deny:
		return unknown(0, limit, unknownMS), nil
	}
	return count(shareOf(limit, a.localShare))
}

// A Limiter decides for one quota and any number of keys. All its methods may be called by several goroutines at once.
type Limiter struct {
	asker
	quota   quota
	windows *windows
	warming *warming // nil: none
	owned   *Conn    // what Close closes
}

// New returns a limiter. Limiters are cheap to make, need not be closed, and share what the Conn knows. Without a Conn,
// that is with nil, this process decides alone.
func New(conn *Conn, q Quota, options ...Option) (*Limiter, error) {
	checked, err := q.checked()
	if err != nil {
		return nil, err
	}
	asker, err := newAsker(conn, options)
	if err != nil {
		return nil, err
	}
	warming, err := newWarming(asker.settings, &checked)
	if err != nil {
		return nil, err
	}
	return &Limiter{asker: asker, quota: checked, windows: newWindows(asker.maxKeys), warming: warming}, nil
}

// With returns a limiter of the same keys and options with another quota: for limits that depend on who asks. The key's
// window should stay one.
func (l *Limiter) With(q Quota) (*Limiter, error) {
	checked, err := q.checked()
	if err != nil {
		return nil, err
	}
	if l.warming != nil {
		if err := l.warming.checked(checked.window); err != nil {
			return nil, err
		}
	}
	return &Limiter{asker: l.asker, quota: checked, windows: l.windows, warming: l.warming}, nil
}

// Name is the limiter's name in the headers of responses.
func (l *Limiter) Name() string { return l.name }

// Quota is the limiter's quota, with its resolution.
func (l *Limiter) Quota() Quota {
	q := l.quota
	return Quota{q.limit, duration(q.window), duration(q.resolution), q.strict}
}

// Allow decides one unit, and counts it if it is granted. A denial is no error.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.allow(ctx, key, demand{l.quota, 1, false})
}

// AllowN is Allow of n units, all or none of them.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.allow(ctx, key, demand{l.quota, n, false})
}

// AllowAtMost grants as many of n units as fit.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	return l.allow(ctx, key, demand{l.quota, n, true})
}

func (l *Limiter) allow(ctx context.Context, key string, d demand) (Decision, error) {
	if err := l.check(ctx, d.cost); err != nil {
		return Decision{}, err
	}
	if l.warming != nil && d.least() <= d.limit {
		return l.allowWarming(ctx, key, d)
	}
	if l.conn == nil {
		r, err := l.here(key, &d, l.block)
		if err != nil {
			return Decision{}, err
		}
		return l.decided(r, FromLocal), nil
	}
	if r, ok := l.known(key, &d); ok {
		return l.decided(r, FromCache), nil
	}
	r, source, err := l.answered(ctx, key, d)
	if err != nil {
		return Decision{}, err
	}
	return l.decided(r, source), nil
}

// known is a denial that is known without asking.
func (l *Limiter) known(key string, d *demand) (reply, bool) {
	if l.mode != Cached {
		return reply{}, false
	}
	return l.conn.denials.find(l.prefix+key, d, l.block > 0, d.limit < l.quota.limit)
}

// answered is what the server decides, or OnFailure in its place.
func (l *Limiter) answered(ctx context.Context, key string, d demand) (reply, Source, error) {
	r, err := l.told(ctx, key, d, false)
	if err == nil || !errors.Is(err, ErrUnavailable) {
		return r, FromServer, err
	}
	r, err = l.policy(err, key, &d, l.block)
	return r, FromFailure, err
}

// told is what the server decides.
func (l *Limiter) told(ctx context.Context, key string, d demand, waited bool) (reply, error) {
	name := l.prefix + key
	var asked question
	var p *primary
	if l.mode == Cached {
		if p, _ = l.conn.primary(ctx, name, l.timeout); p != nil {
			asked = l.conn.denials.ask(name, p.tracker.isOpen())
		}
	}
	raw, err := l.askFor(ctx, allowCommand(name, &d, l.block), waited)
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

// check refuses wrong costs, and callers who have gone.
func (l *Limiter) check(ctx context.Context, cost int64) error {
	if cost < 1 || cost > maxExact {
		return integer(cost, "cost", 1)
	}
	return ctx.Err()
}

// failed is what OnFailure decides; other errors are the caller's.
func (l *Limiter) failed(err error, key string, d *demand, block int64) (Decision, error) {
	r, failed := l.policy(err, key, d, block)
	if failed != nil {
		return Decision{}, failed
	}
	if r.granted > 0 {
		keep(err)
	}
	return l.decided(r, FromFailure), nil
}

// policy is what OnFailure decides, not counted yet.
func (l *Limiter) policy(err error, key string, d *demand, block int64) (reply, error) {
	if !l.decides(err) {
		return reply{}, err
	}
	return l.instead(d.limit, d.cost, func(limit int64) (reply, error) {
		wanted := *d
		wanted.limit = limit
		return l.here(key, &wanted, block)
	})
}

// here is what this process decides.
func (l *Limiter) here(key string, d *demand, block int64) (reply, error) {
	e, held := l.windows.lock(key)
	defer held.mu.Unlock()
	return e.allow(d, clock(), block)
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
	full := l.quota
	d := demand{full, n, false}
	if n <= full.limit {
		d.limit = l.warming.ask(key, &full)
	}
	r, source, err := l.look(ctx, key, d)
	if err != nil {
		return Decision{}, err
	}
	counted := r
	counted.granted = 0
	l.warming.feed(key, &full, counted, source)
	if n > d.limit {
		l.warming.later(key, &full, &r, n)
	}
	return l.decided(r, source), nil
}

// look is what a PEEK says, not counted as a decision yet.
func (l *Limiter) look(ctx context.Context, key string, d demand) (reply, Source, error) {
	look := func(limit int64) (reply, error) {
		wanted := d
		wanted.limit = limit
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		return e.peek(&wanted, clock())
	}
	if l.conn == nil {
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
// answer, that is an error, whatever OnFailure says.
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
	full := l.quota
	d := demand{full, n, false}
	d.limit = l.warming.ask(key, &full)
	r, source, err := l.record(ctx, key, &d, ago)
	if err != nil {
		return Decision{}, err
	}
	counted := r
	counted.granted = 0
	l.warming.feed(key, &full, counted, source)
	l.warming.later(key, &full, &r, n)
	return l.decided(r, source), nil
}

func (l *Limiter) record(ctx context.Context, key string, d *demand, age int64) (reply, Source, error) {
	if l.conn == nil {
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		r, err := e.record(d, clock(), age, l.block)
		return r, FromLocal, err
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
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if l.conn == nil {
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		return e.refund(n, clock(), age), nil
	}
	var dated []string
	if age >= 0 {
		dated = []string{"AGE", ms(age)}
	}
	return integerOf(l.change(ctx, refundCommand(l.prefix+key, n, dated...)))
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
		err = ctx.Err()
	}
	if err != nil {
		return time.Time{}, err
	}
	if l.conn == nil {
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		at := clock()
		return time.Now().Add(duration(e.block(length, at, unless) - at)), nil
	}
	until, err := integerOf(l.change(ctx, blockCommand(l.prefix+key, length, unless)))
	if err != nil {
		return time.Time{}, err
	}
	return time.UnixMilli(until), nil
}

// Unblock lifts a key's block, and tells whether there was one.
func (l *Limiter) Unblock(ctx context.Context, key string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if l.conn == nil {
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		return e.unblock(clock()), nil
	}
	lifted, err := integerOf(l.change(ctx, unblockCommand(l.prefix+key)))
	return lifted == 1, err
}

// Reset forgets all that a key holds: its counts and its block.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.windows.forget(key)
	return l.reset(ctx, key)
}

func (a asker) reset(ctx context.Context, key string) error {
	if a.conn == nil {
		return nil
	}
	_, err := a.change(ctx, unlinkCommand(a.prefix+key))
	return err
}

func integerOf(raw any, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	n, ok := raw.(int64)
	if !ok {
		return 0, unexpected(raw)
	}
	return n, nil
}
