package swlimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	mostFailures = 3 // in a row open the breaker
	silentTimes  = 3 // so does silence for so many timeouts while something is unanswered
	firstProbe   = 100 * time.Millisecond
	lastProbe    = 500 * time.Millisecond
	probeJitter  = 0.2
	probeTimeout = 500 * time.Millisecond
)

// A breaker has nobody wait for a server that is unavailable, and finds out when it is back.
type breaker struct {
	server *server

	mu        sync.Mutex
	failed    int
	why       *unavailable // nil: it is closed, requests go out
	since     time.Time    // when that changed
	key       string       // the last one that failed
	said      bool         // the log says that the server is unavailable
	ever      bool         // it ever said so
	ended     bool
	recovered chan struct{} // closed when the server answers again
}

func (b *breaker) init(p *server) {
	b.server, b.since, b.recovered = p, time.Now(), make(chan struct{})
}

// refuses says why nothing is asked now; nil where the breaker is closed.
func (b *breaker) refuses() *unavailable {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil {
		return nil
	}
	return &unavailable{text: "the server is unavailable", reason: b.why.reason, cause: b.why}
}

// succeed gets every reply in time.
func (b *breaker) succeed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = 0
}

func (b *breaker) fail(key string, why *unavailable) {
	b.mu.Lock()
	b.failed++
	b.key = key
	open := b.failed >= mostFailures
	b.mu.Unlock()
	if open {
		b.open(why)
	}
}

// open has nobody wait for the server until it is back.
func (b *breaker) open(why *unavailable) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why != nil || b.ended || b.server.client.ctx.Err() != nil {
		return
	}
	b.why, b.since = why, time.Now()
	b.log(why)
	b.server.client.spawn(b.probe)
}

// policyDecided logs the first decision that a policy made, whether or not the breaker opens after it.
func (b *breaker) policyDecided(why *unavailable) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ever && !b.ended {
		b.log(why)
	}
}

// log says once that the server is unavailable. b.mu is held.
func (b *breaker) log(why *unavailable) {
	if b.said {
		return
	}
	b.said, b.ever = true, true
	b.server.client.log().Warn("server "+b.server.at.Addr+" is unavailable ("+why.reason+
		"); on_failure decides until it answers", "event", "unavailable", "server", b.server.at.Addr, "reason", why.reason,
		"error", why)
}

// end keeps the breaker as it is: the server is no longer a primary, or the client is closed.
func (b *breaker) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

func (b *breaker) isEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// probe looks for the server until it is back.
func (b *breaker) probe() {
	p := b.server
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		p.client.unavailable(p.at.Addr)
		jittered := time.Duration(float64(pause) * (1 - probeJitter + 2*probeJitter*rand.Float64()))
		if !sleep(p.client.ctx, jittered) || b.isEnded() {
			return
		}
		if b.refuses() == nil {
			return
		}
		if cn := b.isBack(); cn != nil {
			p.replace(cn)
			b.close()
			return
		}
	}
}

// answers gets a late reply of a server whose limiter has too short a timeout: a server that did not answer is slow.
func (b *breaker) answers() {
	b.mu.Lock()
	b.failed = 0
	isBack := b.why != nil && b.why.reason == reasonNoAnswer
	b.mu.Unlock()
	if isBack {
		b.close()
	}
}

// close has requests go out again.
func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil {
		return
	}
	b.why, b.failed, b.said, b.since = nil, 0, false, time.Now()
	close(b.recovered)
	b.recovered = make(chan struct{})
	at := b.server.at.Addr
	b.server.client.log().Info("server "+at+" answers again", "event", "available", "server", at)
}

// isBack asks over a new connection, for a write that is otherwise denied without a trace.
func (b *breaker) isBack() *connection {
	p := b.server
	ctx, cancel := context.WithTimeout(p.client.ctx, probeTimeout)
	defer cancel()
	cn := p.client.connect(p, p.at, nil, nil)
	select {
	case <-cn.ready:
	case <-ctx.Done():
		cn.fail(ctx.Err())
		return nil
	}
	b.mu.Lock()
	probes := []command{probeCommand(b.key)}
	b.mu.Unlock()
	if cn.backend() == byScript { // which denies also where nothing can be written
		key := probes[0].key()
		probes = append(probes, other(key, "SETRANGE", key, "0", ""))
	}
	for _, probe := range probes {
		_, err := cn.do(ctx, probe)
		text, _ := err.(serverError)
		isUnknown := unknownCommand.MatchString(string(text)) && p.client.served.Load()
		if ctx.Err() != nil || isUnknown || isCondition(err) || errors.As(err, new(*unavailable)) {
			cn.fail(errors.New("the server is not back"))
			return nil
		}
	}
	return cn
}

// recovery is closed when the server answers again.
func (b *breaker) recovery() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.recovered
}
