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
	client *Client

	mu      sync.Mutex
	taken   map[*connection]bool
	idle    []*connection
	lines   map[string][]*turn       // who waits for a key in this process, the first of them at the server
	changes map[string]chan struct{} // closed when a key changes that the first of its line watches
	closed  bool
	closing chan struct{} // closed when waits are to end
}

func (w *waits) init(client *Client) {
	w.client, w.closing = client, make(chan struct{})
	w.taken, w.lines, w.changes = map[*connection]bool{}, map[string][]*turn{}, map[string]chan struct{}{}
}

// A turn is a place in the line of a key.
type turn struct {
	waits *waits
	key   string
	mine  chan struct{} // closed when all who came before have had theirs
}

// join is a place at the end of a key's line. ifTaken joins only where somebody waits, and is nil where nobody does.
func (w *waits) join(key string, ifTaken bool) *turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ifTaken && len(w.lines[key]) == 0 {
		return nil
	}
	mine := &turn{w, key, make(chan struct{})}
	if w.lines[key] = append(w.lines[key], mine); len(w.lines[key]) == 1 {
		close(mine.mine)
	}
	return mine
}

// leave gives the place up: who comes next need not wait for it.
func (t *turn) leave() {
	w := t.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	line := w.lines[t.key]
	at := slices.Index(line, t)
	line = slices.Delete(line, at, at+1)
	switch {
	case len(line) == 0:
		delete(w.lines, t.key)
		delete(w.changes, t.key)
		return
	case at == 0:
		close(line[0].mine)
	}
	w.lines[t.key] = line
}

// isMine tells whether all who came before have had their turn.
func (t *turn) isMine() bool {
	select {
	case <-t.mine:
		return true
	default:
		return false
	}
}

// wait tells whether its turn comes within so much time.
func (t *turn) wait(ctx context.Context, left time.Duration) (bool, error) {
	if t.isMine() {
		return true, nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-t.mine:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.waits.closing:
		return false, ErrClosed
	}
}

// poll waits until units may have been released, where the script decides: for a random time, and for at most so long.
// A server that tells when keys change ends it at once. The first time it only asks for that: a change before it is
// seen by who asks again.
func (w *waits) poll(ctx context.Context, p *server, key string, most, timeout time.Duration) error {
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

// isClosing tells whether the Client is being closed.
func (w *waits) isClosing() bool {
	select {
	case <-w.closing:
		return true
	default:
		return false
	}
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
	for _, cn := range w.idle {
		cn.fail(ErrClosed)
	}
	w.idle = nil
}

// A waitState is what a waiter does next.
type waitState int

const (
	asksFirst waitState = iota // over the shared connection, so that a free key needs no place
	joins                      // the line of its key: it was denied, or others wait already
	asks                       // in its turn
	rests                      // after a denial, until it is time to ask again
	asksLast                   // its time ends before its turn came
	isDone
)

// A waiter is a caller that waits until it is granted, there is no hope, or its time ends. Then it gets its last
// denial, and an error only where the server was unavailable: that is for OnFailure.
type waiter[T any] struct {
	client *Client
	line   string // its key; "" where nobody waits in a line
	left   func() time.Duration
	spare  time.Duration // for the last request
	// ask asks now. waited tells whether it was denied before, and gets that denial when the reply comes too late.
	ask func(waited bool) (answer T, isOver bool, err error)
	// rest waits after a denial until it is time to ask again. It may come to an answer itself.
	rest func(denied T) (answer T, isOver bool, err error)
	// decides tells whether the policy would grant now, without the server; nil: it waits to the end.
	decides func() bool

	state    waitState
	turn     *turn
	isDenied bool
	denial   T
	failed   error // why the server did not answer after the denial
}

// run is the answer.
func (w *waiter[T]) run(ctx context.Context) (answer T, err error) {
	defer func() {
		if w.turn != nil {
			w.turn.leave()
		}
	}()
	for w.state != isDone {
		switch w.state {
		case asksFirst:
			if w.line != "" {
				w.turn = w.client.waits.join(w.line, true)
			}
			if w.turn != nil {
				w.state = joins
				continue
			}
			answer, err = w.heard(ctx)(w.ask(false))
		case joins:
			answer, err = w.denial, w.joined(ctx)
		case asks, asksLast:
			answer, err = w.heard(ctx)(w.ask(w.isDenied))
		case rests:
			answer, err = w.rested(ctx)
		}
	}
	return answer, err
}

// joined waits for its turn.
func (w *waiter[T]) joined(ctx context.Context) error {
	isFirst := w.turn == nil
	if isFirst {
		w.turn = w.client.waits.join(w.line, false)
	}
	left := w.left()
	isAlone := w.turn.isMine()
	isMine, err := w.turn.wait(ctx, left-min(w.spare, left/4))
	switch {
	case err != nil:
		w.state = isDone
	case !isMine:
		w.state = asksLast
	case isFirst && isAlone: // it was denied just now
		w.state = rests
	default:
		w.state = asks
	}
	return err
}

// heard goes on after a request.
func (w *waiter[T]) heard(ctx context.Context) func(answer T, isOver bool, err error) (T, error) {
	return func(answer T, isOver bool, err error) (T, error) {
		switch {
		case err != nil:
			return w.unanswered(ctx, answer, err)
		case isOver || w.state == asksLast:
			w.state = isDone
		case w.state == asksFirst && w.line != "":
			w.isDenied, w.denial, w.failed, w.state = true, answer, nil, joins
		default:
			w.isDenied, w.denial, w.failed, w.state = true, answer, nil, rests
		}
		return answer, nil
	}
}

// unanswered goes on where the server was unavailable: a caller that waits already waits without it, and one that waits
// to the end does, too.
func (w *waiter[T]) unanswered(ctx context.Context, answer T, err error) (T, error) {
	waits := w.isDenied || w.decides == nil
	isTimeUp := isTimeUp(err)
	if isTimeUp && w.isDenied {
		keep(err)
		w.state = isDone
		return w.denial, w.failed
	}
	if waits && !isTimeUp && errors.Is(err, ErrUnavailable) {
		if w.failed = err; w.left() > 0 && (w.decides == nil || !w.decides()) {
			if err := w.client.pause(ctx, min(poll, w.left())); err != nil && !(isOver(err) && w.isDenied) {
				w.state = isDone
				return answer, err
			}
			if w.left() > 0 { // it asks again
				keep(err)
				return answer, nil
			}
		}
	}
	w.state = isDone
	return answer, err
}

// rested asks again after a pause, unless the pause came to an answer.
func (w *waiter[T]) rested(ctx context.Context) (T, error) {
	answer, isOver, err := w.rest(w.denial)
	if err != nil {
		w.state = asks
		return w.unanswered(ctx, answer, err)
	}
	if w.state = asks; isOver {
		w.state = isDone
	}
	return answer, nil
}

// pause waits so long, unless ctx ends or the Client closes.
func (c *Client) pause(ctx context.Context, d time.Duration) error {
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
	c := w.client
	p, err := c.primary(ctx, key, s.timeout)
	if err != nil {
		return nil, err
	}
	cn := w.take(p, c.settings.maxWaiting)
	if cn == nil {
		return nil, nil
	}
	var asked *call
	isOver := false // else giveUp needs the connection still
	free := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.taken, cn)
		if isOver && asked.err == nil && !w.closed && !cn.isGone() {
			w.idle = append(w.idle, cn)
		} else if asked == nil {
			cn.fail(ErrClosed)
		}
	}
	defer free()
	timer := time.NewTimer(left() + s.timeout)
	defer timer.Stop()
	select {
	case <-cn.ready:
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.closing:
		return nil, ErrClosed
	}
	asked = &call{command: cmd(left().Milliseconds()), done: make(chan struct{})}
	cn.add(asked)
	select {
	case <-asked.done:
		isOver = true
		return w.ended(asked, cn)
	case <-timer.C:
		err = nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.closing:
		err = ErrClosed
	}
	c.settle(func() { w.giveUp(asked, cn, s.timeout) })
	return nil, err
}

// take is a connection to wait on; nil where so many are taken already.
func (w *waits) take(p *server, most int) *connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.taken) >= most {
		return nil
	}
	w.idle = slices.DeleteFunc(w.idle, (*connection).isGone)
	for i, cn := range w.idle {
		if cn.server.Addr == p.at.Addr {
			w.idle = slices.Delete(w.idle, i, i+1)
			w.taken[cn] = true
			return cn
		}
	}
	if len(w.idle) > 0 && len(w.idle)+len(w.taken) >= most {
		w.idle[0].fail(ErrClosed)
		w.idle = slices.Delete(w.idle, 0, 1)
	}
	cn := w.client.connect(nil, p.at, nil, nil)
	w.taken[cn] = true
	return cn
}

// leave closes the connections to a server that grants no more: who waits there asks again.
func (w *waits) leave(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for cn := range w.taken {
		if cn.server.Addr == addr {
			cn.fail(ErrClosed)
		}
	}
	for _, cn := range w.idle {
		if cn.server.Addr == addr {
			cn.fail(ErrClosed)
		}
	}
}

// ended is what a wait came to; nil means: ask again.
func (w *waits) ended(asked *call, cn *connection) (any, error) {
	text, isReply := asked.err.(serverError)
	switch {
	case asked.err == nil:
		return asked.reply, nil
	case !isReply: // the connection was lost
		if asked.ending != nil {
			w.client.insist(*asked.ending, asked.lasts, closing)
		}
		return nil, nil
	}
	cn.fail(asked.err)
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
func (w *waits) giveUp(asked *call, cn *connection, timeout time.Duration) {
	defer cn.fail(ErrClosed)
	c := w.client
	ctx, cancel := context.WithTimeout(c.ctx, closing)
	defer cancel()
	if asked.ending != nil { // which ends the wait, too
		c.end(*asked.ending, asked.lasts, timeout)
		return
	}
	if p, err := c.primary(ctx, asked.key(), timeout); err != nil || p.at.Addr != cn.server.Addr {
		return // elsewhere the id is another client's
	}
	_, _ = c.ask(ctx, other(asked.key(), "CLIENT", "UNBLOCK", number(cn.id)),
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
	if f := l.windows.fake; f != nil { // which decides at once
		r, err := f.allow("wait", key, *d, l.block)
		return l.decided(r, FromLocal), err
	}
	left, name := leftUntil(ctx), l.prefix+key
	queues := l.client != nil && d.cost <= d.limit
	w := waiter[verdict]{
		client: l.client, left: left, spare: l.timeout,
		ask: func(bool) (verdict, bool, error) {
			v, err := l.acquire(ctx, key, d, &queues)
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
			return denied, false, l.client.pause(ctx, max(time.Millisecond, pause))
		},
		decides: func() bool { return l.grantsWithout(key, d) },
	}
	if queues {
		w.line = name
	}
	answer, err := w.run(ctx)
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

// acquire asks with no wait over the shared connection, so that a free key needs no place. The script has no queue.
func (l *Limiter) acquire(ctx context.Context, key string, d *demand, queues *bool) (verdict, error) {
	if err := ctx.Err(); err != nil {
		return verdict{}, err
	}
	if *queues {
		raw, err := l.decide(ctx, acquireCommand(l.prefix+key, d, 0))
		if err == nil {
			r, err := replyOf(raw)
			return verdict{r, FromServer}, err
		}
		if !errors.Is(err, ErrModuleMissing) {
			return verdict{}, err
		}
		*queues = false
	}
	if l.client == nil {
		r, err := l.here(key, d, l.block)
		return verdict{r, FromLocal}, err
	}
	if r, ok := l.known(key, d); ok {
		return verdict{r, FromCache}, nil
	}
	r, err := l.told(ctx, key, *d)
	return verdict{r, FromServer}, err
}

// queued waits in the server's queue, until that is over or it is time to ask again.
func (l *Limiter) queued(ctx context.Context, name string, d *demand, left func() time.Duration) (reply, bool, error) {
	raw, err := l.client.waits.ask(ctx, name, left, func(ms int64) command {
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
	if l.onFailure == FailError {
		return false
	}
	r, err := l.instead(d.limit, d.cost, func(limit int64) (reply, error) {
		wanted := *d
		wanted.limit = limit
		return l.windows.peek(key, &wanted)
	})
	return err == nil && r.granted > 0
}
