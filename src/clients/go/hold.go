package swlimit

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	leastTTL    = 3000 // ms
	mostIDs     = 1000 // are renewed by one command
	renewPart   = 3    // a hold is renewed when a third of its time to live has passed
	renewAgain  = 10   // without an answer, again after so much of it
	mostHolders = 10_000
)

// Holds limit how many units of a key are held at once: streams, jobs, seats of a plan.
type Holds struct {
	asker
	limit, ttl int64
	local      *localHolds
}

// NewHolds returns a limiter of so many units at once. A hold is renewed until it is released; one that is not renewed,
// because its process died, ends after ttl: 3 s … 3650 days, in whole milliseconds.
func NewHolds(client *Client, limit int64, ttl time.Duration, options ...Option) (*Holds, error) {
	if err := integer(limit, "limit", 0); err != nil {
		return nil, err
	}
	lasts, err := milliseconds(ttl, "ttl", leastTTL)
	if err != nil {
		return nil, err
	}
	usual := defaults()
	usual.timeout, usual.onFailure = time.Second, FailError
	asker, err := newAsker(client, usual, options)
	if err != nil {
		return nil, err
	}
	if asker.block != 0 || asker.warmUp.duration != 0 || asker.coldGiven {
		return nil, wrong("holds do not block, nor warm up")
	}
	if asker.mode == Eventual {
		return nil, wrong("mode eventual is one of rates")
	}
	return &Holds{asker, limit, lasts, &localHolds{taken: map[string]int64{}}}, nil
}

// A Hold is units that are held until Release.
type Hold struct {
	// ID is what its holder is known by at the server.
	ID string
	// Token is larger than that of every hold granted on this key before; 0 where the server was not asked.
	Token int64
	// Units is how many are held.
	Units int64
	// Source says who granted it.
	Source Source

	key     string
	ttl     int64
	timeout time.Duration
	client  *Client // nil: it is this process's
	release func()
	ctx     context.Context
	cancel  context.CancelCauseFunc
	once    sync.Once
	since   time.Duration // when the server was asked last that then said it is live; guarded by the renewer
	until   time.Duration // since when it is not renewed any more; 0: it always is
}

// Context is cancelled when the hold is released or lost, with the cause ErrLost when it is lost. It has the values of
// the context that the hold was asked for with.
func (h *Hold) Context() context.Context {
	if !h.isMade() {
		return notHeld
	}
	return h.ctx
}

// isMade tells whether it was granted by Holds or Admit.
func (h *Hold) isMade() bool { return h != nil && h.ctx != nil }

// notHeld is the context of what is no hold.
var notHeld = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNotMade)
	return ctx
}()

// Done is closed when the hold is released or lost.
func (h *Hold) Done() <-chan struct{} { return h.Context().Done() }

// Live tells whether it is held still, by a clock that goes on while the machine sleeps. Ask before what must not be
// done twice: Done may come late.
func (h *Hold) Live() bool {
	return h.Context().Err() == nil && (h.client == nil || h.client.renewer.live(h))
}

// Release gives the units back. Further calls do nothing. While the server does not answer, the release is
// repeated until the hold ends by its time.
func (h *Hold) Release() { h.end(nil, func(release func()) { release() }) }

// ReleaseSoon is Release that waits for nothing: Close of the Client waits for it.
func (h *Hold) ReleaseSoon() { h.end(nil, h.soon) }

// soon runs what Close of the Client waits for.
func (h *Hold) soon(f func()) {
	if h.client == nil {
		f()
	} else {
		h.client.settle(f)
	}
}

func (h *Hold) end(cause error, run func(release func())) {
	if !h.isMade() {
		return
	}
	h.once.Do(func() {
		lost := h.ctx.Err() != nil
		h.over(cause)
		if !lost || h.client != nil {
			run(h.release)
		}
	})
}

// endAfter has a hold of this process released, and lost, after so much time; 0: never.
func (h *Hold) endAfter(age time.Duration) {
	if age > 0 {
		timer := time.AfterFunc(age, func() { h.end(ErrLost, h.soon) })
		context.AfterFunc(h.ctx, func() { timer.Stop() })
	}
}

// over ends it here, without a word to the server.
func (h *Hold) over(cause error) {
	if h.client != nil {
		h.client.renewer.remove(h)
	}
	h.cancel(cause)
}

// lifetime is for how long after the server was asked a hold is sure: a thousandth less, because clocks drift.
func lifetime(ttl int64) time.Duration {
	d := time.Duration(ttl) * time.Millisecond
	return d - d/1000
}

// Acquire takes one unit, and waits for its turn until ctx's deadline. A denial is ErrDenied.
func (h *Holds) Acquire(ctx context.Context, key string) (*Hold, error) {
	return h.AcquireN(ctx, key, 1)
}

// AcquireN is Acquire of n units.
func (h *Holds) AcquireN(ctx context.Context, key string, n int64) (*Hold, error) {
	return h.take(ctx, key, n, leftUntil(ctx))
}

// TryAcquire is Acquire without a wait.
func (h *Holds) TryAcquire(ctx context.Context, key string) (*Hold, error) {
	return h.TryAcquireN(ctx, key, 1)
}

// TryAcquireN is TryAcquire of n units.
func (h *Holds) TryAcquireN(ctx context.Context, key string, n int64) (*Hold, error) {
	return h.take(ctx, key, n, func() time.Duration { return 0 })
}

// ready refuses limiters that NewHolds has not made, and callers who have gone.
func (h *Holds) ready(ctx context.Context) error {
	if h == nil || h.settings == nil {
		return errNotMade
	}
	return ctx.Err()
}

// wish describes a new hold.
type wish struct {
	key, id   string
	cost, ttl int64
}

func (h *Holds) wish(key string, cost int64) wish {
	return wish{h.prefix + key, freshID(), cost, h.ttl}
}

// freshID is one acquisition's: a late release takes nobody else's units.
func freshID() string { return rand.Text() }

func (h *Holds) take(ctx context.Context, key string, cost int64, left func() time.Duration) (*Hold, error) {
	if err := integer(cost, "cost", 1); err != nil {
		return nil, err
	}
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	w := h.wish(key, cost)
	if h.client == nil {
		return h.takeHere(ctx, w, left)
	}
	hold, err := h.ask(ctx, w, left)
	switch {
	case isOver(err):
		return nil, &DeniedError{Decision: unknown(0, h.limit, unknownMS).decision(FromFailure)}
	case !h.decides(err):
		return hold, err
	}
	return h.heldHere(ctx, w, FromFailure)
}

// ask takes a hold of the server's: at once, or in its turn.
func (h *Holds) ask(ctx context.Context, w wish, left func() time.Duration) (*Hold, error) {
	if left() == 0 {
		r, since, err := h.once(ctx, w)
		if err != nil {
			return nil, err
		}
		return h.held(ctx, w, r, since)
	}
	type outcome struct {
		numbers [6]int64
		since   time.Duration
		hold    *Hold // that of a wait
	}
	waits := waiter[outcome]{
		client: h.client, line: w.key, left: left, spare: h.timeout,
		ask: func(bool) (outcome, bool, error) {
			w.id = freshID()
			r, since, err := h.once(ctx, w)
			return outcome{r, since, nil}, r[0] > 0 || r[3] < 0 || left() == 0, err
		},
		rest: func(denied outcome) (outcome, bool, error) {
			hold, err := h.inTurn(ctx, w, denied.numbers, left)
			return outcome{hold: hold}, hold != nil, err
		},
	}
	found, err := waits.run(ctx)
	switch {
	case err != nil:
		return nil, err
	case found.hold != nil:
		return found.hold, nil
	}
	return h.held(ctx, w, found.numbers, found.since)
}

// inTurn waits after a denial: in the server's queue, or where that has none until units may have been released.
// Without a hold and an error it is time to ask again.
func (h *Holds) inTurn(ctx context.Context, w wish, denied [6]int64, left func() time.Duration) (*Hold, error) {
	p, err := h.client.primary(ctx, w.key, h.timeout)
	if err == nil && p.backend() == byScript {
		return nil, h.client.waits.poll(ctx, p, w.key, min(left(), duration(denied[3])), h.timeout)
	}
	hold, err := h.queued(ctx, w, left)
	if hold == nil && err == nil {
		err = h.client.pause(ctx, min(poll, left()))
	}
	return hold, err
}

// queued waits in the server's queue; nil means: try again.
func (h *Holds) queued(ctx context.Context, w wish, left func() time.Duration) (*Hold, error) {
	raw, err := h.client.waits.ask(ctx, w.key, left, func(ms int64) command {
		return holdCommand(w.key, h.limit, w.ttl, w.id, w.cost, min(ms, longestWait.Milliseconds()))
	}, h.settings)
	if err != nil || raw == nil {
		return nil, err
	}
	r, err := integersOf(raw, 6)
	if err != nil || r[0] == 0 {
		if err == nil && (left() == 0 || r[3] < 0) {
			return h.held(ctx, w, r, 0)
		}
		return nil, err
	}
	// The time to live runs from the grant, which may be older than its reply.
	renewed := sinceBoot()
	raw, err = h.asker.ask(ctx, renewCommand(w.key, w.ttl, []string{w.id}))
	if err != nil { // also one that kept the command from being sent
		h.client.insist(releaseCommand(w.key, w.id), w.ttl, h.timeout)
		return nil, err
	}
	if list, ok := raw.([]any); !ok || len(list) != 1 || list[0] != int64(1) {
		return nil, nil
	}
	return h.held(ctx, w, r, renewed)
}

func (h *Holds) once(ctx context.Context, w wish) (numbers [6]int64, since time.Duration, err error) {
	since = sinceBoot()
	raw, err := h.asker.ask(ctx, holdCommand(w.key, h.limit, w.ttl, w.id, w.cost, -1))
	if err != nil {
		return numbers, since, err
	}
	numbers, err = integersOf(raw, 6)
	return numbers, since, err
}

// held is the hold that the server granted or denied, when it was asked then.
func (h *Holds) held(ctx context.Context, w wish, r [6]int64, since time.Duration) (*Hold, error) {
	decision := h.decided(reply{r[0], r[1], r[2], r[3], unknownMS}, FromServer)
	if r[0] == 0 {
		return nil, &DeniedError{Decision: decision}
	}
	return h.renewed(ctx, w, r[5], since, 0)
}

// renewed is a hold that the server granted, renewed for so long at most; 0: until it is released.
func (h *Holds) renewed(ctx context.Context, w wish, token int64, since, maxAge time.Duration) (*Hold, error) {
	hold := h.made(ctx, w, FromServer)
	hold.Token, hold.since, hold.client = token, since, h.client
	if maxAge > 0 {
		hold.until = since + maxAge
	}
	hold.release = func() {
		cmd := releaseCommand(w.key, w.id)
		_, err := h.client.ask(h.client.ctx, cmd, asking{timeout: h.timeout, always: true})
		if errors.Is(err, ErrUnavailable) {
			h.client.insist(cmd, w.ttl, h.timeout)
		}
	}
	if !h.client.renewer.add(hold) {
		h.client.insist(releaseCommand(w.key, w.id), w.ttl, h.timeout)
		return nil, ErrClosed
	}
	return hold, nil
}

func (h *Holds) made(ctx context.Context, w wish, source Source) *Hold {
	hold := &Hold{ID: w.id, Units: w.cost, Source: source, key: w.key, ttl: w.ttl, timeout: h.timeout}
	hold.ctx, hold.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return hold
}

// heldHere is what this process decides.
func (h *Holds) heldHere(ctx context.Context, w wish, source Source) (*Hold, error) {
	take := func(limit int64) (reply, error) { return h.local.take(w.key, limit, w.cost, true), nil }
	var r reply
	if source == FromLocal {
		r, _ = take(h.limit)
	} else {
		r, _ = h.instead(h.limit, w.cost, take)
	}
	decision := h.decided(r, source)
	if r.granted == 0 {
		return nil, &DeniedError{Decision: decision}
	}
	hold := h.made(ctx, w, source)
	hold.release = func() {
		if source == FromLocal || h.onFailure == FailLocal {
			h.local.give(w.key, w.cost)
		}
	}
	return hold, nil
}

func (h *Holds) takeHere(ctx context.Context, w wish, left func() time.Duration) (*Hold, error) {
	for {
		freed := h.local.freed()
		hold, err := h.heldHere(ctx, w, FromLocal)
		if err == nil || left() == 0 || w.cost > h.limit {
			return hold, err
		}
		timer := time.NewTimer(left())
		select {
		case <-freed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
	}
}

// A Holder is somebody who holds units of a key.
type Holder struct {
	ID                 string
	Units, Token       int64
	HeldFor, ExpiresIn time.Duration
}

// Holders are those who hold units of a key, the oldest first: at most so many of them, 1 … 10,000.
func (h *Holds) Holders(ctx context.Context, key string, most int64) ([]Holder, error) {
	if most < 1 || most > mostHolders {
		return nil, wrong("most must be from 1 to %d, not %d", mostHolders, most)
	}
	if err := h.ready(ctx); err != nil || h.client == nil {
		return nil, err
	}
	raw, err := h.asker.ask(ctx, holdersCommand(h.prefix+key, most))
	if err != nil {
		return nil, err
	}
	list, _ := raw.([]any)
	holders := make([]Holder, 0, len(list))
	for _, each := range list {
		fields, _ := each.([]any)
		if len(fields) != 5 {
			return nil, unexpected(raw)
		}
		id, _ := fields[0].(string)
		var n [4]int64
		for i := range n {
			n[i], _ = fields[i+1].(int64)
		}
		holders = append(holders, Holder{id, n[0], n[3], duration(n[1]), duration(n[2])})
	}
	return holders, nil
}

// Reset ends all holds of a key, those of other processes too.
func (h *Holds) Reset(ctx context.Context, key string) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	h.local.give(h.prefix+key, maxExact)
	return h.reset(ctx, key)
}

// localHolds are those of this process.
type localHolds struct {
	mu     sync.Mutex
	taken  map[string]int64
	change chan struct{} // closed when units are given back
}

func (l *localHolds) take(key string, limit, cost int64, count bool) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := max(0, limit-l.taken[key])
	switch {
	case cost > limit:
		return reply{0, limit, left, -1, unknownMS}
	case cost > left:
		return reply{0, limit, left, unknownMS, unknownMS}
	case count:
		l.taken[key] += cost
		left -= cost
	}
	return reply{cost, limit, left, 0, unknownMS}
}

func (l *localHolds) give(key string, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken[key] -= cost; l.taken[key] <= 0 {
		delete(l.taken, key)
	}
	if l.change != nil {
		close(l.change)
		l.change = nil
	}
}

// freed is closed when units are given back for the next time.
func (l *localHolds) freed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.change == nil {
		l.change = make(chan struct{})
	}
	return l.change
}

// renewer renews the holds of a Client, all of a key in one command, and ends those that could not be renewed in time.
type renewer struct {
	client *Client

	mu      sync.Mutex
	groups  map[groupKey]*group
	running bool
	closed  bool
	wake    chan struct{}
}

type groupKey struct {
	key string
	ttl int64
}

type group struct {
	holds map[*Hold]bool
	due   time.Duration
}

func (r *renewer) add(h *Hold) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if r.groups == nil {
		r.groups, r.wake = map[groupKey]*group{}, make(chan struct{}, 1)
	}
	key := groupKey{h.key, h.ttl}
	due := h.since + time.Duration(h.ttl)*time.Millisecond/renewPart
	g := r.groups[key]
	if g == nil {
		g = &group{map[*Hold]bool{}, due}
		r.groups[key] = g
	}
	g.holds[h] = true
	g.due = min(g.due, due)
	if !r.running {
		r.running = r.client.spawn(r.run)
	}
	r.poke()
	return r.running
}

func (r *renewer) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *renewer) remove(h *Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := groupKey{h.key, h.ttl}
	if g := r.groups[key]; g != nil {
		if delete(g.holds, h); len(g.holds) == 0 {
			delete(r.groups, key)
			r.poke() // so that nothing runs while nothing is held
		}
	}
}

// renews tells whether it is young enough to be renewed.
func (h *Hold) renews(at time.Duration) bool { return h.until == 0 || at < h.until }

func (r *renewer) live(h *Hold) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sinceBoot()-h.since < lifetime(h.ttl)
}

// releaseAll ends all holds of the Client, before it closes.
func (r *renewer) releaseAll() {
	r.mu.Lock()
	r.closed = true
	var all []*Hold
	for _, g := range r.groups {
		for h := range g.holds {
			all = append(all, h)
		}
	}
	r.mu.Unlock()
	for _, h := range all {
		r.client.settle(h.Release)
	}
}

func (r *renewer) run() {
	for {
		at := sinceBoot()
		next := at + time.Hour
		var lost []*Hold
		r.mu.Lock()
		if len(r.groups) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		for key, g := range r.groups {
			for h := range g.holds {
				if ends := h.since + lifetime(h.ttl); ends <= at {
					lost = append(lost, h)
				} else {
					next = min(next, ends)
				}
			}
			if g.due <= at {
				g.due = at + time.Duration(key.ttl)*time.Millisecond/renewAgain
				holds := make([]*Hold, 0, len(g.holds))
				for h := range g.holds {
					if h.renews(at) {
						holds = append(holds, h)
					}
				}
				r.client.spawn(func() { r.renew(key, holds) })
			}
			next = min(next, g.due)
		}
		r.mu.Unlock()
		for _, h := range lost {
			if h.over(ErrLost); h.renews(at) {
				r.client.log().Warn("a hold is lost, as it could not be renewed in time", "event", "lost", "key", h.key)
			}
		}
		timer := time.NewTimer(next - sinceBoot())
		select {
		case <-timer.C:
		case <-r.wake:
		case <-r.client.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// renew asks no breaker: a hold ends at its time, and not before.
func (r *renewer) renew(key groupKey, holds []*Hold) {
	for some := range slices.Chunk(holds, mostIDs) {
		ids := make([]string, len(some))
		timeout := time.Duration(0)
		for i, h := range some {
			ids[i], timeout = h.ID, max(timeout, h.timeout)
		}
		since := sinceBoot()
		raw, err := r.client.ask(r.client.ctx, renewCommand(key.key, key.ttl, ids), asking{timeout: timeout, always: true})
		live, ok := raw.([]any)
		if err != nil || !ok || len(live) != len(some) {
			return // which is done again soon
		}
		r.mu.Lock()
		var lost []*Hold
		g := r.groups[key]
		for i, h := range some {
			switch {
			case g == nil || !g.holds[h]: // released meanwhile
			case live[i] == int64(1):
				h.since = max(h.since, since)
			default:
				lost = append(lost, h)
			}
		}
		if g != nil {
			oldest := since
			for h := range g.holds {
				if h.renews(since) {
					oldest = min(oldest, h.since)
				}
			}
			g.due = oldest + time.Duration(key.ttl)*time.Millisecond/renewPart
		}
		r.mu.Unlock()
		for _, h := range lost {
			h.over(ErrLost)
		}
		r.poke()
	}
}
