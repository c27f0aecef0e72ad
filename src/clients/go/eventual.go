package swlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mostUnsynchronized = 3           // failed synchronizations in a row, and OnFailure decides
	lateSync           = time.Second // one that takes longer is late, or one of two intervals where that is longer
	lateTimer          = 2 * time.Millisecond
	closingPause       = 50 * time.Millisecond // between synchronizations that fail while the Client closes
	together           = 500                   // the most keys of which commands go out together
	lookForRoom        = 32                    // of the keys that were used longest ago
)

// An eventual is the counts of a limiter of mode [Eventual]: no request waits for the server. Every interval all keys
// that were asked for go out together: what was used as RECORD, whose reply is the key's new state, and PEEK for a key
// with nothing to say, else a denied one would stay denied. One synchronization is under way at a time. It is over when
// its replies have come or its connection has closed.
type eventual struct {
	client   *Client
	settings *settings
	quota    quota
	keys     sharded[tally]
	counts   *counters

	forgot   atomic.Int64                // when a key was forgotten last that still mattered; 0: never
	failures atomic.Int64                // failed synchronizations in a row
	why      atomic.Pointer[unavailable] // the last one failed
	underWay atomic.Int64                // when the one under way began; 0: none is
	round    atomic.Uint64               // how many have begun, or would have with something to synchronize
	due      atomic.Int64                // when the next one is due

	mu        sync.Mutex
	queue     []queued // keys that were asked for since the last one began
	isRunning bool
}

// A queued key is part of the next synchronization.
type queued struct {
	name  string // at the server
	quota quota
	shard *shard[tally]
	tally *tally // guarded by the shard's lock
}

func newEventual(a *asker, q *quota) *eventual {
	e := &eventual{client: a.client, settings: a.settings, quota: *q, counts: a.counts}
	e.round.Store(1) // keys begin with 0: what was never part of one
	e.keys.init(a.maxKeys)
	return e
}

// allow decides by what is known, and has that counted later. by says who decides in its place: FromServer where what
// was known of the key may have been forgotten, FromFailure where nothing could be synchronized lately.
func (e *eventual) allow(name string, d *demand) (r reply, by Source, err error) {
	if e.client.waits.isClosing() {
		return r, by, ErrClosed
	}
	at, isAvailable := now(), !e.isUnavailable()
	s, key := e.lock(name, &d.quota)
	t, _ := s.entries.get(key)
	if t == nil && !(isAvailable && e.mayHaveForgotten(&d.quota, at)) {
		t = e.add(s, key, at)
	}
	switch {
	case t == nil && isAvailable:
		s.mu.Unlock()
		return r, FromServer, nil
	case t == nil:
		s.mu.Unlock()
		return r, FromFailure, nil
	case !isAvailable: // it is queued all the same, else nobody would notice that the server is back
		by = FromFailure
	case t.refused != nil:
		err = t.refused
	default:
		r, by = t.allow(d, e.known(at), at), FromEventual
	}
	e.unlockAndQueue(s, t, name, &d.quota)
	return r, by, err
}

// record counts units whatever is available, as used so many ms ago, and is the decision for as much again.
func (e *eventual) record(name string, d *demand, age int64) (reply, error) {
	if e.client.waits.isClosing() {
		return reply{}, ErrClosed
	}
	at := now()
	s, key := e.lock(name, &d.quota)
	t, _ := s.entries.get(key)
	if t == nil {
		t = e.add(s, key, at)
	}
	if t == nil { // it counts all the same
		t = new(tally)
	}
	granted := t.peek(d, e.known(at), at).granted
	t.record(d.cost, at-duration(age), apart(&d.quota))
	r := t.peek(d, e.known(at), at)
	r.granted = granted
	e.unlockAndQueue(s, t, name, &d.quota)
	return r, nil
}

// hear learns what the server decided itself.
func (e *eventual) hear(name string, q *quota, r reply) {
	at := now()
	s, key := e.lock(name, q)
	defer s.mu.Unlock()
	t, _ := s.entries.get(key)
	if t == nil {
		t = e.add(s, key, at)
	}
	if t != nil {
		t.round = e.known(at).round
		t.hear(&r, at)
	}
}

// takeBack takes back units that were not sent yet; how many.
func (e *eventual) takeBack(name string, q *quota, units int64) int64 {
	s, key := e.lock(name, q)
	defer s.mu.Unlock()
	if t, ok := s.entries.get(key); ok {
		return t.takeBack(units)
	}
	return 0
}

// unsynchronized is why the policy decides, which the log says once.
func (e *eventual) unsynchronized(name string) error {
	why := &unavailable{text: "nothing could be synchronized lately", reason: reasonNoAnswer}
	if last := e.why.Load(); last != nil {
		why.reason, why.cause = last.reason, last
	}
	if p, err := e.client.primary(e.client.ctx, name, e.settings.timeout); err == nil {
		p.breaker.policyDecided(why)
	}
	return why
}

// lock locks the shard of a key, and is where its counts are there. Those of another quota, of With, are apart.
func (e *eventual) lock(name string, q *quota) (*shard[tally], string) {
	if *q != e.quota {
		name = fmt.Sprint(name, "\x00", *q)
	}
	key := remembered(name)
	s := &e.keys.shards[e.keys.shard(key)]
	s.mu.Lock()
	return s, key
}

func (e *eventual) known(at time.Duration) known {
	round := e.round.Load()
	// One that is missed, because there was nothing to synchronize, makes what was heard before it as old.
	if at > time.Duration(e.due.Load())+lateTimer && e.underWay.Load() == 0 {
		round++
	}
	return known{e.settings.localShare, round}
}

// isUnavailable tells whether OnFailure decides, because nothing could be synchronized lately.
func (e *eventual) isUnavailable() bool {
	since := time.Duration(e.underWay.Load())
	return e.failures.Load() >= mostUnsynchronized || since > 0 && now()-since > max(lateSync, 2*e.settings.syncInterval)
}

// mayHaveForgotten tells whether an unknown key may be one that was forgotten, and that still matters.
func (e *eventual) mayHaveForgotten(q *quota, at time.Duration) bool {
	forgot := time.Duration(e.forgot.Load())
	return forgot > 0 && at-forgot < duration(q.window+q.resolution)
}

// add is the counts of a new key; nil where there is no room. Keys that were used longest ago are forgotten for it,
// but none with something unsent.
func (e *eventual) add(s *shard[tally], key string, at time.Duration) *tally {
	for looked := 0; s.entries.len() >= e.keys.most; looked++ {
		if looked == lookForRoom {
			e.forgot.Store(int64(at))
			return nil
		}
		oldest := s.entries.oldest
		if oldest.value.isPinned() {
			s.entries.renew(oldest)
			continue
		}
		if at < oldest.value.resetAt {
			e.forgot.Store(int64(at))
			e.counts.evicted.Add(1)
		}
		s.entries.remove(oldest.key)
	}
	t := new(tally)
	s.entries.put(key, t, e.keys.most)
	return t
}

func (e *eventual) unlockAndQueue(s *shard[tally], t *tally, name string, q *quota) {
	isFirst := !t.isQueued
	t.isQueued = true
	s.mu.Unlock()
	if isFirst {
		e.enqueue(queued{name, *q, s, t})
	}
}

func (e *eventual) enqueue(q queued) {
	e.mu.Lock()
	e.queue = append(e.queue, q)
	starts := !e.isRunning
	e.isRunning = true
	e.mu.Unlock()
	if starts && !e.client.settle(e.run) {
		e.giveUp()
	}
}

// run synchronizes every interval while there is something to synchronize: at once for the first keys, of which nothing
// is known. While the Client closes it goes on until all is sent.
func (e *eventual) run() {
	for c := e.client; ; e.synchronize() {
		isClosing := c.waits.isClosing()
		if !e.hasMore(isClosing) {
			return
		}
		pause := time.Duration(e.due.Load()) - now()
		closing := c.waits.closing
		if isClosing {
			pause, closing = 0, nil
			if e.failures.Load() > 0 {
				pause = closingPause
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-closing:
		case <-c.ctx.Done():
		}
		timer.Stop()
		if c.ctx.Err() != nil {
			e.giveUp()
			return
		}
	}
}

// hasMore tells whether there is something to synchronize; else it runs no longer. In the end that is only what is
// unsent.
func (e *eventual) hasMore(isClosing bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if isClosing {
		e.queue = slices.DeleteFunc(e.queue, func(q queued) bool {
			q.shard.mu.Lock()
			defer q.shard.mu.Unlock()
			q.tally.isQueued = q.tally.unsent() > 0
			return !q.tally.isQueued
		})
	}
	e.isRunning = len(e.queue) > 0
	return e.isRunning
}

// giveUp ends it: nothing that is unsent will be sent.
func (e *eventual) giveUp() {
	e.mu.Lock()
	queue := e.queue
	e.queue, e.isRunning = nil, false
	e.mu.Unlock()
	units, keys := int64(0), 0
	for _, q := range queue {
		q.shard.mu.Lock()
		given := q.tally.giveUp()
		q.shard.mu.Unlock()
		if given > 0 {
			units, keys = units+given, keys+1
		}
	}
	e.lose(units, keys)
}

func (e *eventual) lose(units int64, keys int) {
	if units > 0 {
		e.client.lostUnits.Add(units)
		e.client.log().Warn("units were granted that the rate limit server may not have counted", "event", "lost", "units",
			units, "keys", keys)
	}
}

// apart is how far batches are apart.
func apart(q *quota) time.Duration { return max(duration(q.resolution)/10, time.Millisecond) }

// A synchronizing key has its commands on their way.
type synchronizing struct {
	queued
	batches  []batch
	commands []command
	replies  []any
	errors   []error
	server   *server // of the last reply; nil: none could be asked
}

// synchronize says what was used, and hears what the server knows, of all keys that were asked for.
func (e *eventual) synchronize() {
	began := now()
	rounds := uint64(1)
	if began > time.Duration(e.due.Load())+lateTimer {
		rounds++ // one was missed
	}
	round := e.round.Add(rounds)
	e.underWay.Store(int64(began))
	e.due.Store(int64(began + e.settings.syncInterval))
	e.mu.Lock()
	queue := e.queue
	e.queue = nil
	e.mu.Unlock()
	all := make([]*synchronizing, 0, len(queue))
	for _, q := range queue {
		q.shard.mu.Lock()
		batches := q.tally.begin(round, duration(q.quota.window), apart(&q.quota), began)
		q.shard.mu.Unlock()
		all = append(all, &synchronizing{queued: q, batches: batches})
	}
	isDone := map[*server]bool{}
	units, keys := int64(0), 0
	for chunk := range slices.Chunk(all, together) {
		e.exchange(chunk)
		for _, s := range chunk {
			if lost := e.over(s, isDone); lost > 0 {
				units, keys = units+lost, keys+1
			}
		}
	}
	e.lose(units, keys)
	e.failures.Add(1)
	for _, done := range isDone {
		if done { // of a cluster, one server suffices
			e.failures.Store(0)
			e.why.Store(nil)
		}
	}
	e.due.Store(max(e.due.Load(), int64(now()))) // the next begins at once if this took longer than an interval
	e.underWay.Store(0)
}

// exchange has all commands go out, and their replies come.
func (e *eventual) exchange(chunk []*synchronizing) {
	var asking sync.WaitGroup
	var mu sync.Mutex
	at := now()
	for _, s := range chunk {
		s.commands = s.command(at, e.settings.block)
		s.replies, s.errors = make([]any, len(s.commands)), make([]error, len(s.commands))
		for i, cmd := range s.commands {
			asking.Go(func() {
				raw, by, err := e.client.deliver(cmd, e.settings.timeout)
				mu.Lock()
				defer mu.Unlock()
				s.replies[i], s.errors[i] = raw, err
				if by != nil {
					s.server = by
				}
			})
		}
	}
	asking.Wait()
}

// command are what a key sends: what was used, dated; or a read, where nothing was. Usage beyond the limit begins the
// block, in ms.
func (s *synchronizing) command(at time.Duration, block int64) []command {
	if len(s.batches) == 0 {
		return []command{peekCommand(s.name, &demand{s.quota, 1, false})}
	}
	commands := make([]command, len(s.batches))
	for i, b := range s.batches {
		commands[i] = recordCommand(s.name, &demand{s.quota, b.units, false}, max(0, at-b.at).Milliseconds(), block)
	}
	return commands
}

// over ends a key's part in a synchronization; how many units are lost.
func (e *eventual) over(s *synchronizing, isDone map[*server]bool) int64 {
	outcomes := make([]outcome, len(s.commands))
	var global *reply
	var refused error
	isAnswered := true
	for i, err := range s.errors {
		var failed *unavailable
		switch {
		case err == nil:
			outcomes[i] = wasCounted
			// The replies may come in any order: the latest is the one of which least remains.
			if r, err := replyOf(s.replies[i]); err == nil && (global == nil || r.remaining < global.remaining) {
				global = &r
			}
		case errors.As(err, &failed):
			isAnswered = false
			e.why.Store(failed)
			if failed.sent && !failed.isReply {
				outcomes[i] = isInDoubt
			}
		case errors.Is(err, ErrClosed), errors.Is(err, context.Canceled):
			isAnswered = false
		default:
			outcomes[i], refused = wasRefused, err
		}
	}
	if done, isThere := isDone[s.server]; s.server != nil {
		isDone[s.server] = isAnswered && (done || !isThere)
	}
	s.shard.mu.Lock()
	dropped, lost, again := s.tally.end(outcomes[:len(s.batches)], global, now())
	isNews := refused != nil && s.tally.refused == nil
	if refused != nil {
		s.tally.refused = refused
	}
	isBehind := s.tally.unsent() > 0 && !s.tally.isQueued
	s.tally.isQueued = s.tally.isQueued || isBehind
	s.shard.mu.Unlock()
	if isNews {
		e.client.log().Warn("the rate limit server refuses a key that is synchronized", "event", "refused", "key", s.name, "error",
			refused)
	}
	e.counts.refused.Add(dropped)
	e.counts.sentAgain.Add(again)
	if isBehind {
		e.enqueue(s.queued)
	}
	return lost
}
