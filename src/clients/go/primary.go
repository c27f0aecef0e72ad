package swlimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	failures      = 3 // so many in a row open the breaker
	silentTimes   = 3 // so does something unanswered while nothing was heard for so many timeouts
	firstProbe    = 100 * time.Millisecond
	lastProbe     = 500 * time.Millisecond
	probeJitter   = 0.2
	probeTimeout  = 500 * time.Millisecond
	shortDenial   = 20 * time.Millisecond // what ends sooner is not worth two commands
	shortInTrips  = 4
	roundTripFade = 0.9
)

// A primary is one server that grants. What is known of it belongs to no request: every reply is read.
type primary struct {
	conn   *Conn
	server Server

	mu        sync.Mutex
	link      *link
	failed    int
	away      string // why it is not asked; empty: it is
	since     time.Time
	slow      bool
	closed    bool          // it is no longer a primary, or the Conn is closed
	key       string        // the last one that failed
	heard     time.Duration // when a reply came last
	roundTrip time.Duration // the longest lately
	recovered chan struct{} // closed when it answers again

	tracker tracker
}

// A ServerState says how a server is, as far as this process can tell.
type ServerState struct {
	// Addr is its address.
	Addr string
	// State is "up", "slow" (its last reply came too late) or "away" (it is not asked now).
	State string
	// Reason says why it is away, in one word that is the same in every language; Message in the words of the error.
	Reason, Message string
	// Since says since when its state is what it is.
	Since time.Time
	// RoundTrip is the longest that a reply took lately; 0 before the first.
	RoundTrip time.Duration
	// Backend is "module" or "script"; empty until it is known.
	Backend string
}

func newPrimary(c *Conn, server Server) *primary {
	p := &primary{conn: c, server: server, since: time.Now(), recovered: make(chan struct{})}
	p.tracker.primary = p
	return p
}

// current is the link on which commands go out now.
func (p *primary) current() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil || !p.link.takes() {
		p.replace(p.conn.connect(p.server, nil, nil))
		p.watchConnect(p.link)
		if p.closed {
			p.link.fail(ErrClosed)
		}
	}
	return p.link
}

// replace has commands go out on another link. p.mu is held.
func (p *primary) replace(l *link) {
	if p.link != nil {
		p.link.retire()
	}
	p.link = l
}

// watchConnect opens the breaker where connecting takes too long.
func (p *primary) watchConnect(l *link) {
	time.AfterFunc(slowConnect, func() {
		select {
		case <-l.ready:
		default:
			p.open("cannot connect within " + slowConnect.String())
		}
	})
}

// unavailable says why the server is not asked; nil where it is.
func (p *primary) unavailable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away == "" {
		return nil
	}
	return &unavailable{reason: "the server does not answer: " + p.away}
}

// heardOf gets every reply, and every call that will have none.
func (p *primary) heardOf(c *call) {
	at := now()
	if why := conditionOf(c.err); why != "" {
		if late := c.written > 0 && at-c.written > c.timeout; !late {
			p.fail(c.key(), why)
		}
		if strings.HasPrefix(why, "READONLY") {
			c.link.retire()
			p.open(why)
		}
		return
	}
	if errors.Is(c.err, errRetired) {
		return // the link was closed on purpose
	}
	if errors.As(c.err, new(*unavailable)) {
		p.fail(c.key(), c.err.Error())
		return
	}
	trip := at - c.written
	late := trip > c.timeout
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = at
	if p.slow != late {
		p.slow = late
		if p.away == "" {
			p.since = time.Now()
		}
	}
	if late {
		return
	}
	p.failed = 0
	p.roundTrip = max(trip, time.Duration(roundTripFade*float64(p.roundTrip)))
}

// conditionOf is an error reply that counts as a failure of the server's; empty for all others.
func conditionOf(err error) string {
	reply, ok := err.(serverError)
	if !ok {
		return ""
	}
	var found *unavailable
	if !errors.As(understood(reply), &found) || redirection.MatchString(string(reply)) ||
		strings.HasPrefix(string(reply), "UNBLOCKED") {
		return ""
	}
	return string(reply)
}

var redirection = regexp.MustCompile("^(MOVED|ASK|TRYAGAIN) ")

// overdue gets a call that was not answered within its timeout.
func (p *primary) overdue(c *call) {
	if c.over.Load() {
		return
	}
	p.fail(c.key(), fmt.Sprintf("no reply within %v", c.timeout))
	time.AfterFunc((silentTimes-1)*c.timeout, func() {
		p.mu.Lock()
		silent := p.heard < c.written
		p.mu.Unlock()
		if silent && !c.over.Load() {
			p.open(fmt.Sprintf("nothing heard for %v", silentTimes*c.timeout))
		}
	})
}

func (p *primary) fail(key, why string) {
	p.mu.Lock()
	p.failed++
	p.key = key
	open := p.failed >= failures
	p.mu.Unlock()
	if open {
		p.open(why)
	}
}

// open has nobody wait for the server until it is back.
func (p *primary) open(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away != "" || p.closed || p.conn.ctx.Err() != nil {
		return
	}
	p.away, p.since = why, time.Now()
	slog.Warn("swlimit: the server does not answer", "server", p.server.Addr, "reason", reasonOf(why), "message", why)
	p.conn.spawn(p.probe)
}

// probe looks for the server until it is back.
func (p *primary) probe() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		p.conn.away(p.server.Addr)
		jittered := time.Duration(float64(pause) * (1 - probeJitter + 2*probeJitter*rand.Float64()))
		if !sleep(p.conn.ctx, jittered) || p.isClosed() {
			return
		}
		if l := p.isBack(); l != nil {
			p.mu.Lock()
			p.replace(l)
			p.away, p.failed, p.since, p.slow = "", 0, time.Now(), false
			close(p.recovered)
			p.recovered = make(chan struct{})
			p.mu.Unlock()
			slog.Info("swlimit: the server answers again", "server", p.server.Addr)
			return
		}
	}
}

func (p *primary) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// isBack asks over a new connection, for a write that is otherwise denied without a trace.
func (p *primary) isBack() *link {
	ctx, cancel := context.WithTimeout(p.conn.ctx, probeTimeout)
	defer cancel()
	l := p.conn.connect(p.server, nil, nil)
	select {
	case <-l.ready:
	case <-ctx.Done():
		l.fail(ctx.Err())
		return nil
	}
	p.mu.Lock()
	probe := probeCommand(p.key)
	p.mu.Unlock()
	if l.backend() == byScript { // which denies also where nothing can be written
		probe = other(probe.key(), "SETRANGE", probe.key(), "0", "")
	}
	_, err := l.do(ctx, probe)
	if ctx.Err() != nil || conditionOf(err) != "" || errors.As(err, new(*unavailable)) {
		l.fail(errors.New("the server is not back"))
		return nil
	}
	return l
}

// recovery is closed when the server answers again.
func (p *primary) recovery() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recovered
}

// trip is the longest that a reply took lately.
func (p *primary) trip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrip
}

func (p *primary) state() ServerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := ServerState{Addr: p.server.Addr, State: "up", Since: p.since, RoundTrip: p.roundTrip}
	switch {
	case p.away != "":
		s.State, s.Reason, s.Message = "away", reasonOf(p.away), p.away
	case p.slow:
		s.State = "slow"
	}
	if p.link != nil {
		s.Backend = p.link.backend()
	}
	return s
}

var code = regexp.MustCompile(`^(READONLY|OOM|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER)\b`)

// reasons are what failures come to, by the words of the server or the system.
var reasons = []struct {
	words  *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`^(NOAUTH|WRONGPASS)\b|(NOAUTH|WRONGPASS) `), "password"},
	{regexp.MustCompile("(?i)connection refused|no such file"), "refused"},
	{regexp.MustCompile("(?i)no such host|server misbehaving"), "unresolved"},
	{regexp.MustCompile("(?i)certificate|x509|tls"), "certificate"},
	{regexp.MustCompile("(?i)max number of clients"), "too_many_clients"},
	{regexp.MustCompile("(?i)unknown command|does not have the module"), "module_missing"},
	{regexp.MustCompile("(?i)no reply|nothing heard|cannot connect|deadline exceeded|time(d)? ?out"), "no_answer"},
	{regexp.MustCompile("(?i)EOF|broken pipe|reset|closed|lost"), "disconnected"},
}

func reasonOf(message string) string {
	if found := code.FindString(message); found != "" {
		return found
	}
	for _, each := range reasons {
		if each.words.MatchString(message) {
			return each.reason
		}
	}
	return "other"
}
