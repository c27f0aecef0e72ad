package swlimit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// clock is Unix time in ms as it was when this process began, and has gone on since: nobody can set it.
func clock() int64 { return began.UnixMilli() + now().Milliseconds() }

// sharded is what this process remembers of keys, in parts with a lock each.
type sharded[V any] struct {
	seed   maphash.Seed
	most   int    // keys of a shard
	used   uint64 // shards: fewer where there are few keys, for each forgets by itself
	shards [shards]shard[V]
}

type shard[V any] struct {
	mu      sync.Mutex
	entries bounded[*V]
	_       [64]byte // no two of them share a cache line
}

func (s *sharded[V]) init(most int64) {
	used := min(shards, max(1, most/shards))
	s.seed, s.most, s.used = maphash.MakeSeed(), int(most/used), uint64(used)
}

// shard is where a key is remembered.
func (s *sharded[V]) shard(key string) uint64 { return maphash.String(s.seed, key) % s.used }

// windows are those of this process: for limits without a server, and for the time that it does not answer.
type windows struct {
	sharded[entry]
	number  int64         // no two have the same
	evicted *atomic.Int64 // keys that were forgotten while they still counted
	fake    *fakeWindows  // decides in their place; nil: none
}

var numbers atomic.Int64

func newWindows(most int64, evicted *atomic.Int64) *windows {
	w := &windows{number: numbers.Add(1), evicted: evicted}
	w.init(most)
	return w
}

// lock is what a key holds, for one goroutine alone, until it unlocks the shard.
func (w *windows) lock(key string) (*entry, *shard[entry]) {
	key = remembered(key)
	at := w.shard(key)
	s := &w.shards[at]
	s.mu.Lock()
	return w.entry(at, key), s
}

// entry is what a key holds. Its shard is locked.
func (w *windows) entry(at uint64, key string) *entry {
	if w.fake != nil {
		return new(entry)
	}
	s := &w.shards[at]
	e, ok := s.entries.get(key)
	if !ok {
		w.makeRoom(s)
		e = new(entry)
		s.entries.put(key, e, w.most)
	}
	return e
}

// makeRoom forgets keys that were used longest ago. Those that are blocked stay, up to half of all.
func (w *windows) makeRoom(s *shard[entry]) {
	at := clock()
	for pinned := 0; s.entries.len() >= w.most; {
		oldest := s.entries.oldest
		if at < oldest.value.blockedUntil && pinned < w.most/2 {
			pinned++
			s.entries.renew(oldest)
			continue
		}
		if at < max(oldest.value.end(), oldest.value.blockedUntil) {
			w.evicted.Add(1)
		}
		s.entries.remove(oldest.key)
	}
}

func (w *windows) allow(key string, d *demand, block int64) (reply, error) {
	if w.fake != nil {
		return w.fake.allow("allow", key, *d, block)
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	return e.allow(d, clock(), block)
}

func (w *windows) peek(key string, d *demand) (reply, error) {
	if w.fake != nil {
		return w.fake.peek("peek", key, *d)
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	return e.peek(d, clock())
}

func (w *windows) record(key string, d *demand, age, block int64) (reply, error) {
	if w.fake != nil {
		return w.fake.record(key, *d, age, block)
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	return e.record(d, clock(), age, block)
}

func (w *windows) refund(key string, units, age int64) int64 {
	if w.fake != nil {
		w.fake.Called("refund", key, units)
		return units
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	return e.refund(units, clock(), age)
}

// block says for how many ms the key is blocked then.
func (w *windows) block(key string, length int64, unlessBlocked bool) int64 {
	if w.fake != nil {
		w.fake.Called("block", key, 0)
		return upTo(w.fake.Block(key, duration(length), unlessBlocked))
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	at := clock()
	return e.block(length, at, unlessBlocked) - at
}

func (w *windows) unblock(key string) bool {
	if w.fake != nil {
		w.fake.Called("unblock", key, 0)
		return w.fake.Unblock(key)
	}
	e, held := w.lock(key)
	defer held.mu.Unlock()
	return e.unblock(clock())
}

func (w *windows) forget(key string) {
	if w.fake != nil {
		w.fake.Called("reset", key, 0)
		w.fake.Unblock(key)
		return
	}
	key = remembered(key)
	s := &w.shards[w.shard(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.remove(key)
}
