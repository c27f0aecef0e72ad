package swlimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	shortDenial  = 20 * time.Millisecond // what ends sooner is not worth two commands
	shortInTrips = 4
	smoothing    = 8 // a new round trip counts so much less than those before it
	lookPause    = time.Minute
)

// A server is one that grants. What is known of it belongs to no request: every reply is read.
type server struct {
	client  *Client
	at      Server
	breaker breaker
	tracker tracker
	script  scriptLoads

	waiting     atomic.Int32 // callers that wait for a place on a connection
	mu          sync.Mutex
	connections []*connection   // on which requests go out
	turns       []chan struct{} // who waits for a place, in order
	closed      bool

	roundTrip time.Duration // smoothed, late replies included
	slowFor   time.Duration // replies were late for this timeout; 0: they are in time
	slowSaid  time.Duration // when the log said so
	probing   bool          // whether the link is fast enough again
	probed    time.Duration

	lacking map[string]bool // rights that it refused last

	moduleLook time.Duration // when to look for the module next, while the script decides
	memory     memory
	looking    bool
}

// memory is what INFO says of a server that may evict keys.
type memory struct {
	max     int64
	policy  string
	evicted int64
}

func (m *memory) evicts() bool { return m.max > 0 && m.policy != "" && m.policy != "noeviction" }

// A ServerState says how a server is, as far as this process can tell.
type ServerState struct {
	// Addr is its address.
	Addr string
	// State is "up", "slow" (replies come later than a limiter's Timeout) or "unavailable" (it is not asked now).
	State string
	// Reason says why it is not up, in one word that is the same in every language; Message in the words of the error.
	Reason, Message string
	// Since says since when it is unavailable, or answers.
	Since time.Time
	// RoundTrip is the smoothed time that replies take, late ones included; 0 before the first.
	RoundTrip time.Duration
	// Backend is "module" or "script"; empty until it is known.
	Backend string
	// Evicts tells whether the server may evict keys, and with them what is counted: its maxmemory-policy is not
	// noeviction.
	Evicts bool
	// Lacks names the rights that the server refused last, such as "client|tracking": limiters do without them.
	Lacks []string
	// EvictedKeys is how many keys of any kind the server has evicted since it started.
	EvictedKeys int64
}

func newServer(c *Client, at Server) *server {
	p := &server{client: c, at: at, moduleLook: now() + jittered(lookPause)}
	p.tracker.server = p
	p.breaker.init(p)
	return p
}

// jittered is a time ± 50 %, so that clients do not ask together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// place is a connection that has room for a command. While all are full it waits for its turn.
func (p *server) place(ctx context.Context, until time.Duration) (*connection, error) {
	for isWoken := false; ; isWoken = true {
		cn, turn := p.take(isWoken)
		if cn != nil {
			return cn, nil
		}
		err := awaitTurn(ctx, turn, until)
		p.waiting.Add(-1)
		if err != nil {
			p.leaveTurn(turn)
			return nil, err
		}
	}
}

func awaitTurn(ctx context.Context, turn chan struct{}, until time.Duration) error {
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	select {
	case <-turn:
		return nil
	case <-timer.C:
		return &unavailable{text: "all connections were full", reason: reasonNoAnswer, callers: true}
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &unavailable{text: "the caller's deadline", reason: reasonNoAnswer, callers: true}
		}
		return ctx.Err()
	}
}

// take is a connection with room, or a turn to wait for. Who was woken goes before those who came later.
func (p *server) take(isWoken bool) (*connection, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections = slices.DeleteFunc(p.connections, func(cn *connection) bool {
		if cn.isUsable() {
			return false
		}
		cn.retire()
		return true
	})
	if isWoken || len(p.turns) == 0 {
		for _, cn := range p.connections {
			if cn.reserve() {
				return cn, nil
			}
		}
		if len(p.connections) < p.client.settings.poolSize {
			cn := p.client.connect(p, p.at, nil, nil)
			cn.reserve()
			p.connections = append(p.connections, cn)
			p.watchConnect(cn)
			if p.closed {
				cn.fail(ErrClosed)
			}
			return cn, nil
		}
	}
	turn := make(chan struct{})
	if isWoken {
		p.turns = slices.Insert(p.turns, 0, turn)
	} else {
		p.turns = append(p.turns, turn)
	}
	p.waiting.Add(1)
	return nil, turn
}

// leaveTurn passes a turn on that came too late.
func (p *server) leaveTurn(turn chan struct{}) {
	p.mu.Lock()
	at := slices.Index(p.turns, turn)
	if at >= 0 {
		p.turns = slices.Delete(p.turns, at, at+1)
	}
	p.mu.Unlock()
	if at < 0 {
		p.nextTurn()
	}
}

// nextTurn wakes who waits for a place first.
func (p *server) nextTurn() {
	if p.waiting.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.turns) > 0 {
		close(p.turns[0])
		p.turns = p.turns[1:]
	}
}

// replace has commands go out on another connection.
func (p *server) replace(cn *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, old := range p.connections {
		old.retire()
	}
	p.connections = []*connection{cn}
	if p.closed {
		cn.fail(ErrClosed)
	}
}

// close fails its connections, so that nobody waits for them.
func (p *server) close() {
	p.tracker.close()
	p.breaker.end()
	p.mu.Lock()
	p.closed = true
	all := p.connections
	p.mu.Unlock()
	for _, cn := range all {
		cn.fail(ErrClosed)
	}
}

// watchConnect opens the breaker where connecting takes too long.
func (p *server) watchConnect(cn *connection) {
	time.AfterFunc(slowConnect, func() {
		select {
		case <-cn.ready:
		default:
			p.breaker.open(&unavailable{text: "cannot connect within " + slowConnect.String(), reason: reasonNoAnswer})
		}
	})
}

// unavailable says why the server is not asked; nil where it is.
func (p *server) unavailable(key string, how asking) error {
	if why := p.breaker.refuses(); why != nil {
		p.breaker.policyDecided(why)
		return why
	}
	if !how.decides {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slowFor < how.timeout || p.roundTrip <= how.timeout {
		return nil
	}
	if !p.probing && now()-p.probed >= lastProbe {
		p.probing = true
		if !p.client.spawn(func() { p.probeLink(key, max(probeTimeout, how.timeout)) }) {
			p.probing = false
		}
	}
	if p.slowSaid == 0 || now()-p.slowSaid >= time.Minute {
		p.slowSaid = now()
		text := fmt.Sprintf("server %s is slow: the round trip is %d ms, and the timeout %d ms; on_failure decides", p.at.Addr,
			p.roundTrip.Milliseconds(), how.timeout.Milliseconds())
		p.client.log().Warn(text, "event", "slow", "server", p.at.Addr, "round_trip", p.roundTrip, "timeout", how.timeout)
	}
	return &unavailable{text: fmt.Sprintf("the round trip of %v is above the timeout of %v", p.roundTrip, how.timeout),
		reason: reasonSlow}
}

// probeLink measures the link, for limiters whose timeout is below its round trip.
func (p *server) probeLink(key string, wait time.Duration) {
	defer func() {
		p.mu.Lock()
		p.probing, p.probed = false, now()
		p.mu.Unlock()
	}()
	cn, err := p.place(p.client.ctx, now()+wait)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.client.ctx, wait)
	defer cancel()
	asked := &call{command: probeCommand(key), done: make(chan struct{})}
	cn.add(asked)
	select {
	case <-asked.done:
	case <-ctx.Done():
		asked.leave(nil)
		return
	}
	if errors.As(asked.err, new(*unavailable)) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if trip := asked.trip(); trip < p.slowFor {
		p.roundTrip, p.slowFor = trip, 0
	} else {
		p.measure(trip)
	}
}

// measure learns from a round trip. p.mu is held.
func (p *server) measure(trip time.Duration) {
	if p.roundTrip == 0 {
		p.roundTrip = trip
	} else {
		p.roundTrip += (trip - p.roundTrip) / smoothing
	}
}

// heardOf gets every reply, and every call that will have none.
func (p *server) heardOf(c *call) {
	text, isReply := c.err.(serverError)
	failed, hasNone := c.err.(*unavailable)
	switch {
	case hasNone && errors.Is(failed, errRetired): // it was closed on purpose
		return
	case hasNone && failed.reason != reasonBadReply:
		if c.connection.failed.CompareAndSwap(false, true) {
			p.breaker.fail(c.key(), failed)
		}
		return
	case isReply && redirection.MatchString(string(text)):
		return
	}
	trip := c.trip()
	late := c.timeout > 0 && trip > c.timeout
	if late && c.connection.isRetired() {
		return
	}
	p.mu.Lock()
	if c.isAlone { // else it says how long it has waited behind others
		p.measure(trip)
	}
	switch {
	case late:
		p.slowFor = max(p.slowFor, c.timeout)
		if c.isAlone {
			p.roundTrip = max(p.roundTrip, trip) // until a probe says otherwise
		}
	case trip < p.slowFor && p.roundTrip < p.slowFor:
		p.slowFor = 0
	}
	isSlow := late && p.roundTrip > c.timeout
	p.mu.Unlock()
	if strings.HasPrefix(string(text), "READONLY") {
		c.connection.retire()
	}
	switch {
	case isSlow && !isCondition(c.err): // the limiter's timeout is too short, which is no failure of the server
		p.breaker.answers()
	case late: // which counts as a failure already
	case hasNone:
		p.breaker.fail(c.key(), failed)
	case isCondition(c.err), p.isReplaced(c):
		p.breaker.fail(c.key(), &unavailable{text: quoted(string(text)), reason: reasonOfReply(causeOf(string(text)))})
	default:
		c.connection.onTime.Store(int64(now()))
		if !c.isFree() {
			p.breaker.succeed()
			if !isReply {
				p.client.served.Store(true)
			}
		}
	}
}

// isCondition tells whether an error reply is about the server's condition, and none that another server may answer.
func isCondition(err error) bool {
	text, ok := err.(serverError)
	if !ok {
		return false
	}
	reason := reasonOfReply(causeOf(string(text)))
	return reason != "" && reason != reasonModuleMissing && reason != reasonCluster
}

// isReplaced tells whether a server knows neither the module nor scripts, though one has decided before: another server
// has taken its place.
func (p *server) isReplaced(c *call) bool {
	text, _ := c.err.(serverError)
	return c.byScript && unknownCommand.MatchString(string(text)) && p.client.served.Load()
}

var redirection = regexp.MustCompile("^(MOVED|ASK|TRYAGAIN) ")

// overdue gets a call that was not answered within its timeout. A stalled process says nothing of the server.
func (p *server) overdue(c *call) {
	if c.over.Load() {
		return
	}
	cn := c.connection
	p.mu.Lock()
	trip := p.roundTrip
	p.mu.Unlock()
	onTime := time.Duration(cn.onTime.Load())
	if trip <= c.timeout && (onTime == 0 || now()-onTime >= c.timeout) && cn.isNewSilence(c.written) {
		p.breaker.fail(c.key(), &unavailable{text: "no reply within " + c.timeout.String(), reason: reasonNoAnswer})
	}
	patience := max(silentTimes*c.timeout, silentTimes*trip)
	time.AfterFunc(c.written+patience-now(), func() {
		if time.Duration(cn.heard.Load()) < c.written && !c.over.Load() && !cn.isRetired() {
			p.breaker.open(&unavailable{text: "nothing heard for " + patience.String(), reason: reasonNoAnswer})
		}
	})
}

// trip is the smoothed time that a reply takes.
func (p *server) trip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrip
}

// backend says what decides there; nothing before it is known.
func (p *server) backend() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cn := range p.connections {
		if decides := cn.backend(); decides != "" {
			return decides
		}
	}
	return ""
}

// looksForModule tells whether a request that the script would decide is to go out in the module's words: once a
// minute.
func (p *server) looksForModule() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now() < p.moduleLook {
		return false
	}
	p.moduleLook = now() + jittered(lookPause)
	return true
}

// look reads what a server says of its memory, at first and then once a minute.
func (p *server) look(cn *connection) {
	p.mu.Lock()
	first := !p.looking
	p.looking = true
	p.mu.Unlock()
	if first {
		p.client.spawn(func() { p.readMemory(cn) })
	}
}

func (p *server) readMemory(cn *connection) {
	ctx, cancel := context.WithTimeout(p.client.ctx, silence)
	defer cancel()
	raw, err := cn.do(ctx, command{arguments: []string{"INFO", "memory", "stats"}})
	p.heardRight("info", err)
	if text, ok := raw.(string); ok && err == nil {
		found := memoryOf(text)
		p.mu.Lock()
		isNews := found.evicts() && !p.memory.evicts()
		p.memory = found
		p.mu.Unlock()
		if isNews {
			p.client.log().Warn("server "+p.at.Addr+" may evict counts: set its maxmemory-policy to noeviction",
				"event", "evicts", "server", p.at.Addr, "maxmemory_policy", found.policy)
		}
	}
	time.AfterFunc(jittered(lookPause), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.connections) > 0 && !p.closed {
			cn := p.connections[0]
			p.client.spawn(func() { p.readMemory(cn) })
		} else {
			p.looking = false
		}
	})
}

// heardRight gets what came of something that needs a right, and tells whether it is missing. The log says that once.
func (p *server) heardRight(right string, err error) bool {
	text, _ := err.(serverError)
	isMissing := strings.HasPrefix(string(text), "NOPERM")
	p.mu.Lock()
	isNews := isMissing && !p.lacking[right]
	switch {
	case isNews && p.lacking == nil:
		p.lacking = map[string]bool{right: true}
	case isMissing:
		p.lacking[right] = true
	case err == nil:
		delete(p.lacking, right)
	}
	p.mu.Unlock()
	if isNews {
		p.client.log().Warn("server "+p.at.Addr+" refuses "+right+", and swlimit does without: "+quoted(string(text)),
			"event", "lacks", "server", p.at.Addr, "right", right)
	}
	return isMissing
}

func memoryOf(info string) (m memory) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			m.max, _ = strconv.ParseInt(value, 10, 64)
		case "maxmemory_policy":
			m.policy = value
		case "evicted_keys":
			m.evicted, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return m
}

func (p *server) state() ServerState {
	s := ServerState{Addr: p.at.Addr, State: "up", Backend: p.backend()}
	p.mu.Lock()
	s.RoundTrip, s.Evicts, s.EvictedKeys = p.roundTrip, p.memory.evicts(), p.memory.evicted
	s.Lacks = slices.Sorted(maps.Keys(p.lacking))
	if p.slowFor > 0 {
		s.State, s.Reason = "slow", reasonSlow
	}
	p.mu.Unlock()
	p.breaker.mu.Lock()
	defer p.breaker.mu.Unlock()
	s.Since = p.breaker.since
	if why := p.breaker.why; why != nil {
		s.State, s.Reason, s.Message = "unavailable", why.reason, why.Error()
	}
	return s
}
