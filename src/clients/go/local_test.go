package swlimit

import (
	"strconv"
	"testing"
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
