package swlimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"time"
)

const (
	poll        = 100 * time.Millisecond // who waits without a place in the server's queue asks again after so long
	longestWait = time.Hour              // of a HOLD

	// Where the script decides, who waits for a hold asks again at the latest after a random time between these.
	leastHoldPoll, mostHoldPoll = 20 * time.Millisecond, 60 * time.Millisecond

	forever = maxWindow * time.Millisecond
)

// elsewhere matches the end of a wait that goes on for another client; again, what a wait survives.
var (
	elsewhere = regexp.MustCompile("^UNBLOCKED (another client now waits for this id|this id waits elsewhere)")
	again     = regexp.MustCompile("^UNBLOCKED |too many clients are waiting|^WRONGTYPE ")
)

// waits are the calls that wait for their turn. A wait stalls its connection, so each has one of its own.
type waits struct {
	conn *Conn

	mu      sync.Mutex
	taken   map[*link]bool
	idle    []*link
	lines   map[string][]chan struct{} // who waits for a key in this process, the first of them at the server
	changes map[string]chan struct{}   // closed when a key changes that the first of its line watches
	closed  bool
	closing chan struct{} // closed when waits are to end
}

func (w *waits) init(conn *Conn) {
	w.conn, w.closing = conn, make(chan struct{})
	w.taken, w.lines, w.changes = map[*link]bool{}, map[string][]chan struct{}{}, map[string]chan struct{}{}
}

// turn waits until all who came before have had theirs; false when so much time has passed. Call over in all cases.
func (w *waits) turn(ctx context.Context, key string, left time.Duration) (over func(), isMine bool, err error) {
	mine := make(chan struct{})
	w.mu.Lock()
	line := append(w.lines[key], mine)
	w.lines[key] = line
	if len(line) == 1 {
		close(mine)
	}
	w.mu.Unlock()
	over = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		line := w.lines[key]
		at := slices.Index(line, mine)
		line = slices.Delete(line, at, at+1)
		switch {
		case len(line) == 0:
			delete(w.lines, key)
			delete(w.changes, key)
			return
		case at == 0:
			close(line[0])
		}
		w.lines[key] = line
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-mine:
		return over, true, nil
	default:
	}
	select {
	case <-mine:
		return over, true, nil
	case <-ctx.Done():
		return over, false, ctx.Err()
	case <-timer.C:
		return over, false, nil
	case <-w.closing:
		return over, false, ErrClosed
	}
}

// poll waits until units may have been released, where the script decides: for a random time, and for at most so long.
// A server that tells when keys change ends it at once. The first time it only asks for that: a change before it is
// seen by who asks again.
func (w *waits) poll(ctx context.Context, p *primary, key string, most, timeout time.Duration) error {
	w.mu.Lock()
	changed := w.changes[key]
	if changed == nil && p.tracker.isOpen() {
		w.changes[key] = make(chan struct{})
		w.mu.Unlock()
		watching, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		p.tracker.register(watching, key)
		return ctx.Err()
	}
	w.mu.Unlock()
	timer := time.NewTimer(min(most, leastHoldPoll+rand.N(mostHoldPoll-leastHoldPoll)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-w.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// changed wakes who watches a key.
func (w *waits) changed(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if changed, ok := w.changes[key]; ok {
		close(changed)
		delete(w.changes, key)
	}
}

// allChanged wakes all.
func (w *waits) allChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, changed := range w.changes {
		close(changed)
	}
	clear(w.changes)
}

func (w *waits) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	close(w.closing)
	for _, l := range w.idle {
		l.fail(ErrClosed)
	}
	w.idle = nil
}

// A patient is a caller that waits until it is granted, there is no hope, or its time ends.
type patient[T any] struct {
	conn *Conn
	left func() time.Duration
	// ask asks now. waited tells whether it was denied before, and gets that denial when the reply comes too late.
	ask func(waited bool) (answer T, isOver bool, err error)
	// rest waits after a denial until it is time to ask again. It may come to an answer itself.
	rest func(denied T) (answer T, isOver bool, err error)
	// looks tells whether a request that came now would be granted without the server.
	looks func() bool
}

// persist is the answer. Who was denied gets its last denial when its time ends, and an error only where the server did
// not answer then: that is for OnFailure. A caller that waits already goes on waiting without the server, unless a
// request that came now would be granted.
func (p patient[T]) persist(ctx context.Context) (T, error) {
	var last T
	var failed error
	for waited := false; ; {
		answer, isOver, err := p.ask(waited)
		if err == nil && !isOver {
			last, failed, waited = answer, nil, true
			answer, isOver, err = p.rest(last)
		}
		if err != nil && waited && errors.Is(err, ErrUnavailable) && !isTimeUp(err) {
			if failed = err; p.left() > 0 && !p.looks() {
				isOver, err = false, p.conn.pause(ctx, min(poll, p.left()))
			}
		}
		switch {
		case err != nil && waited && isTimeUp(err):
			return last, failed
		case err != nil || isOver:
			return answer, err
		}
	}
}

// pause waits so long, unless ctx ends or the Conn closes.
func (c *Conn) pause(ctx context.Context, d time.Duration) error {
	var closing chan struct{}
	if c != nil {
		closing = c.waits.closing
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask is the reply to a command that may wait. It is nil where no connection is free, or the wait ended without a
// decision: ask again then, a little later.
func (w *waits) ask(ctx context.Context, key string, left func() time.Duration, cmd func(ms int64) command,
	s *settings) (any, error) {
	c := w.conn
	p, err := c.primary(ctx, key, s.timeout)
	if err != nil {
		return nil, err
	}
	l := w.take(p, s.maxWaiting)
	if l == nil {
		return nil, nil
	}
	var asked *call
	isOver := false // else giveUp needs the connection still
	free := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.taken, l)
		if isOver && asked.err == nil && !w.closed && !l.isGone() {
			w.idle = append(w.idle, l)
		} else if asked == nil {
			l.fail(ErrClosed)
		}
	}
	defer free()
	timer := time.NewTimer(left() + s.timeout)
	defer timer.Stop()
	select {
	case <-l.ready:
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.closing:
		return nil, ErrClosed
	}
	asked = &call{command: cmd(left().Milliseconds()), done: make(chan struct{})}
	l.add(asked)
	select {
	case <-asked.done:
		isOver = true
		return w.ended(asked, l)
	case <-timer.C:
		err = nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.closing:
		err = ErrClosed
	}
	c.settle(func() { w.giveUp(asked, l, s.timeout) })
	return nil, err
}

// take is a connection to wait on; nil where so many are taken already.
func (w *waits) take(p *primary, most int) *link {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.taken) >= most {
		return nil
	}
	w.idle = slices.DeleteFunc(w.idle, (*link).isGone)
	for i, l := range w.idle {
		if l.server.Addr == p.server.Addr {
			w.idle = slices.Delete(w.idle, i, i+1)
			w.taken[l] = true
			return l
		}
	}
	if len(w.idle) > 0 && len(w.idle)+len(w.taken) >= most {
		w.idle[0].fail(ErrClosed)
		w.idle = slices.Delete(w.idle, 0, 1)
	}
	l := w.conn.connect(p.server, nil, nil)
	w.taken[l] = true
	return l
}

// leave closes the connections to a server that grants no more: who waits there asks again.
func (w *waits) leave(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.taken {
		if l.server.Addr == addr {
			l.fail(ErrClosed)
		}
	}
	for _, l := range w.idle {
		if l.server.Addr == addr {
			l.fail(ErrClosed)
		}
	}
}

// ended is what a wait came to; nil means: ask again.
func (w *waits) ended(asked *call, l *link) (any, error) {
	text, isReply := asked.err.(serverError)
	switch {
	case asked.err == nil:
		return asked.reply, nil
	case !isReply: // the connection was lost
		if asked.ending != nil {
			w.conn.insist(*asked.ending, asked.lasts, closing)
		}
		return nil, nil
	}
	l.fail(asked.err)
	switch {
	case elsewhere.MatchString(string(text)):
		return nil, RefusedError(text)
	case again.MatchString(string(text)):
		return nil, nil
	}
	return nil, understood(text)
}

// giveUp ends a wait whose caller has gone, and gives back what was granted all the same. The connection stays until
// the reply is there: a grant that is on its way arrives, and goes back where it was counted.
func (w *waits) giveUp(asked *call, l *link, timeout time.Duration) {
	defer l.fail(ErrClosed)
	c := w.conn
	ctx, cancel := context.WithTimeout(c.ctx, closing)
	defer cancel()
	if asked.ending != nil { // which ends the wait, too
		c.end(*asked.ending, asked.lasts, timeout)
		return
	}
	if p, err := c.primary(ctx, asked.key(), timeout); err != nil || p.server.Addr != l.server.Addr {
		return // elsewhere the id is another client's
	}
	_, _ = c.ask(ctx, other(asked.key(), "CLIENT", "UNBLOCK", number(l.id)),
		asking{timeout: closing, always: true})
	select {
	case <-asked.done:
	case <-ctx.Done():
		return
	}
	if asked.err == nil {
		if counted := asked.undo(asked.reply); len(counted) > 0 {
			c.giveBack(asked, counted)
		}
	}
}

// Wait is an Allow that waits for its turn, first come, first served, until ctx's deadline. It returns nil when one
// unit is granted, and only then. A denial is ErrDenied, at once where there is no hope for one before the deadline.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN is Wait for n units.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	if l.warming != nil {
		return wrong("warm_up does not go with acquire")
	}
	d := demand{l.quota, n, false}
	decision, err := l.wait(ctx, key, &d)
	switch {
	case isOver(err):
		return &DeniedError{Decision: unknown(0, d.limit, unknownMS).decision(FromFailure)}
	case err != nil:
		return err
	case !decision.Allowed():
		return &DeniedError{Decision: decision}
	}
	return nil
}

// isOver tells whether an error is the end of a caller's time before anything was known of the server.
func isOver(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable)
}

// leftUntil is how long one may wait for a caller.
func leftUntil(ctx context.Context) func() time.Duration {
	return func() time.Duration { return timeFor(ctx, forever) }
}

func (l *Limiter) wait(ctx context.Context, key string, d *demand) (Decision, error) {
	left, name := leftUntil(ctx), l.prefix+key
	inLine := l.conn != nil && d.cost <= d.limit
	if inLine {
		over, isMine, err := l.conn.waits.turn(ctx, name, left())
		defer over()
		if err != nil {
			return Decision{}, err
		}
		if !isMine {
			return l.passedOver(ctx, key, d)
		}
	}
	queues := inLine
	answer, err := patient[verdict]{
		conn: l.conn, left: left,
		ask: func(waited bool) (verdict, bool, error) {
			v, err := l.acquire(ctx, key, d, waited, &queues)
			after := v.pause()
			return v, v.reply.granted > 0 || after == Never || after > left(), err
		},
		rest: func(denied verdict) (verdict, bool, error) {
			pause := denied.pause()
			if queues {
				r, isOver, err := l.queued(ctx, name, d, left)
				if err != nil || isOver {
					return verdict{r, FromServer}, isOver, err
				}
				pause = min(poll, pause, left())
			}
			return denied, false, l.conn.pause(ctx, max(time.Millisecond, pause))
		},
		looks: func() bool { return l.grantsWithout(key, d) },
	}.persist(ctx)
	switch {
	case errors.Is(err, ErrUnavailable):
		return l.failed(err, key, d, l.block)
	case err != nil:
		return Decision{}, err
	}
	return l.decided(answer.reply, answer.source), nil
}

// A verdict is a reply, and whose it is.
type verdict struct {
	reply  reply
	source Source
}

// pause is how long to wait before asking again.
func (v verdict) pause() time.Duration {
	if after := duration(v.reply.retryAfter); after != Unknown {
		return after
	}
	return poll
}

// passedOver is the denial of a caller whose time ended before its turn came.
func (l *Limiter) passedOver(ctx context.Context, key string, d *demand) (Decision, error) {
	r, source, err := l.look(ctx, key, *d)
	switch {
	case isTimeUp(err): // which says nothing of the server
		return Decision{}, context.DeadlineExceeded
	case err != nil:
		return Decision{}, err
	case source == FromFailure:
		r = unknown(0, d.limit, unknownMS)
	}
	r.granted = 0
	return l.decided(r, source), nil
}

// acquire asks with no wait over the shared connection, so that a free key needs no place. The script has no queue.
func (l *Limiter) acquire(ctx context.Context, key string, d *demand, waited bool, queues *bool) (verdict, error) {
	if err := ctx.Err(); err != nil {
		return verdict{}, err
	}
	if *queues {
		raw, err := l.askFor(ctx, acquireCommand(l.prefix+key, d, 0), waited)
		if err == nil {
			r, err := replyOf(raw)
			return verdict{r, FromServer}, err
		}
		if !errors.Is(err, ErrModuleMissing) {
			return verdict{}, err
		}
		*queues = false
	}
	if l.conn == nil {
		r, err := l.here(key, d, l.block)
		return verdict{r, FromLocal}, err
	}
	if r, ok := l.known(key, d); ok {
		return verdict{r, FromCache}, nil
	}
	r, err := l.told(ctx, key, *d, waited)
	return verdict{r, FromServer}, err
}

// queued waits in the server's queue, until that is over or it is time to ask again.
func (l *Limiter) queued(ctx context.Context, name string, d *demand, left func() time.Duration) (reply, bool, error) {
	raw, err := l.conn.waits.ask(ctx, name, left, func(ms int64) command {
		return acquireCommand(name, d, ms)
	}, l.settings)
	if err != nil || raw == nil {
		return reply{}, false, err
	}
	r, err := replyOf(raw)
	return r, true, err
}

// grantsWithout tells whether a request would be granted now, were the server away.
func (l *Limiter) grantsWithout(key string, d *demand) bool {
	if l.onFailure == Error {
		return false
	}
	r, err := l.instead(d.limit, d.cost, func(limit int64) (reply, error) {
		wanted := *d
		wanted.limit = limit
		e, held := l.windows.lock(key)
		defer held.mu.Unlock()
		return e.peek(&wanted, clock())
	})
	return err == nil && r.granted > 0
}
