package swlimit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// clock is Unix time in ms as it was when this process began, and has gone on since: nobody can set it.
func clock() int64 { return began.UnixMilli() + now().Milliseconds() }

// windows are those of this process: for limits without a server, and for the time that it does not answer.
type windows struct {
	number  int64 // no two have the same
	seed    maphash.Seed
	most    int           // keys of a shard
	used    uint64        // shards: fewer where there are few keys, for each forgets by itself
	evicted *atomic.Int64 // keys that were forgotten while they still counted
	shards  [shards]windowShard
}

type windowShard struct {
	mu      sync.Mutex
	entries bounded[*entry]
	_       [64]byte // no two of them share a cache line
}

var numbers atomic.Int64

func newWindows(most int64, evicted *atomic.Int64) *windows {
	used := min(shards, max(1, most/shards))
	return &windows{number: numbers.Add(1), seed: maphash.MakeSeed(), most: int(most / used), used: uint64(used),
		evicted: evicted}
}

// shard is where a key is remembered.
func (w *windows) shard(key string) uint64 { return maphash.String(w.seed, key) % w.used }

// lock is what a key holds, for one goroutine alone, until it unlocks the shard.
func (w *windows) lock(key string) (*entry, *windowShard) {
	key = remembered(key)
	at := w.shard(key)
	s := &w.shards[at]
	s.mu.Lock()
	return w.entry(at, key), s
}

// entry is what a key holds. Its shard is locked.
func (w *windows) entry(shard uint64, key string) *entry {
	s := &w.shards[shard]
	e, ok := s.entries.get(key)
	if !ok {
		w.makeRoom(s)
		e = new(entry)
		s.entries.put(key, e, w.most)
	}
	return e
}

// makeRoom forgets keys that were used longest ago. Those that are blocked stay, up to half of all.
func (w *windows) makeRoom(s *windowShard) {
	at := clock()
	for pinned := 0; s.entries.len() >= w.most; {
		oldest := s.entries.oldest
		if at < oldest.value.blockedUntil && pinned < w.most/2 {
			pinned++
			s.entries.renew(oldest)
			continue
		}
		if at < max(oldest.value.counts.end(), oldest.value.blockedUntil) {
			w.evicted.Add(1)
		}
		s.entries.remove(oldest.key)
	}
}

func (w *windows) forget(key string) {
	key = remembered(key)
	s := &w.shards[w.shard(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.remove(key)
}
