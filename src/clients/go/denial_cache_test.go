package swlimit

import (
	"fmt"
	"testing"
)

// However many keys are denied, so many are remembered, and it is known how many of them have denials.
func TestDenialsAreForgotten(t *testing.T) {
	t.Parallel()
	const keys = 10
	d := &denialCache{}
	d.init()
	d.atMost(keys * shards)
	wanted := demand{must(Quota{Limit: 1, Window: 1e9}.checked()), 1, false}
	remember := func(k string) {
		d.remember(k, &wanted, d.ask(k, true), reply{0, 1, 0, 3_600_000, 3_600_000}, 0, Never)
	}
	knows := func(k string) bool {
		_, ok := d.find(k, &wanted, false)
		return ok
	}
	for i := range 100 * keys * shards {
		k := fmt.Sprint(i)
		d.paysToLook(k, now(), 1e9)
		switch {
		case i%3 == 0:
			remember(k)
			if !knows(k) {
				t.Fatal("forgotten at once")
			}
		case i%7 == 0:
			remember(k)
			if d.forget(k); knows(k) {
				t.Fatal("given back, and denied")
			}
		}
	}
	known := 0
	for i := range d.shards {
		s := &d.shards[i]
		if s.keys.len() != keys {
			t.Errorf("%d keys", s.keys.len())
		}
		for at := s.keys.oldest; at != nil; at = at.next {
			if at.value.known != nil {
				known++
			}
		}
	}
	if known == 0 || int64(known) != d.size.Load() {
		t.Errorf("%d have denials, of %d", known, d.size.Load())
	}
	// What is remembered again is forgotten last.
	s := &d.shards[0]
	oldest := s.keys.oldest.key
	remember(oldest)
	if s.keys.newest.key != oldest || s.keys.oldest.key == oldest || !knows(oldest) {
		t.Errorf("%q is forgotten next", oldest)
	}
	// How often a key was denied outlives the end of its denials.
	for range lookDenials {
		d.paysToLook(oldest, now(), 1e9)
	}
	if d.forgetAll(); d.size.Load() != 0 || knows(oldest) || !d.paysToLook(oldest, now(), 1e9) {
		t.Errorf("%d have denials", d.size.Load())
	}
}
