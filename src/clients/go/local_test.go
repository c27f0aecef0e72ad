package swlimit

import (
	"strconv"
	"testing"
	"time"
)

// A key that is used stays, however many others come and go: it was forgotten, and granted its limit again.
func TestUsedKeysAreNotForgotten(t *testing.T) {
	l := must(New(nil, Quota{Limit: 10, Window: time.Hour}, MaxKeys(640)))
	granted := int64(0)
	for i := range 20_000 {
		if i%10 == 0 {
			granted += must(l.Allow(background, "busy")).Granted
		}
		must(l.Allow(background, "idle "+strconv.Itoa(i)))
	}
	if granted != 10 {
		t.Errorf("%d granted of 10", granted)
	}
	if n := l.Statistics().Evicted; n < 10_000 {
		t.Errorf("%d keys were forgotten", n)
	}
}

// A block outlives keys that are not blocked, and blocks of all others outlive no more than half of the keys.
func TestBlocksAreForgottenLast(t *testing.T) {
	l := must(New(nil, Quota{Limit: 10, Window: time.Hour}, MaxKeys(640)))
	must(l.Block(background, "blocked", time.Hour))
	for i := range 20_000 {
		must(l.Allow(background, "idle "+strconv.Itoa(i)))
	}
	if must(l.Allow(background, "blocked")).Allowed() {
		t.Error("the block was forgotten")
	}
	for i := range 20_000 {
		must(l.Block(background, "another "+strconv.Itoa(i), time.Hour))
	}
	left := 0
	for i := range l.windows.shards {
		left = max(left, l.windows.shards[i].entries.len())
	}
	if left > 64 {
		t.Errorf("%d keys of a shard", left)
	}
}
