package swlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	closing      = 1500 * time.Millisecond // Close takes so long at most, or so many round trips
	closingTrips = 6
	closingLooks = 5 * time.Millisecond
	endAgain     = 10 // what ends by an id is ended again after such a part of its time
	mostTries    = 5  // a command that was not executed is sent so often
)

// A Transport finds the servers; the Conn connects to them. [Server] is the one of a single server, [Cluster] that of a
// cluster, [Sentinel] that of the primary that sentinels name. An adapter for another library's clients makes one of
// them from the client's settings.
//
// A Transport may also have the methods Close() error, which the Conn's Close calls, Away(addr string), which is called
// again and again while a server does not answer, and OnLeave(func(addr string)), which gets a function that closes the
// connections to a server that is no longer a primary.
type Transport interface {
	// Primary is the server that has a key now.
	Primary(ctx context.Context, key string) (Server, error)
	// Moved is the server at an address to which another has redirected a key.
	Moved(ctx context.Context, addr string) (Server, error)
}

// Primary makes a Server the [Transport] of a single server.
func (s Server) Primary(context.Context, string) (Server, error) { return s, nil }

// Moved says that a single server redirects nowhere.
func (s Server) Moved(context.Context, string) (Server, error) {
	return Server{}, errors.New("the server is one of a cluster")
}

// A Conn is what limiters share: connections to a server, or to the servers of a cluster, and what is known of them. It
// connects when it is first asked. All its methods may be called by several goroutines at once.
type Conn struct {
	transport Transport
	ctx       context.Context
	cancel    context.CancelFunc

	ending    sync.Once
	mu        sync.Mutex
	primaries map[string]*primary
	lost      atomic.Int64 // when no server was found in time
	takenOver atomic.Int64 // keys

	starting sync.Mutex
	stopped  bool
	running  sync.WaitGroup // goroutines
	pending  atomic.Int64   // what Close waits for, while there is time

	denials denials
	waits   waits
	renewer renewer
}

// NewConn returns a Conn to the servers that a Transport finds: mostly a [Server].
func NewConn(t Transport) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{transport: t, ctx: ctx, cancel: cancel, primaries: map[string]*primary{}}
	c.denials.init()
	c.waits.init(c)
	c.renewer.conn = c
	if follows, ok := t.(interface{ OnLeave(func(addr string)) }); ok {
		follows.OnLeave(c.leave)
	}
	return c
}

// Servers says how the servers are that were asked so far.
func (c *Conn) Servers() []ServerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	var states []ServerState
	for _, p := range c.primaries {
		states = append(states, p.state())
	}
	return states
}

// Close ends all waits, releases all holds, gives back what was granted to nobody, and closes the connections. It takes
// 1.5 s at most, or six round trips where these are longer. Further calls wait for the first.
func (c *Conn) Close() (err error) {
	c.ending.Do(func() { err = c.close() })
	return err
}

func (c *Conn) close() error {
	grace := closing
	c.mu.Lock()
	for _, p := range c.primaries {
		grace = max(grace, closingTrips*p.trip())
	}
	c.mu.Unlock()
	c.waits.close()
	c.renewer.releaseAll()
	for until := now() + grace; c.pending.Load() > 0; sleep(c.ctx, closingLooks) {
		if now() >= until {
			slog.Warn("swlimit: closed before everything was given back", "unsettled", c.pending.Load(), "after", grace)
			break
		}
	}
	c.starting.Lock()
	c.stopped = true
	c.starting.Unlock()
	c.cancel()
	c.mu.Lock()
	for _, p := range c.primaries {
		p.close()
	}
	c.mu.Unlock()
	c.running.Wait()
	if closer, ok := c.transport.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// leave closes the connections to a server that grants no more: what is under way there is in doubt.
func (c *Conn) leave(addr string) {
	c.mu.Lock()
	p := c.primaries[addr]
	delete(c.primaries, addr)
	c.mu.Unlock()
	if p != nil {
		p.close()
	}
	c.waits.leave(addr)
	c.denials.forgetAll()
}

// away has a Transport know that a server does not answer.
func (c *Conn) away(addr string) {
	if t, ok := c.transport.(interface{ Away(addr string) }); ok {
		t.Away(addr)
	}
}

// close fails its connections, so that nobody waits for them.
func (p *primary) close() {
	p.tracker.close()
	p.mu.Lock()
	p.closed = true
	l := p.link
	p.mu.Unlock()
	if l != nil {
		l.fail(ErrClosed)
	}
}

// spawn runs f in a goroutine that Close waits for; false after that.
func (c *Conn) spawn(f func()) bool {
	c.starting.Lock()
	defer c.starting.Unlock()
	if c.stopped {
		return false
	}
	c.running.Go(f)
	return true
}

// settle runs f in a goroutine that Close gives time to end by itself; false after that.
func (c *Conn) settle(f func()) bool {
	c.pending.Add(1)
	if !c.spawn(func() { defer c.pending.Add(-1); f() }) {
		c.pending.Add(-1)
		return false
	}
	return true
}

// sleep tells whether so much time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// primary is what is known of the server that has a key. It waits no longer than that for a Transport to find it.
func (c *Conn) primary(ctx context.Context, key string, wait time.Duration) (*primary, error) {
	if server, ok := c.transport.(Server); ok {
		return c.primaryAt(server)
	}
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if lost := time.Duration(c.lost.Load()); lost > 0 && now()-lost < firstProbe {
		return nil, &unavailable{reason: "no server was known just now"}
	}
	finding, cancel := context.WithTimeout(ctx, timeFor(ctx, wait))
	defer cancel()
	server, err := c.transport.Primary(finding, key)
	if err != nil {
		if errors.Is(finding.Err(), context.DeadlineExceeded) {
			c.lost.Store(int64(now()))
		}
		return nil, &unavailable{reason: "no server is known for the key", cause: err}
	}
	return c.primaryAt(server)
}

func (c *Conn) primaryAt(server Server) (*primary, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	p := c.primaries[server.Addr]
	if p == nil {
		p = newPrimary(c, server)
		c.primaries[server.Addr] = p
	}
	return p, nil
}

// An asking says how a command is asked.
type asking struct {
	timeout time.Duration
	always  bool  // also while the server is known not to answer
	returns bool  // what a reply grants that comes too late goes back, unless somebody grants in its place
	on      *link // this connection and no other; nil: one to the key's primary
}

// timeFor is how long one may wait for a caller, at most so long.
func timeFor(ctx context.Context, wait time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(wait, patience(time.Until(deadline)))
	}
	return wait
}

// ask is the reply to a command: a RefusedError, or an error that is ErrUnavailable when it does not come in time.
// ctx's deadline counts as such; when ctx is cancelled the error is its own, and what the command is granted is given
// back.
func (c *Conn) ask(ctx context.Context, cmd command, how asking) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	wait := timeFor(ctx, how.timeout)
	if wait <= 0 {
		return nil, errNoTime
	}
	until := now() + wait
	reply, err := c.askUntil(ctx, cmd, how, until)
	isCallers := wait < how.timeout && (now() >= until || timeFor(ctx, wait) <= 0)
	if isCallers && errors.Is(err, ErrUnavailable) && !isTimeUp(err) {
		err = &unavailable{reason: "the caller's time ended", cause: err, sent: wasSent(err), callers: true}
	}
	return reply, err
}

func (c *Conn) askUntil(ctx context.Context, cmd command, how asking, until time.Duration) (any, error) {
	next := &call{command: cmd, timeout: how.timeout, done: make(chan struct{})}
	if how.on == nil {
		p, err := c.primary(ctx, cmd.key(), until-now())
		if err != nil {
			if canceled := ctx.Err(); errors.Is(canceled, context.Canceled) {
				return nil, canceled
			}
			return nil, err
		}
		next.owner = p
	}
	for try := 1; ; try++ {
		p, l := next.owner, how.on
		if !how.always {
			if err := p.unavailable(); err != nil {
				return nil, err
			}
		}
		if l == nil {
			l = p.current()
		}
		l.add(next)
		reply, err := c.await(ctx, next, until, how.returns)
		text, isReply := err.(serverError)
		if errors.Is(err, errRetired) && try < mostTries && !wasSent(err) && how.on == nil {
			next = next.again()
			continue
		}
		if next.byModule && (err == nil || isReply && !unknownCommand.MatchString(string(text))) {
			next.link.adapt(func(d *dialect) { d.byScript = false })
		}
		if !isReply {
			return reply, err
		}
		again, why := c.again(ctx, next, string(text), until)
		if canceled := ctx.Err(); errors.Is(canceled, context.Canceled) {
			return nil, canceled
		}
		if again == nil || try == mostTries || now() >= until {
			if p != nil && redirection.MatchString(string(text)) {
				p.fail(cmd.key(), string(text))
			}
			return nil, why
		}
		next = again
	}
}

// wasSent tells whether the server may have executed a command that failed.
func wasSent(err error) bool {
	var failed *unavailable
	return errors.As(err, &failed) && failed.sent
}

// again is a call in place of one that the server has not executed, perhaps to another server; nil where there is none,
// and why.
func (c *Conn) again(ctx context.Context, failed *call, text string, until time.Duration) (*call, error) {
	next, l, why := failed.again(), failed.link, understood(serverError(text))
	switch {
	case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
		words := strings.Fields(text)
		addr := words[len(words)-1]
		colon := strings.LastIndex(addr, ":") // IPv6 addresses come without brackets
		host := strings.Trim(addr[:max(0, colon)], "[]")
		server, err := c.transport.Moved(ctx, placeOf(host, addr[colon+1:], l.server.Addr))
		if err != nil || failed.redirected || failed.owner == nil {
			return nil, why
		}
		p, err := c.primaryAt(server)
		if err != nil {
			return nil, why
		}
		next.owner, next.asking, next.redirected = p, words[0] == "ASK", true
		return next, nil
	case strings.HasPrefix(text, "TRYAGAIN "):
		if !sleep(ctx, 10*time.Millisecond) {
			return nil, why
		}
		return next, nil
	case strings.HasPrefix(text, "NOSCRIPT"):
		next.whole = true
		return next, nil
	case strings.HasPrefix(text, "ERR no clock: "):
		isNews := false
		l.adapt(func(d *dialect) { isNews, d.clock = d.clock == nil, unixMilli })
		if isNews {
			slog.Warn("swlimit: the script may not ask for the time: this machine's clock decides", "error", text)
		}
		return next, nil
	case strings.HasPrefix(text, "WRONGTYPE ") && failed.name != "":
		switch {
		case failed.byScript && !failed.byModule: // of the module, if there is one now
			next.byModule = true
			return next, nil
		case !failed.byScript && !failed.takenOver: // of the script
			if err := c.takeOver(ctx, failed.keys, until); err != nil {
				return nil, err
			}
			next.takenOver = true
			return next, nil
		}
	case unknownCommand.MatchString(text) && failed.byModule:
		return nil, errWrongType
	case unknownCommand.MatchString(text) && failed.name != "" && !failed.needsModule && !failed.byScript:
		if failed.isNewer() {
			if isOld, err := c.hasModule(ctx, l, failed.key(), until); err != nil {
				return nil, err
			} else if isOld {
				return nil, tooOldError(prefix + failed.name)
			}
		}
		l.adapt(func(d *dialect) { d.byScript, d.isOld = true, false })
		return next, nil // this is another server
	}
	return nil, why
}

// hasModule asks once for a command that every module has: without arguments, it is an error, and does nothing. A module
// that lacks others is too old for them.
func (c *Conn) hasModule(ctx context.Context, l *link, key string, until time.Duration) (bool, error) {
	isOld := false
	if l.adapt(func(d *dialect) { isOld = d.isOld }); isOld {
		return true, nil
	}
	_, err := c.ask(ctx, other(key, prefix+"PEEK"), asking{timeout: until - now(), always: true, on: l})
	var refused RefusedError
	switch {
	case errors.Is(err, ErrModuleMissing):
		return false, nil
	case err != nil && !errors.As(err, &refused):
		return false, err
	}
	l.adapt(func(d *dialect) { d.isOld = true })
	return true, nil
}

// takeOver hands those of the keys that the script has written to the module. After an error they are what they were.
func (c *Conn) takeOver(ctx context.Context, keys []string, until time.Duration) error {
	for _, key := range keys {
		taken, err := integerOf(c.ask(ctx, takeOverCommand(key), asking{timeout: until - now(), always: true}))
		if err != nil {
			return err
		}
		if taken == 1 {
			c.takenOver.Add(1)
			slog.Info(fmt.Sprintf("swlimit: the module is loaded now; took over key %q, which the script wrote", key))
		}
	}
	return nil
}

// await is the reply to a call, or why nobody waits for it any more.
func (c *Conn) await(ctx context.Context, asked *call, until time.Duration, returns bool) (any, error) {
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	var why error
	select {
	case <-asked.done:
		return c.answered(asked)
	case <-ctx.Done():
		if why = ctx.Err(); errors.Is(why, context.DeadlineExceeded) {
			why = &unavailable{reason: "the caller's deadline", sent: true, callers: true}
		}
	case <-timer.C:
		runtime.Gosched() // a reply that is there already counts
		why = &unavailable{reason: "no reply within " + asked.timeout.String(), sent: true}
	}
	failed, isUnavailable := why.(*unavailable)
	c.pending.Add(1) // Close waits for what may have to be given back
	isLeft, written := asked.leave(func(answered *call) {
		c.late(answered, !isUnavailable || returns && !failed.kept.Load())
		c.pending.Add(-1)
	})
	if !isLeft || !written {
		c.pending.Add(-1)
	}
	if !isLeft {
		<-asked.done
		return c.answered(asked)
	}
	if written && asked.owner != nil {
		if left := asked.written + asked.timeout - now(); left > 0 {
			time.AfterFunc(left, func() { asked.owner.overdue(asked) })
		} else {
			asked.owner.overdue(asked)
		}
	}
	return nil, why
}

// answered is what came for a caller who still waits. What a lost connection leaves in doubt ends.
func (c *Conn) answered(asked *call) (any, error) {
	if asked.err != nil && asked.ends(nil, asked.err) {
		c.insist(*asked.ending, asked.lasts, asked.timeout)
	}
	return asked.reply, asked.err
}

// late settles what came for a caller who has gone. What a caller was granted who was cancelled, or who waits and was
// not granted it by OnFailure, goes back; else one whose time was up had a decision. What has an id that nobody else
// knows ends.
func (c *Conn) late(asked *call, returns bool) {
	switch {
	case asked.ends(asked.reply, asked.err):
		c.insist(*asked.ending, asked.lasts, asked.timeout)
	case asked.undo != nil && returns && asked.err == nil:
		if counted := asked.undo(asked.reply); len(counted) > 0 {
			asked.link.owe(1)
			c.settle(func() {
				defer asked.link.owe(-1)
				c.giveBack(asked, counted)
			})
		}
	}
}

// giveBack refunds what was counted, on the connection on which it was, and nowhere else.
func (c *Conn) giveBack(asked *call, all []counted) {
	ctx, cancel := context.WithTimeout(c.ctx, drain)
	defer cancel()
	since := func() (int64, error) {
		reply, err := asked.link.do(ctx, command{arguments: []string{"TIME"}})
		if err != nil {
			return 0, err
		}
		instant, err := instantOf(reply)
		return max(0, instant-passed(asked)), err
	}
	commands, _ := refunds(all, since)
	for _, refund := range commands {
		c.denials.forget(refund.key())
		_, _ = c.ask(ctx, refund, asking{timeout: drain, always: true, on: asked.link})
		c.denials.forget(refund.key())
	}
}

// passed is how long ago a call was sent, in ms, a thousandth more because clocks drift.
func passed(asked *call) int64 {
	return int64(math.Ceil(float64(now()-asked.written) / float64(time.Millisecond) * 1.001))
}

// insist has something ended: again while the server is away, until it has ended by itself.
func (c *Conn) insist(ending command, lasts int64, timeout time.Duration) {
	c.settle(func() { c.end(ending, lasts, timeout) })
}

func (c *Conn) end(ending command, lasts int64, timeout time.Duration) {
	until := now() + time.Duration(lasts)*time.Millisecond
	for {
		_, err := c.ask(c.ctx, ending, asking{timeout: timeout, always: true})
		if !errors.Is(err, ErrUnavailable) || now() >= until {
			return
		}
		var back <-chan struct{}
		if p, err := c.primary(c.ctx, ending.key(), timeout); err == nil {
			back = p.recovery()
		}
		timer := time.NewTimer(time.Duration(lasts) * time.Millisecond / endAgain)
		select {
		case <-back:
		case <-timer.C:
		case <-c.ctx.Done():
		}
		timer.Stop()
		if c.ctx.Err() != nil {
			return
		}
	}
}

// change asks for something that gives units back: with it, what was known of the key is known no longer.
func (c *Conn) change(ctx context.Context, cmd command, timeout time.Duration) (any, error) {
	c.denials.forget(cmd.key())
	defer c.denials.forget(cmd.key())
	return c.ask(ctx, cmd, asking{timeout: timeout})
}

func unixMilli() int64 { return time.Now().UnixMilli() }

// instantOf is what TIME says, in Unix ms.
func instantOf(time any) (int64, error) {
	list, _ := time.([]any)
	if len(list) != 2 {
		return 0, unexpected(time)
	}
	var numbers [2]int64
	for i, each := range list {
		text, _ := each.(string)
		n, err := parseInt([]byte(text))
		if err != nil {
			return 0, unexpected(time)
		}
		numbers[i] = n
	}
	return numbers[0]*1000 + numbers[1]/1000, nil
}
