package swlimit

import "strings"

// bounded is a map that forgets those keys first that were used longest ago.
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
	if at := b.find(key); at != nil {
		return *at, true
	}
	return value, false
}

// find is where a key's value is, as long as the key is there; nil where it is not.
func (b *bounded[V]) find(key string) *V {
	if at, ok := b.places[key]; ok {
		b.renew(at)
		return &at.value
	}
	return nil
}

// put adds a key that is not there, and forgets what is more than most. It copies the key, which may be part of
// something large.
func (b *bounded[V]) put(key string, value V, most int) *V {
	if b.places == nil {
		b.places = map[string]*place[V]{}
	}
	for len(b.places) >= most {
		b.remove(b.oldest.key)
	}
	at := &place[V]{key: strings.Clone(key), value: value}
	b.places[at.key] = at
	b.append(at)
	return &at.value
}

// renew has a key forgotten last.
func (b *bounded[V]) renew(at *place[V]) {
	if at != b.newest {
		b.unlink(at)
		b.append(at)
	}
}

func (b *bounded[V]) remove(key string) {
	if at, ok := b.places[key]; ok {
		delete(b.places, key)
		b.unlink(at)
	}
}

func (b *bounded[V]) append(at *place[V]) {
	at.older, at.next = b.newest, nil
	if b.newest == nil {
		b.oldest = at
	} else {
		b.newest.next = at
	}
	b.newest = at
}

func (b *bounded[V]) unlink(at *place[V]) {
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
}
