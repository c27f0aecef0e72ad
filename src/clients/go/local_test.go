package swlimit

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// Blocks pin no more than half of the keys, and what was forgotten and still counted is counted.
func TestBlocksPinHalfOfTheKeys(t *testing.T) {
	t.Parallel()
	l := must(New(nil, Quota{Limit: 10, Window: time.Hour}, MaxKeys(640)))
	for i := range 20_000 {
		must(l.Block(background, strconv.Itoa(i), time.Hour))
	}
	left := 0
	for i := range l.windows.shards {
		left = max(left, l.windows.shards[i].entries.len())
	}
	if n := l.Statistics().Evicted; left > 64 || n < 19_000 {
		t.Errorf("%d keys of a shard, %d were forgotten", left, n)
	}
}

// A key that remembers since when it is in use still counts for a window after its last count.
func TestForgottenWhileInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := must(New(nil, Quota{Limit: 90, Window: time.Minute}, WarmUp(time.Hour), MaxKeys(1)))
		for i, want := range []int64{0, 1, 1} {
			must(l.Allow(background, strconv.Itoa(i)))
			if n := l.Statistics().Evicted; n != want {
				t.Errorf("%d: %d were forgotten in use", i, n)
			}
			time.Sleep(time.Duration(i+1) * 90 * time.Second)
		}
	})
}
