package swlimit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/swlimit/swlimit/src/server/script"
)

const (
	refusedPause  = time.Second // after a connection could not be had, none is asked for
	forbiddenTime = time.Minute // nor after one was of no use for lack of a right
)

// A tracker hears at once what is given back at one server. After a denial, and where many are denied, PEEK of the same
// key goes out on its connection, which has client tracking on: that registers the key, and the server says once when
// it changes. PEEK's own reply, and not the denial's, is what is remembered.
type tracker struct {
	server *server

	mu           sync.Mutex
	connection   *connection
	opening      chan struct{} // closed when that is over
	refusedUntil time.Duration
	looking      map[string]bool
}

// isOpen says whether the server sends invalidations.
func (t *tracker) isOpen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.connection != nil
}

// denied remembers what the server denied to a request that would have begun a block of so many ms.
func (t *tracker) denied(key string, wanted *demand, r reply, asked question, block int64, s *settings) {
	peek := peekCommand(key, wanted)
	look := strings.Join(peek.words(), " ")
	if block > 0 {
		look = "b " + look
	}
	if r.retryAfter < 0 {
		return
	}
	c, wait := t.server.client, duration(r.retryAfter)
	short := max(shortDenial, shortInTrips*t.server.trip())
	t.mu.Lock()
	refused := t.connection == nil && now() < t.refusedUntil
	// Nothing is remembered from before the server sent invalidations.
	isShort := wait <= short && asked.tracked
	looks := !refused && !isShort && !t.looking[look] && c.denials.paysToLook(key, now(), wait)
	if looks {
		if t.looking == nil {
			t.looking = map[string]bool{}
		}
		t.looking[look] = true
	}
	t.mu.Unlock()
	switch {
	case refused || isShort:
		c.denials.remember(key, wanted, asked, r, block, s.maxUntrackedAge)
	case looks:
		over := func() {
			t.mu.Lock()
			delete(t.looking, look)
			t.mu.Unlock()
		}
		if !c.spawn(func() { defer over(); t.look(key, wanted, peek, block) }) {
			over()
		}
	}
}

func (t *tracker) look(key string, wanted *demand, peek command, block int64) {
	c := t.server.client
	ctx, cancel := context.WithTimeout(c.ctx, silence)
	defer cancel()
	cn := t.open(ctx)
	if cn == nil {
		return
	}
	asked := c.denials.ask(key, true)
	pttl := &call{command: other(key, "PTTL", key), done: make(chan struct{})}
	first := &call{command: peek, done: make(chan struct{})}
	cn.add(first)
	cn.add(pttl)
	for _, each := range []*call{first, pttl} {
		select {
		case <-each.done:
		case <-ctx.Done():
			return
		}
	}
	if lacksPTTL := t.server.heardRight("pttl", pttl.err); lacksPTTL || t.server.heardRight("peek", first.err) {
		t.refuse(cn, forbiddenTime)
		return
	}
	if text, ok := first.err.(serverError); ok {
		if strings.HasPrefix(string(text), "NOSCRIPT") {
			_, _ = cn.do(ctx, command{arguments: []string{"SCRIPT", "LOAD", script.Text}}) // for the next look
		} else if strings.HasPrefix(string(text), "WRONGTYPE") || unknownCommand.MatchString(string(text)) {
			cn.fail(errors.New("the module has come or gone")) // which the next connection finds out
		}
		return
	}
	r, err := replyOf(first.reply)
	expiry, ok := pttl.reply.(int64)
	if err != nil || !ok || expiry == -2 {
		return
	}
	// A server that has not noticed that a key expired tells nobody.
	longest := Never
	if expiry >= 0 {
		longest = time.Duration(expiry) * time.Millisecond
	}
	c.denials.remember(key, wanted, asked, r, block, longest)
}

// open is the connection, once it is up; nil where there is none.
func (t *tracker) open(ctx context.Context) *connection {
	t.mu.Lock()
	if t.connection != nil || now() < t.refusedUntil {
		defer t.mu.Unlock()
		return t.connection
	}
	opening := t.opening
	if opening == nil {
		opening = make(chan struct{})
		t.opening = opening
		t.mu.Unlock()
		t.connect(ctx)
		t.mu.Lock()
		close(opening)
		t.opening = nil
		defer t.mu.Unlock()
		return t.connection
	}
	t.mu.Unlock()
	select {
	case <-opening:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.connection
}

func (t *tracker) connect(ctx context.Context) {
	c := t.server.client
	cn := c.connect(nil, t.server.at, t.invalidated, t.lost)
	select {
	case <-cn.ready:
	case <-ctx.Done():
		cn.fail(ctx.Err())
	}
	cn.mu.Lock()
	up, err := cn.up, cn.err
	cn.mu.Unlock()
	lacksTracking := t.server.heardRight("client|tracking", err)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case up && !cn.isGone(): // else lost has come before
		t.connection = cn
		c.spawn(func() { t.watch(cn) })
	case lacksTracking:
		t.refusedUntil = now() + forbiddenTime
	default:
		t.refusedUntil = now() + refusedPause
	}
}

// invalidated handles a push.
func (t *tracker) invalidated(push pushed) {
	if len(push) < 2 || push[0] != "invalidate" {
		return
	}
	c := t.server.client
	keys, ok := push[1].([]any)
	if !ok {
		c.denials.forgetAll()
		c.waits.allChanged()
		return
	}
	for _, each := range keys {
		if key, ok := each.(string); ok {
			c.denials.forget(key)
			c.waits.changed(key)
		}
	}
}

// register has the server announce a key's next change, where it announces any.
func (t *tracker) register(ctx context.Context, key string) {
	t.mu.Lock()
	cn := t.connection
	t.mu.Unlock()
	if cn != nil {
		_, _ = cn.do(ctx, other(key, "PTTL", key))
	}
}

// lost forgets everything, because the connection is gone, and its invalidations with it.
func (t *tracker) lost(cn *connection) {
	t.mu.Lock()
	if t.connection == cn {
		t.connection = nil
	}
	t.mu.Unlock()
	t.server.client.denials.forgetAll()
	t.server.client.waits.allChanged()
}

func (t *tracker) refuse(cn *connection, pause time.Duration) {
	t.mu.Lock()
	t.refusedUntil = now() + pause
	t.mu.Unlock()
	cn.fail(ErrClosed)
}

func (t *tracker) close() {
	t.mu.Lock()
	cn := t.connection
	t.mu.Unlock()
	if cn != nil {
		cn.fail(ErrClosed)
	}
}

// watch asks a connection that has been silent whether it is still there: nobody else notices one that is half open
// while everything is denied without asking.
func (t *tracker) watch(cn *connection) {
	ticker := time.NewTicker(silence)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-cn.gone:
			return
		}
		if t.server.client.denials.size.Load() == 0 || now()-time.Duration(cn.heard.Load()) < silence {
			continue
		}
		ctx, cancel := context.WithTimeout(t.server.client.ctx, silence)
		_, err := cn.do(ctx, command{arguments: []string{"PING"}})
		cancel()
		if !t.server.heardRight("ping", err) && err != nil {
			cn.fail(err)
		}
	}
}
