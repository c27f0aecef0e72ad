package swlimit

import (
	"crypto/sha256"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	shards        = 64  // of what is remembered, so that keys hardly disturb one another
	longestName   = 128 // longer keys are remembered by their hash
	denialsOfAKey = 4   // more different denials of one key are not worth remembering
	lookDenials   = 4   // a look at a key is two commands, worth it where so many are denied before one can be granted
)

// A denial says what the server would deny without being asked.
type denial struct {
	quota
	least  int64 // this cost, and all that is more
	blocks bool  // it was denied to a request that begins a block
	until  time.Duration
	heard  time.Duration // when the reply came
	reply  reply
}

// A question is what was known when a request was sent.
type question struct {
	generation uint64
	sent       time.Duration
	tracked    bool
}

// denied is what is known of a key's denials, and how often requests for it are denied.
type denied struct {
	known         []denial
	before        time.Duration // from then on one can be granted
	count, lately int           // of denials before that, and in the same way the last time
}

// A denialCache holds what is known to be denied. Keys that were asked for longest ago are forgotten first.
type denialCache struct {
	seed   maphash.Seed
	most   atomic.Int64 // keys
	size   atomic.Int64 // keys with known denials
	shards [shards]denialShard
}

type denialShard struct {
	mu sync.Mutex
	// generation moves on whenever something of a key has to be forgotten: an invalidation may be handled before the
	// reply that it belongs behind.
	generation uint64
	keys       bounded[denied]
	_          [64]byte // no two of them share a cache line
}

func (d *denialCache) init() { d.seed = maphash.MakeSeed() }

// atMost has so many keys remembered, or more where another limiter says so.
func (d *denialCache) atMost(keys int64) {
	for most := d.most.Load(); keys > most && !d.most.CompareAndSwap(most, keys); most = d.most.Load() {
	}
}

func (d *denialCache) shard(key string) *denialShard {
	return &d.shards[maphash.String(d.seed, key)%shards]
}

// remembered stands for a key in this process.
func remembered(key string) string {
	if len(key) <= longestName {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return string(sum[:])
}

// ask reads the generation: do it before you ask, and give it to remember.
func (d *denialCache) ask(key string, tracked bool) question {
	s := d.shard(remembered(key))
	s.mu.Lock()
	defer s.mu.Unlock()
	return question{s.generation, now(), tracked}
}

// find is the decision about a request that is known to be denied.
func (d *denialCache) find(key string, wanted *demand, blocks bool) (reply, bool) {
	least := wanted.least()
	if least > wanted.limit && !blocks {
		return unknown(0, wanted.limit, -1), true
	}
	if d.size.Load() == 0 {
		return reply{}, false
	}
	key = remembered(key)
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys.find(key)
	if k == nil {
		return reply{}, false
	}
	at := now()
	live := false
	for i := range k.known {
		each := &k.known[i]
		if at >= each.until {
			continue
		}
		live = true
		if least < each.least || each.quota != wanted.quota || (blocks && !each.blocks) {
			continue
		}
		k.count++
		passed := at - each.heard
		r := each.reply
		r.retryAfter, r.resetAfter = leftOf(r.retryAfter, passed), leftOf(r.resetAfter, passed)
		return r, true
	}
	if !live {
		d.end(k)
	}
	return reply{}, false
}

// leftOf is what is left of so many ms, rounded up.
func leftOf(ms int64, passed time.Duration) int64 {
	return max(1, ms-passed.Milliseconds())
}

// remember a denial for so long at most, unless its key has moved on since it was asked about. block is how long the
// request would block the key, in ms: then it begins another block.
func (d *denialCache) remember(key string, wanted *demand, asked question, r reply, block int64, longest time.Duration) {
	if r.granted > 0 || r.retryAfter <= 0 {
		return
	}
	known := min(deniedFor(r.retryAfter), longest)
	if block > 0 {
		known = min(known, time.Duration(block)*time.Millisecond)
	}
	at := now()
	made := denial{wanted.quota, wanted.least(), block > 0, asked.sent + known, at, r}
	if made.until <= at {
		return
	}
	key = remembered(key)
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != asked.generation {
		return
	}
	k := d.of(s, key)
	if k.known == nil {
		d.size.Add(1)
	}
	all := make([]denial, 1, 1+len(k.known))
	all[0] = made
	for _, other := range k.known {
		if at < other.until && !made.covers(&other) && len(all) < denialsOfAKey {
			all = append(all, other)
		}
	}
	k.known = all
}

// of is what is known of a key. Its shard is locked.
func (d *denialCache) of(s *denialShard, key string) *denied {
	if k := s.keys.find(key); k != nil {
		return k
	}
	most := int(max(1, d.most.Load()/shards))
	if s.keys.len() >= most {
		d.end(&s.keys.oldest.value)
	}
	return s.keys.put(key, denied{}, most)
}

// end forgets the denials of a key, and not how many there were. Its shard is locked.
func (d *denialCache) end(k *denied) {
	if k.known != nil {
		k.known = nil
		d.size.Add(-1)
	}
}

// paysToLook counts a denial by the server, and tells whether a look at the key pays: so many requests are denied
// before one can be granted, or were the last time.
func (d *denialCache) paysToLook(key string, at, retryAfter time.Duration) bool {
	key = remembered(key)
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := d.of(s, key)
	if k.before <= at {
		k.before, k.count, k.lately = at+retryAfter, 0, k.count
	}
	k.count++
	return max(k.count, k.lately) >= lookDenials
}

// covers tells whether it denies whatever the other does.
func (d *denial) covers(other *denial) bool {
	return d.quota == other.quota && d.least <= other.least && (d.blocks || !other.blocks) && d.until >= other.until
}

func (d *denialCache) forget(key string) {
	key = remembered(key)
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	if k := s.keys.find(key); k != nil {
		d.end(k)
	}
}

func (d *denialCache) forgetAll() {
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		s.generation++
		for at := s.keys.oldest; at != nil; at = at.next {
			d.end(&at.value)
		}
		s.mu.Unlock()
	}
}
