package swlimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
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

// A Transport finds the servers; the Client connects to them. [Server] is the one of a single server, [Cluster] that of
// a cluster, [Sentinel] that of the primary that sentinels name. An adapter for another library's clients makes one of
// them from the client's settings.
type Transport interface {
	// Primary is the server that has a key now.
	Primary(ctx context.Context, key string) (Server, error)
	// Moved is the server at an address to which another has redirected a key.
	Moved(ctx context.Context, addr string) (Server, error)
}

// follower is a Transport that looks for servers from the first request until the Client closes.
type follower interface {
	// begin gets the Client, which closes the connections to a server that leaves. It is an error where the Transport
	// has another Client.
	begin(c *Client) error
	// unavailable is called again and again while a server does not answer.
	unavailable(addr string)
	end()
}

// Primary makes a Server the [Transport] of a single server.
func (s Server) Primary(context.Context, string) (Server, error) { return s, nil }

// Moved says that a single server redirects nowhere.
func (s Server) Moved(context.Context, string) (Server, error) { return Server{}, ErrCluster }

// A Client is what limiters share: connections to a server, or to the servers of a cluster, and what is known of them.
// It connects when it is first asked. All its methods may be called by several goroutines at once.
type Client struct {
	transport Transport
	settings  clientSettings
	ctx       context.Context
	cancel    context.CancelFunc

	ending    sync.Once
	mu        sync.Mutex
	servers   map[string]*server
	none      atomic.Int64 // when no server was found in time
	saidNone  atomic.Bool
	served    atomic.Bool  // a server has decided something
	takenOver atomic.Int64 // keys
	lostUnits atomic.Int64
	timeout   atomic.Int64 // the longest of the limiters

	starting sync.Mutex
	stopped  bool
	running  sync.WaitGroup // goroutines
	pending  atomic.Int64   // what Close waits for, while there is time

	denials denialCache
	waits   waits
	renewer renewer
}

// NewClient returns a Client of the servers that a Transport finds: mostly a [Server]. Where that is one of a cluster,
// the Client becomes one of the cluster: see [FollowCluster].
func NewClient(t Transport, options ...ClientOption) (*Client, error) {
	settings, err := clientSettingsOf(options)
	if err != nil {
		return nil, err
	}
	if isNil(t) {
		return nil, wrong("a client needs a transport, such as a Server")
	}
	if one, ok := t.(Server); ok {
		switch {
		case one.Addr == "" && one.Dial == nil:
			return nil, wrong("a server needs an address")
		case settings.cluster == ClusterOn:
			t = &Cluster{Addrs: []string{one.Addr}, Server: one}
		case settings.cluster == ClusterAuto:
			t = &single{server: one}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{transport: t, settings: settings, ctx: ctx, cancel: cancel, servers: map[string]*server{}}
	c.denials.init()
	c.waits.init(c)
	c.renewer.client = c
	if follows, ok := t.(follower); ok {
		if err := follows.begin(c); err != nil {
			cancel()
			return nil, err
		}
	}
	return c, nil
}

// isNil tells whether an interface holds nothing, or a nil pointer.
func isNil(value any) bool {
	if value == nil {
		return true
	}
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// isMade tells whether NewClient has made it.
func (c *Client) isMade() bool { return c != nil && c.ctx != nil }

func (c *Client) log() *slog.Logger {
	if c.settings.log != nil {
		return c.settings.log
	}
	return slog.Default()
}

// longest keeps the longest timeout of the limiters.
func (c *Client) longest(d time.Duration) {
	for {
		was := c.timeout.Load()
		if was >= int64(d) || c.timeout.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}

// Ping asks a server, any of a cluster, whether it answers, until ctx ends. It needs no right to the commands of
// limits.
func (c *Client) Ping(ctx context.Context) error {
	if !c.isMade() {
		return errClientNotMade
	}
	cmd := command{arguments: []string{"PING"}}
	wait := time.Duration(max(c.timeout.Load(), int64(connectTimeout)))
	_, err := c.ask(ctx, cmd, asking{timeout: wait, always: true})
	return err
}

// Servers says how the servers are that were asked so far, by address.
func (c *Client) Servers() []ServerState {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.servers))
	c.mu.Unlock()
	states := make([]ServerState, 0, len(all))
	for _, p := range all {
		states = append(states, p.state())
	}
	slices.SortFunc(states, func(a, b ServerState) int { return strings.Compare(a.Addr, b.Addr) })
	return states
}

// Close ends all waits, releases all holds, gives back what was granted to nobody, and closes the connections. It takes
// 1.5 s at most, or six round trips where these are longer. Further calls wait for the first.
func (c *Client) Close() error {
	if !c.isMade() {
		return nil
	}
	c.ending.Do(c.close)
	return nil
}

func (c *Client) close() {
	grace := closing
	c.mu.Lock()
	for _, p := range c.servers {
		grace = max(grace, closingTrips*p.trip())
	}
	c.mu.Unlock()
	c.waits.close()
	c.renewer.releaseAll()
	for until := now() + grace; c.pending.Load() > 0; sleep(c.ctx, closingLooks) {
		if now() >= until {
			c.log().Warn("closed before everything was given back", "event", "unsettled", "unsettled",
				c.pending.Load(), "after", grace)
			break
		}
	}
	c.starting.Lock()
	c.stopped = true
	c.starting.Unlock()
	c.cancel()
	c.mu.Lock()
	for _, p := range c.servers {
		p.close()
	}
	c.mu.Unlock()
	c.running.Wait()
	if follows, ok := c.transport.(follower); ok {
		follows.end()
	}
}

// leave closes the connections to a server that grants no more: what is under way there is in doubt.
func (c *Client) leave(addr string) {
	c.mu.Lock()
	p := c.servers[addr]
	delete(c.servers, addr)
	c.mu.Unlock()
	if p != nil {
		p.close()
	}
	c.waits.leave(addr)
	c.denials.forgetAll()
}

// unavailable has a Transport know that a server does not answer.
func (c *Client) unavailable(addr string) {
	if t, ok := c.transport.(follower); ok {
		t.unavailable(addr)
	}
}

// isOfCluster is called where a server says that it is one of a cluster.
func (c *Client) isOfCluster(at Server) {
	if one, ok := c.transport.(*single); ok {
		one.isOfCluster(c, at)
	}
}

// spawn runs f in a goroutine that Close waits for; false after that.
func (c *Client) spawn(f func()) bool {
	c.starting.Lock()
	defer c.starting.Unlock()
	if c.stopped {
		return false
	}
	c.running.Go(f)
	return true
}

// settle runs f in a goroutine that Close gives time to end by itself; false after that.
func (c *Client) settle(f func()) bool {
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
func (c *Client) primary(ctx context.Context, key string, wait time.Duration) (*server, error) {
	if at, ok := c.transport.(Server); ok {
		return c.serverAt(at)
	}
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if none := time.Duration(c.none.Load()); none > 0 && now()-none < firstProbe {
		return nil, &unavailable{text: "no server was known just now", reason: reasonNoAnswer}
	}
	finding, cancel := context.WithTimeout(ctx, timeFor(ctx, wait))
	defer cancel()
	at, err := c.transport.Primary(finding, key)
	if err != nil {
		if errors.Is(finding.Err(), context.DeadlineExceeded) {
			c.none.Store(int64(now()))
		}
		reason := reasonOfEnd(err)
		if reason == reasonOther {
			reason = reasonNoAnswer
		}
		if c.saidNone.CompareAndSwap(false, true) {
			c.log().Warn("no server is known ("+reason+"); on_failure decides until one is", "event", "unavailable",
				"reason", reason, "error", err)
		}
		return nil, &unavailable{text: "no server is known for the key", reason: reason, cause: err}
	}
	c.saidNone.Store(false)
	return c.serverAt(at)
}

func (c *Client) serverAt(at Server) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	p := c.servers[at.Addr]
	if p == nil {
		p = newServer(c, at)
		c.servers[at.Addr] = p
	}
	return p, nil
}

// An asking says how a command is asked.
type asking struct {
	timeout time.Duration
	always  bool        // also while the server is known not to answer
	decides bool        // in place of an error the caller decides, and then calls keep
	patient bool        // until the reply has come or its connection is gone
	on      *connection // this connection and no other; nil: one to the key's primary
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
func (c *Client) ask(ctx context.Context, cmd command, how asking) (any, error) {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, err
	}
	wait := timeFor(ctx, how.timeout) // none after ctx's deadline, which may have passed while a server was looked for
	if wait <= 0 {
		return nil, errNoTime
	}
	until := now() + wait
	reply, p, err := c.askUntil(ctx, cmd, how, until)
	failed, isUnavailable := err.(*unavailable)
	if !isUnavailable {
		return reply, err
	}
	isCallers := wait < how.timeout && (now() >= until || timeFor(ctx, wait) <= 0)
	switch {
	case failed.callers:
	case isCallers:
		return nil, &unavailable{text: "the caller's time ended", reason: failed.reason, cause: err, sent: failed.sent,
			callers: true, late: failed.late}
	case p != nil:
		p.breaker.policyDecided(failed)
	}
	return nil, err
}

// deliver is the reply to a command, however late, and the server that was asked: it is over when that has come or the
// connection is gone.
func (c *Client) deliver(cmd command, timeout time.Duration) (any, *server, error) {
	return c.askUntil(c.ctx, cmd, asking{timeout: timeout, patient: true}, now()+forever)
}

func (c *Client) askUntil(ctx context.Context, cmd command, how asking, until time.Duration) (any, *server, error) {
	next := &call{command: cmd, timeout: how.timeout, done: make(chan struct{})}
	if how.on == nil {
		p, err := c.primary(ctx, cmd.key(), min(until-now(), how.timeout))
		if err != nil {
			if canceled := ctx.Err(); errors.Is(canceled, context.Canceled) {
				return nil, nil, canceled
			}
			return nil, nil, err
		}
		next.owner = p
	}
	for try := 1; ; try++ {
		p, cn := next.owner, how.on
		if !how.always {
			if err := p.unavailable(cmd.key(), how); err != nil {
				return nil, p, err
			}
		}
		if cn == nil {
			var err error
			if cn, err = p.place(ctx, until); err != nil {
				return nil, p, err
			}
			p.prepare(next, cn)
		}
		cn.add(next)
		reply, err := c.await(ctx, next, until, how)
		text, isReply := err.(serverError)
		if errors.Is(err, errRetired) && try < mostTries && !wasSent(err) && how.on == nil {
			next = next.again()
			continue
		}
		if next.byModule && (err == nil || isReply && !unknownCommand.MatchString(string(text))) {
			next.connection.adapt(func(d *dialect) { d.byScript = false })
		}
		if p != nil {
			p.script.heard(next, isReply && strings.HasPrefix(string(text), "NOSCRIPT"))
		}
		if !isReply {
			return reply, p, err
		}
		again, why := c.again(ctx, next, string(text), until)
		if canceled := ctx.Err(); errors.Is(canceled, context.Canceled) {
			return nil, p, canceled
		}
		if again == nil || try == mostTries || now() >= until {
			if failed, ok := why.(*unavailable); ok && p != nil && redirection.MatchString(string(text)) {
				p.breaker.fail(cmd.key(), failed)
			}
			return nil, p, why
		}
		next = again
	}
}

// prepare says how a call is asked where the script decides: with its text, or in the module's words to find out
// whether the module is there now.
func (p *server) prepare(c *call, cn *connection) {
	if c.name == "" && !c.takesOver || c.byModule || cn.backend() != byScript {
		return
	}
	switch {
	case p.script.sendsText():
		c.whole = true
	case !c.needsModule && len(c.words()) > 1 && !slices.Contains(idCommands, c.name) && p.looksForModule():
		c.byModule, c.looks = true, true
	}
}

// wasSent tells whether the server may have executed a command that failed.
func wasSent(err error) bool {
	var failed *unavailable
	return errors.As(err, &failed) && failed.sent
}

// again is a call in place of one that the server has not executed, perhaps to another server; nil where there is none,
// and why.
func (c *Client) again(ctx context.Context, failed *call, text string, until time.Duration) (*call, error) {
	next, cn, why := failed.again(), failed.connection, understood(serverError(text))
	switch {
	case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
		words := strings.Fields(text)
		addr := words[len(words)-1]
		colon := strings.LastIndex(addr, ":") // IPv6 addresses come without brackets
		host := strings.Trim(addr[:max(0, colon)], "[]")
		waiting, cancel := context.WithTimeout(ctx, until-now())
		defer cancel()
		at, err := c.transport.Moved(waiting, placeOf(host, addr[colon+1:], cn.server.Addr))
		if errors.Is(err, ErrCluster) && !c.served.Load() {
			return nil, err
		}
		if err != nil || failed.redirected || failed.owner == nil {
			return nil, why
		}
		p, err := c.serverAt(at)
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
		if failed.owner == nil || failed.owner.script.load(ctx, failed, until, c.log()) {
			next.whole = true
		}
		return next, nil
	case strings.HasPrefix(text, "ERR no clock: "):
		isNews := false
		cn.adapt(func(d *dialect) { isNews, d.clock = d.clock == nil, unixMilli })
		if isNews {
			c.log().Warn("the script may not ask for the time: this machine's clock decides", "error", quoted(text))
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
	case unknownCommand.MatchString(text) && failed.looks:
		next.byModule, next.looks = false, false
		return next, nil
	case unknownCommand.MatchString(text) && failed.byModule:
		return nil, errWrongType
	case unknownCommand.MatchString(text) && failed.name != "" && !failed.needsModule && !failed.byScript:
		if failed.isNewer() {
			if isOld, err := c.hasModule(ctx, cn, failed.key(), until); err != nil {
				return nil, err
			} else if isOld {
				return nil, tooOldError(prefix + failed.name)
			}
		}
		cn.adapt(func(d *dialect) { d.byScript, d.isOld = true, false })
		return next, nil // this is another server
	case failed.warms && !failed.byScript && lacksWarmUp.MatchString(text):
		return nil, tooOldError("WARMUP")
	case failed.owner != nil && failed.owner.isReplaced(failed):
		return nil, &unavailable{text: quoted(text), reason: reasonModuleMissing, isReply: true}
	}
	return nil, why
}

// hasModule asks once for a command that every module has: without arguments, it is an error, and does nothing. A
// module that lacks others is too old for them.
func (c *Client) hasModule(ctx context.Context, cn *connection, key string, until time.Duration) (bool, error) {
	isOld := false
	if cn.adapt(func(d *dialect) { isOld = d.isOld }); isOld {
		return true, nil
	}
	_, err := c.ask(ctx, other(key, prefix+"PEEK"), asking{timeout: until - now(), always: true, on: cn})
	var refused RefusedError
	switch {
	case errors.Is(err, ErrModuleMissing):
		return false, nil
	case err != nil && !errors.As(err, &refused):
		return false, err
	}
	cn.adapt(func(d *dialect) { d.isOld = true })
	return true, nil
}

// takeOver hands those of the keys that the script has written to the module. After an error they are what they were.
func (c *Client) takeOver(ctx context.Context, keys []string, until time.Duration) error {
	for _, key := range keys {
		taken, err := integerOf(c.ask(ctx, takeOverCommand(key), asking{timeout: until - now(), always: true}))
		if err != nil {
			return err
		}
		if taken == 1 {
			c.takenOver.Add(1)
			c.log().Info(fmt.Sprintf("the module is loaded now; took over key %q, which the script wrote", key))
		}
	}
	return nil
}

// await is the reply to a call, or why nobody waits for it any more.
func (c *Client) await(ctx context.Context, asked *call, until time.Duration, how asking) (any, error) {
	if how.patient {
		asked.watch()
		return c.answered(asked)
	}
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	late := new(lateGrant)
	var why error
	select {
	case <-asked.done:
		return c.answered(asked)
	case <-ctx.Done():
		if why = ctx.Err(); errors.Is(why, context.DeadlineExceeded) {
			why = &unavailable{text: "the caller's deadline", reason: reasonNoAnswer, sent: true, callers: true, late: late}
		}
	case <-timer.C:
		runtime.Gosched() // a reply that is there already counts
		why = &unavailable{text: "no reply within " + asked.timeout.String(), reason: reasonNoAnswer, sent: true, late: late}
	}
	c.pending.Add(1) // Close waits for what may have to be given back
	isLeft, written := asked.leave(func(answered *call) {
		late.replied(func(kept []int64) { c.late(answered, kept) })
		c.pending.Add(-1)
	})
	if !isLeft || !written {
		c.pending.Add(-1)
	}
	if !isLeft {
		<-asked.done
		return c.answered(asked)
	}
	failed, isUnavailable := why.(*unavailable)
	if !isUnavailable || !how.decides {
		late.keep(nil)
	}
	if !written && isUnavailable {
		failed.text, failed.sent = "no connection within "+asked.timeout.String(), false
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
func (c *Client) answered(asked *call) (any, error) {
	if asked.err != nil && asked.ends(nil, asked.err) {
		c.insist(*asked.ending, asked.lasts, asked.timeout)
	}
	return asked.reply, asked.err
}

// late settles what came for a caller who has gone, and was granted so much of each key in its place: what is granted
// beyond that goes back. What has an id that nobody else knows ends.
func (c *Client) late(asked *call, kept []int64) {
	if asked.ends(asked.reply, asked.err) {
		c.insist(*asked.ending, asked.lasts, asked.timeout)
		return
	}
	if asked.undo == nil || asked.err != nil {
		return
	}
	counted := asked.undo(asked.reply)
	for i := range min(len(counted), len(kept)) {
		counted[i].units = max(0, counted[i].units-kept[i])
	}
	if slices.ContainsFunc(counted, isCounted) {
		asked.connection.owe(1)
		if !c.settle(func() {
			defer asked.connection.owe(-1)
			c.giveBack(asked, counted)
		}) {
			asked.connection.owe(-1)
		}
	}
}

func isCounted(c counted) bool { return c.units > 0 }

// giveBack refunds what was counted, on the connection on which it was, and nowhere else.
func (c *Client) giveBack(asked *call, all []counted) {
	ctx, cancel := context.WithTimeout(c.ctx, drain)
	defer cancel()
	since := func() (int64, error) {
		reply, err := asked.connection.do(ctx, command{arguments: []string{"TIME"}})
		if p, closed := c.serverAt(asked.connection.server); closed == nil { // a connection to wait on carries no requests
			p.heardRight("time", err)
		}
		if err != nil {
			return 0, err
		}
		instant, err := instantOf(reply)
		return max(0, instant-passed(asked)), err
	}
	commands, err := refunds(all, since)
	for _, refund := range commands {
		c.denials.forget(refund.key())
		if _, failed := c.ask(ctx, refund, asking{timeout: drain, always: true, on: asked.connection}); failed != nil {
			err = failed
		}
		c.denials.forget(refund.key())
	}
	if err != nil {
		units := int64(0)
		for _, each := range all {
			units += each.units
		}
		c.lostUnits.Add(units)
		c.log().Warn("units that were granted to nobody stay counted", "event", "lost", "units", units, "keys", len(all),
			"error", err)
	}
}

// passed is how long ago a call was sent, in ms, a thousandth more because clocks drift.
func passed(asked *call) int64 {
	return int64(math.Ceil(float64(now()-asked.written) / float64(time.Millisecond) * 1.001))
}

// insist has something ended: again while the server is away, until it has ended by itself.
func (c *Client) insist(ending command, lasts int64, timeout time.Duration) {
	c.settle(func() { c.end(ending, lasts, timeout) })
}

func (c *Client) end(ending command, lasts int64, timeout time.Duration) {
	until := now() + time.Duration(lasts)*time.Millisecond
	for {
		_, err := c.ask(c.ctx, ending, asking{timeout: timeout, always: true})
		if !errors.Is(err, ErrUnavailable) || now() >= until {
			return
		}
		var back <-chan struct{}
		if p, err := c.primary(c.ctx, ending.key(), timeout); err == nil {
			back = p.breaker.recovery()
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
func (c *Client) change(ctx context.Context, cmd command, timeout time.Duration) (any, error) {
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
