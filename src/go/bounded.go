package swlimit

import "strings"

// bounded is a map that forgets those keys first that were put in first.
type bounded[V any] struct {
	places         map[string]*place[V]
	oldest, newest *place[V]
}

type place[V any] struct {
	key         string
	value       V
	older, next *place[V]
}

func (b *bounded[V]) len() int { return len(b.places) }

func (b *bounded[V]) get(key string) (value V, ok bool) {
	if at, ok := b.places[key]; ok {
		return at.value, true
	}
	return value, false
}

// put adds a key that is not there, and forgets what is more than most; how many those were. It copies the key, which
// may be part of something large.
func (b *bounded[V]) put(key string, value V, most int) (forgotten int64) {
	if b.places == nil {
		b.places = map[string]*place[V]{}
	}
	for len(b.places) >= most {
		b.remove(b.oldest.key)
		forgotten++
	}
	at := &place[V]{key: strings.Clone(key), value: value, older: b.newest}
	if b.newest == nil {
		b.oldest = at
	} else {
		b.newest.next = at
	}
	b.newest = at
	b.places[at.key] = at
	return forgotten
}

func (b *bounded[V]) remove(key string) bool {
	at, ok := b.places[key]
	if !ok {
		return false
	}
	delete(b.places, key)
	if at.older == nil {
		b.oldest = at.next
	} else {
		at.older.next = at.next
	}
	if at.next == nil {
		b.newest = at.older
	} else {
		at.next.older = at.older
	}
	return true
}
